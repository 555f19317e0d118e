"""`keelog store export`: Parquet and SQLite, offline and without Spark."""

import json
import sqlite3
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keelog.cli.main import run
from protocol.record.encode import NewMessage
from tests.support.damaged_store import Whole, make_store
from tests.workers.living_log import SETTING_OPTIONS, LivingLog


class Answer:
    """What one command printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Export:
    """Runs `keelog store export` in this process."""

    def __init__(self, store: Whole, capsys: pytest.CaptureFixture[str]) -> None:
        self._root, self._capsys = store.root, capsys

    def __call__(self, *words: Any) -> Answer:
        code = run(["store", "export", str(self._root), *map(str, words), *SETTING_OPTIONS])
        return Answer(code, *self._capsys.readouterr())


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    return make_store(tmp_path / "store", count=60)


@pytest.fixture
def export(whole: Whole, capsys: pytest.CaptureFixture[str]) -> Export:
    return Export(whole, capsys)


def select(file: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()


def test_every_message_and_key_is_a_row(export: Export, whole: Whole, tmp_path: Path) -> None:
    file = tmp_path / "messages.db"
    answer = export("--sqlite", file)
    assert answer.code == 0, answer.err
    found = select(
        file,
        "SELECT physical_offset, topic, queue_id, queue_offset, body, tags, properties, msg_id,"
        " store_timestamp, store_size FROM messages ORDER BY physical_offset",
    )
    assert found == [
        (
            *(record.physical_offset, record.topic, record.head.queue_id),
            *(record.head.queue_offset, record.body, record.tags or None),
            json.dumps(record.properties, ensure_ascii=False, separators=(",", ":")),
            *(record.message_id, record.head.store_timestamp, record.head.total_size),
        )
        for record in whole.records
    ]
    keys = select(file, "SELECT topic, key, physical_offset FROM keys")
    assert sorted(keys) == sorted(
        (record.topic, key, record.physical_offset)
        for record in whole.records
        for key in record.keys
    )
    assert json.loads(answer.out)["rows"] == 60
    plan = select(file, "EXPLAIN QUERY PLAN SELECT * FROM keys WHERE topic = 'a' AND key = 'k1'")
    assert "keys_by_key" in plan[0][3]


class Watched(sqlite3.Connection):
    """A connection that notes the temporary files that SQLite has open."""

    seen: ClassVar[set[str]] = set()

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.execute("PRAGMA cache_size = 10")  # it sorts in files from here on
        self.set_progress_handler(self._look, 500)

    def _look(self) -> int:
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                name = str(descriptor.readlink())
                if "etilqs" in name:
                    self.seen.add(str(Path(name).parent))
        return 0


def test_sqlite_sorts_beside_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder for temporary files may be small, and the error would name the other one."""
    log = LivingLog(tmp_path / "store", 8 << 20)
    for number in range(8000):
        log.append(NewMessage("t", b"", 0, keys=(f"{number:0250d}",), born_timestamp=1))
    log.publish(flush=True)
    log.close()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for name in ("SQLITE_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, str(elsewhere))
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Watched))
    (out := tmp_path / "it's out").mkdir()
    words = ["store", "export", str(tmp_path / "store"), "--sqlite", str(out / "x.db")]
    assert run([*words, *SETTING_OPTIONS]) == 0, capsys.readouterr().err
    assert Watched.seen == {str(out)}


def test_an_sqlite_file_that_is_there_is_replaced_only_when_told(
    export: Export, tmp_path: Path
) -> None:
    file = tmp_path / "messages.db"
    file.write_text("mine")
    answer = export("--sqlite", file)
    assert (answer.code, file.read_text()) == (2, "mine")
    assert "--overwrite" in answer.err
    assert export("--sqlite", file, "--overwrite").code == 0
    assert select(file, "SELECT count(*) FROM messages") == [(60,)]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_sqlite_gets_the_messages_that_were_chosen(
    export: Export, whole: Whole, tmp_path: Path
) -> None:
    file = tmp_path / "messages.db"
    since = whole.records[20].head.store_timestamp
    answer = export(
        *("--sqlite", file, "--topics", "orders,payments", "--tags", "A"),
        *("--from", since, "--to", since + 10_000),
    )
    assert answer.code == 0, answer.err
    wanted = [
        (record.physical_offset,)
        for record in whole.records
        if record.topic in ("orders", "payments")
        and record.tags == "A"
        and since <= record.head.store_timestamp < since + 10_000
    ]
    assert select(file, "SELECT physical_offset FROM messages ORDER BY 1") == wanted
    assert wanted


def test_damage_ends_an_export_or_is_passed_over_with_5(
    export: Export, whole: Whole, tmp_path: Path
) -> None:
    whole.flip(whole.records[20].physical_offset + 11)
    file = tmp_path / "messages.db"
    answer = export("--sqlite", file)
    assert (answer.code, file.exists()) == (5, False)
    assert f"offset {whole.records[20].physical_offset}" in answer.err
    assert export("--parquet", tmp_path / "out").code == 5
    answer = export("--sqlite", file, "--on-corrupt", "skip")
    assert (answer.code, json.loads(answer.out)["damaged"]) == (5, 1)
    assert select(file, "SELECT count(*) FROM messages") == [(59,)]
    answer = export("--parquet", tmp_path / "out", "--on-corrupt", "skip")
    assert (answer.code, json.loads(answer.out)["damaged"]) == (5, 1)
    answer = export("--parquet", tmp_path / "rows", "--on-corrupt", "report")
    assert (answer.code, json.loads(answer.out)["damaged"]) == (0, 0)


def test_damage_behind_which_nothing_stands_is_damage_too(
    export: Export, whole: Whole, tmp_path: Path
) -> None:
    whole.flip(whole.records[-1].physical_offset + 11)
    assert export("--sqlite", tmp_path / "messages.db").code == 5


def test_parquet_grows_by_what_is_new_and_says_so(export: Export, tmp_path: Path) -> None:
    first = export("--parquet", tmp_path / "out")
    assert (first.code, json.loads(first.out)["rows"]) == (0, 60)
    again = json.loads(export("--parquet", tmp_path / "out").out)
    assert (again["rows"], again["rows_in_all"]) == (0, 60)
    assert (
        "nothing new: 60 messages" in export("--parquet", tmp_path / "out", "--format", "table").out
    )


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--parquet", "out", "--sqlite", "file"),
        ("--parquet", "out", "--overwrite"),
        ("--sqlite", "file", "--columns", "body"),
        ("--sqlite", "file", "--by", "date"),
        ("--sqlite", "file", "--on-corrupt", "report"),
        ("--parquet", "out", "--columns", "nothing"),
        ("--parquet", "out", "--from", "tomorrow"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_told_and_nothing_is_written(
    export: Export, tmp_path: Path, words: tuple[str, ...]
) -> None:
    placed = [tmp_path / word if word in ("out", "file") else word for word in words]
    answer = export(*placed)
    assert answer.code in (1, 2)
    assert answer.err.startswith("error: ")
    assert not list(tmp_path.glob("*/*.parquet")) and not (tmp_path / "file").exists()


def test_parquet_without_pyarrow_says_what_to_install(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("keelog.pipeline.jobs.export")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = export("--parquet", tmp_path / "out")
    assert (answer.code, "pip install 'pyarrow" in answer.err) == (1, True)
    assert export("--sqlite", tmp_path / "messages.db").code == 0
