"""`keelog spark rebuild` and `audit` without Spark: options, shapes, exit codes, errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keelog.cli.main import run
from keelog.pipeline import session as module
from keelog.pipeline.jobs.rebuild import held_folder
from node.runtime.locks import StoreLock
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.pipeline.jobs.rebuild.test_rebuild import tree
from tests.support.damaged_store import make_store
from tests.workers.living_log import SETTING_OPTIONS, SETTINGS, LivingLog
from workers.rebuild import rebuild as rebuild_by_workers

Keelog = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def keelog(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Keelog:
    """Runs `keelog spark …` on an engine in this process: (exit code, stdout, lines of stderr)."""

    def run_job(job: Callable[[Any], Any], *_where: object) -> Any:
        return job(PlainEngine())

    monkeypatch.setattr(module, "run_job", run_job)

    def call(name: str, root: Path | str, *options: str) -> tuple[int, str, list[str]]:
        code = run(["spark", name, str(root), *SETTING_OPTIONS, *options])
        talk = capfdbinary.readouterr()
        return code, talk.out.decode(), talk.err.decode().splitlines()

    return call


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log = LivingLog(tmp_path / "store")
    log.grow(60)
    log.close()
    return tmp_path / "store"


def test_a_rebuild_makes_both_and_tells_in_numbers(keelog: Keelog, root: Path) -> None:
    code, out, _ = keelog("rebuild", root, "--json")
    made = json.loads(out)
    assert (code, made["records"], made["units"]) == (0, 60, 60)
    built = tree(root)
    rebuild_by_workers(root, settings=SETTINGS)
    assert tree(root) == built
    code, out, _ = keelog("rebuild", root, "--index", "--out", str(root.parent / "out"))
    assert (code, json.loads(out)["queue_files"]) == (0, 0)
    assert [path.name for path in (root.parent / "out").iterdir()] == ["index"]


def test_a_rebuild_of_a_store_in_use_ends_with_6(keelog: Keelog, root: Path) -> None:
    lock = StoreLock.acquire(root)
    code, out, talk = keelog("rebuild", root)
    lock.release()
    assert (code, out, len(talk)) == (6, "", 3)
    assert talk[0] == f"error: cannot rebuild the store {root}"
    assert talk[1].startswith("cause: [KEELOG_STORE_LOCKED]")


def test_of_two_rebuilds_into_one_folder_the_later_one_ends_with_6(
    keelog: Keelog, root: Path
) -> None:
    out = root.parent / "out"
    with held_folder(out):
        code, _, talk = keelog("rebuild", root, "--out", str(out))
    assert (code, talk[1]) == (6, f"cause: [KEELOG_STORE_LOCKED] another job writes to {out}")
    assert keelog("rebuild", root, "--out", str(out))[0] == 0


@pytest.mark.parametrize(
    ("name", "store", "options", "told"),
    [
        ("audit", "s3://bucket/x", (), "is in an object store"),
        ("audit", "tcp://127.0.0.1:7850", (), "is a node that runs"),
        ("rebuild", "tcp://127.0.0.1:7850", (), "is a node that runs"),
        ("rebuild", "s3://bucket/x", ("--plan", "shuffle"), "nothing can be switched in"),
        ("rebuild", "x", ("--out", "s3://bucket/y"), "writes whole objects alone"),
    ],
)
def test_what_a_job_cannot_do_at_an_address_is_three_lines_and_2(
    keelog: Keelog, name: str, store: str, options: tuple[str, ...], told: str
) -> None:
    code, out, talk = keelog(name, store, *options)
    assert (code, out, [line.split(":")[0] for line in talk]) == (2, "", ["error", "cause", "try"])
    assert talk[1].startswith("cause: [KEELOG_BAD_OPTION]")
    assert told in talk[1]


def test_an_audit_ends_with_0_or_5_and_leaves_a_report(keelog: Keelog, root: Path) -> None:
    rebuild_by_workers(root, settings=SETTINGS)
    code, out, _ = keelog("audit", root, "--json")
    shape = json.loads(out)
    assert (code, shape["ok"], shape["findings"]) == (0, True, [])
    assert shape["commit_log"]["records"] == shape["queues"]["units"] == 60
    unit = next((root / "consumequeue").rglob("0" * 20))
    with unit.open("r+b") as file:
        file.seek(12)
        file.write(b"\7")
    code, out, _ = keelog("audit", root, "--json", "--report", str(root.parent / "audit"))
    [finding] = json.loads(out)["findings"]
    assert (code, finding["kind"], finding["file"]) == (5, "unit_mismatch", str(unit))
    assert finding["repair"] == f"keelog spark rebuild {root} --queues"
    assert {path.name for path in (root.parent / "audit").iterdir()} == {
        *("findings.parquet", "report.json")
    }
    code, out, _ = keelog("audit", root, "--format", "table")
    assert (code, out.splitlines()[0][:7]) == (5, "DAMAGE:")


def test_an_export_that_passed_damage_over_ends_with_5_and_says_so(
    keelog: Keelog, tmp_path: Path
) -> None:
    whole = make_store(tmp_path / "store", count=60)
    whole.flip(whole.records[20].physical_offset + 11)
    words = ("--out", str(tmp_path / "out"), "--on-corrupt", "skip")
    code, out, _ = keelog("export", whole.root, *words, "--format", "table")
    assert (code, "59 messages in all; 1 damaged place passed over" in out) == (5, True), out
    code, out, _ = keelog("export", whole.root, *words, "--json")
    assert (code, json.loads(out)["damaged"]) == (0, 0), "it is not met again"


def test_a_folder_that_is_no_store_is_three_lines(keelog: Keelog, tmp_path: Path) -> None:
    code, out, talk = keelog("audit", tmp_path)
    assert (code, out) == (1, "")
    assert [line.split(":")[0] for line in talk] == ["error", "cause", "try"]
    assert "[KEELOG_NOT_A_STORE]" in talk[1]
