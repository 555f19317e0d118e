"""`keelog store repair`: the plan's shape, exit codes, and what is left alone."""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keelog.cli.main import run
from tests.support.damaged_store import Whole, make_store, read_records
from tests.support.golden import GetStore
from tests.workers.living_log import SETTING_OPTIONS

STEP_KEYS = {
    *("action", "file", "offset", "bytes", "topic", "queue_id", "queue_offset", "detail"),
}


@pytest.fixture
def store(tmp_path: Path) -> Whole:
    return make_store(tmp_path / "store", count=20)


def repair(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> tuple[int, Any, str]:
    """Exit code, the document on stdout, and stderr."""
    code = run(["store", "repair", str(root), *SETTING_OPTIONS, "--json", *words])
    talk = capsys.readouterr()
    return code, json.loads(talk.out) if talk.out else None, talk.err


def test_a_whole_store_needs_nothing(store: Whole, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--apply",)):
        code, plan, _ = repair(capsys, store.root, *words)
        assert code == 0
        lost = {"messages": 0, "unknown_bytes": 0, "queues": []}
        assert plan == {"ok": True, "applied": bool(words), "steps": [], "lost": lost}


def test_a_plan_ends_with_5_and_apply_with_0_and_then_there_is_nothing_left(
    store: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = store.records[7]
    store.flip(lost.physical_offset + 95)
    code, plan, _ = repair(capsys, store.root)
    assert (code, plan["ok"], plan["applied"]) == (5, False, False)
    assert all(set(step) == STEP_KEYS for step in plan["steps"])
    number = lost.head.queue_offset
    assert plan["steps"][0] == {
        "action": "mark_lost",
        "file": str(store.segment(lost.physical_offset)),
        "offset": lost.physical_offset,
        "bytes": lost.size,
        "topic": lost.topic,
        "queue_id": lost.head.queue_id,
        "queue_offset": number,
        "detail": "the checksum of the whole record does not agree",
    }
    where = {"topic": lost.topic, "queue_id": lost.head.queue_id}
    queues = [{**where, "from": number, "to": number}]
    assert plan["lost"] == {"messages": 1, "unknown_bytes": 0, "queues": queues}
    code, done, _ = repair(capsys, store.root, "--apply")
    assert (code, done["applied"], done["lost"]) == (0, True, plan["lost"])
    assert repair(capsys, store.root)[0] == 0
    assert run(["store", "verify", str(store.root), "--deep", *SETTING_OPTIONS]) == 0
    assert len(read_records(store.root)) == len(store.records)


def test_apply_leaves_a_store_alone_that_somebody_holds(
    store: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    store.flip(store.records[7].physical_offset + 95)
    with (store.root / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, plan, talk = repair(capsys, store.root, "--apply")
        assert (code, plan) == (6, None)
        assert "held by another process" in talk
        assert repair(capsys, store.root)[0] == 5


def test_a_wrong_option_ends_with_2_and_no_store_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repair(capsys, tmp_path, "--aply")[0] == 2
    assert repair(capsys, tmp_path)[0] == 1
    assert repair(capsys, tmp_path, "--apply")[0] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_queues", [True, False])
def test_a_brokers_store_is_mended_too(
    golden_copy: GetStore, capsys: pytest.CaptureFixture[str], with_queues: bool
) -> None:
    root = golden_copy("small-clean-533")
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
    path = sorted((root / "commitlog").iterdir())[0]
    with path.open("r+b") as file:
        file.seek(95)
        byte = file.read(1)[0]
        file.seek(95)
        file.write(bytes([byte ^ 4]))
    assert run(["store", "repair", str(root), "--json"]) == 5
    plan = json.loads(capsys.readouterr().out)
    assert plan["lost"]["messages"] == 1
    assert plan["steps"][0]["topic"]
    assert run(["store", "repair", str(root), "--apply", "--json"]) == 0
    assert run(["store", "verify", str(root), "--deep"]) == 0
