"""Exports as tasks write them, without Spark: equal rows, each once, whatever ended a run."""

import fcntl
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from keelog.pipeline.errors import (
    BadOption,
    CorruptRecord,
    DataLoss,
    ExportMismatch,
    ExportUnwritable,
    UnknownColumn,
)
from keelog.pipeline.jobs.export import ExportResult, export_here
from keelog.pipeline.jobs.export_files import (
    MANIFEST,
    NEXT_MANIFEST,
    ExportFolder,
    Publish,
    date_folder,
    escape,
    topic_folder,
)
from keelog.pipeline.jobs.publication import TEMPORARY
from keelog.pipeline.options import ExportOptions
from protocol.errors import MqError, NotAStore, StoreLocked
from tests.pipeline.facts_as_rows import (
    comparable,
    message_row,
    options_for,
    plain_rows,
    read_rows,
)
from tests.support.damaged_store import make_store
from tests.support.golden import GetStore, Row, facts
from tests.workers.living_log import SETTINGS, LivingLog

SIZES = {
    f"store.{name}": str(getattr(SETTINGS, name))
    for name in ("mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num")
}
BOTH_WAYS = pytest.mark.parametrize("publish", ["rename", "manifest"])
KINDS = ("crc32-property", "default-sizes", "mixed-kinds", "small-torn", "trimmed-cq-missing")
DAY_MS = 86_400_000


def manifest(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / MANIFEST).read_text())
    return document


def exported(out: Path) -> list[Row]:
    """The rows of the files that the manifest names, in log order, topics from their folders."""
    rows: list[Row] = []
    for file in manifest(out)["files"]:
        topic = file["path"].split("/")[0].removeprefix("topic=")
        table = pq.ParquetFile(out / file["path"]).read()
        found = plain_rows(table)
        assert len(found) == file["rows"]
        assert (out / file["path"]).stat().st_size == file["bytes"]
        if "topic" not in table.schema.names:
            found = [{**row, "topic": unescape(topic)} for row in found]
        rows += found
    return sorted(rows, key=lambda row: int(row["physicalOffset"]))


def unescape(text: str) -> str:
    first, *rest = text.split("%")
    return first + "".join(chr(int(part[:2], 16)) + part[2:] for part in rest)


def data_files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*.parquet*")}


def named_files(out: Path) -> set[str]:
    return {file["path"] for file in manifest(out)["files"]}


def same_rows(out: Path, root: Path, **options: str) -> None:
    """Every row of a read is exported, once, equal in every column."""
    rows = read_rows(path=str(root), **SIZES, **options)
    assert exported(out) == sorted(rows, key=lambda row: int(row["physicalOffset"]))


def run(root: Path, out: Path, publish: Publish = "rename", **options: Any) -> ExportResult:
    told = ExportOptions(**{"source": SIZES, **options})
    return export_here(str(root), str(out), told, publish)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """60 messages of three topics."""
    return make_store(tmp_path / "store", count=60).root


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def living(tmp_path: Path) -> Iterator[LivingLog]:
    log = LivingLog(tmp_path / "store", segment_bytes=2048)
    log.grow(40)
    yield log
    log.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_golden_store_is_exported_row_by_row(golden: GetStore, name: str, out: Path) -> None:
    known = facts(name)
    options = ExportOptions(source=options_for(name, known), by_topic=name != "mixed-kinds")
    result = export_here(str(golden(name)), str(out), options)
    rows = comparable(exported(out), known)
    assert rows == [message_row(fact, name) for fact in known.messages]
    assert result.rows == len(rows)


def test_each_file_holds_one_topic_and_one_day(golden: GetStore, out: Path) -> None:
    export_here(str(golden("small-clean")), str(out))
    for file in manifest(out)["files"]:
        topic, day, _ = file["path"].split("/")
        table = pq.ParquetFile(out / file["path"]).read(columns=["storeTimestamp"])
        assert topic.startswith("topic=")
        times = [row["storeTimestamp"] // 1000 for row in plain_rows(table)]
        assert {date_folder(time // DAY_MS) for time in times} == {day}


@pytest.mark.parametrize(
    ("topic", "folder"),
    [
        ("orders", "topic=orders"),
        ("%RETRY%group", "topic=%25RETRY%25group"),
        ("a/b:c=d", "topic=a%2Fb%3Ac%3Dd"),
        ("..", "topic=.."),
        ("Zürich ☃", "topic=Zürich ☃"),
        ("", "topic=__HIVE_DEFAULT_PARTITION__"),
        (None, "topic=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_topics_become_names_that_hive_and_spark_read(topic: str | None, folder: str) -> None:
    assert topic_folder(topic) == folder
    assert unescape(escape(topic or "")) == (topic or "")


def test_days_are_named_in_utc_and_what_is_no_date_has_a_name_too() -> None:
    assert date_folder(0) == "date=1970-01-01"
    assert date_folder(-1) == "date=1969-12-31"
    assert date_folder(2**40) == "date=__HIVE_DEFAULT_PARTITION__"


def test_a_topic_that_no_folder_can_be_named_after_is_refused_and_by_date_helps(
    golden: GetStore, out: Path
) -> None:
    source = options_for("mixed-kinds", facts("mixed-kinds"))
    with pytest.raises(ExportUnwritable, match=r"--by date") as caught:
        export_here(str(golden("mixed-kinds")), str(out), ExportOptions(source=source))
    assert "longer name than 255 bytes" in str(caught.value)
    told = ExportOptions(source=source, by_topic=False)
    assert export_here(str(golden("mixed-kinds")), str(out), told).rows == 8230


@BOTH_WAYS
@pytest.mark.parametrize("way", [{}, {"topics": "orders,payments"}], ids=["log", "queues"])
def test_runs_while_a_store_grows_export_each_row_once(
    living: LivingLog, out: Path, way: dict[str, str], publish: Publish
) -> None:
    rnd = random.Random(5)
    rows = run(living.root, out, publish, **way).rows
    for version in range(2, 9):
        living.grow(rnd.randrange(1, 25))
        result = run(living.root, out, publish, **way)
        assert result.version == version
        rows += result.rows
        assert result.rows_in_all == rows
    same_rows(out, living.root, **({"subscribe": way["topics"]} if way else {}))
    assert data_files(out) == named_files(out)


def test_a_run_with_nothing_new_changes_nothing(store: Path, out: Path) -> None:
    first = run(store, out)
    before = (out / MANIFEST).read_bytes()
    again = run(store, out)
    assert (again.rows, again.files, again.version) == (0, 0, first.version)
    assert (out / MANIFEST).read_bytes() == before


def test_a_topic_that_is_new_is_exported_from_its_start(living: LivingLog, out: Path) -> None:
    run(living.root, out, tags="A || B")
    message = living._any_message()
    for _ in range(5):
        living.append(type(message)(**{**vars_of(message), "topic": "new", "tags": "A"}))
    living.publish()
    assert run(living.root, out, tags="A || B").rows == 5
    same_rows(out, living.root, subscribePattern=".*", tags="A || B")


def vars_of(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__dataclass_fields__}


class Killed(BaseException):
    """The process ends here."""


MUTATIONS = ("create_dir", "open_output_stream", "move", "delete_dir", "delete_file")


class MortalSystem:
    """A file system whose caller dies at the `left`-th change, before or behind it."""

    def __init__(self, system: Any, left: list[int], behind: bool) -> None:
        self._system, self._left, self._behind = system, left, behind

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._system, name)
        return self._mortal(call) if name in MUTATIONS else call

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def mortal(*args: Any, **keywords: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] == 0 and not self._behind:
                raise Killed
            try:
                answer = call(*args, **keywords)
            except FileNotFoundError:
                # It changed nothing: a file whose folder is made next.
                self._left[0] += 1
                raise
            if self._left[0] == 0:
                raise Killed
            return answer

        return mortal


@BOTH_WAYS
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_a_run_that_dies_at_any_change_leaves_neither_holes_nor_duplicates(
    living: LivingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    publish: Publish, behind: bool,
) -> None:  # fmt: skip
    made = ExportFolder.open_client
    left = [0]

    def make(self: ExportFolder) -> tuple[Any, str]:
        system, root = made(self)
        return MortalSystem(system, left, behind), root

    monkeypatch.setattr(ExportFolder, "open_client", make)
    monkeypatch.setattr(ExportFolder, "syncs", True)
    start = tmp_path / "start"
    run(living.root, start, publish)
    living.grow(12)
    deaths = 0
    while True:
        out = tmp_path / f"out-{deaths}"
        shutil.copytree(start, out)
        left[0] = deaths + 1
        try:
            run(living.root, out, publish)
        except Killed:
            deaths += 1
        else:
            break
        left[0] = 0
        run(living.root, out, publish)
        same_rows(out, living.root)
        assert data_files(out) == named_files(out), "leftovers of the dead run"
        assert not (out / TEMPORARY).exists()
        assert not (out / NEXT_MANIFEST).exists()
        shutil.rmtree(out)
    assert deaths > 5


def test_a_first_run_that_dies_can_be_run_again(
    store: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(ExportFolder, "publish", lambda *_: (_ for _ in ()).throw(Killed()))
        run(store, out)
    assert (out / TEMPORARY).is_dir()
    run(store, out)
    same_rows(out, store)


def test_what_retention_took_before_it_was_exported_is_data_loss(
    living: LivingLog, out: Path
) -> None:
    run(living.root, out)
    done = manifest(out)["stores"]["store"]["log_end"]
    living.grow(60)
    segments = sorted((living.root / "commitlog").iterdir())
    for path in segments[: done // 2048 + 2]:
        path.unlink()
    with pytest.raises(DataLoss, match=f"log offsets {done} to "):
        run(living.root, out)
    result = run(living.root, out, source={**SIZES, "failOnDataLoss": "false"})
    rows = read_rows(path=str(living.root), **SIZES)
    assert result.rows == len(rows)


def test_a_store_that_lost_its_end_and_grew_again_is_refused(living: LivingLog, out: Path) -> None:
    topics = (None, "orders,payments,audit_log")
    for chosen in topics:
        run(living.root, out / str(chosen), topics=chosen)
    living.begin_epoch(cut_at=living.starts[-9])
    living.grow(30)
    for chosen in topics:
        with pytest.raises(ExportMismatch, match="it has lost its end"):
            run(living.root, out / str(chosen), topics=chosen)


@pytest.mark.parametrize(
    "other",
    [
        {"topics": "orders"},
        {"tags": "A"},
        {"columns": "body"},
        {"from_ms": 1},
        {"by_topic": False},
        {"on_corrupt": "report"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_choice_of_rows_or_columns_needs_a_folder_of_its_own(
    store: Path, out: Path, other: dict[str, Any]
) -> None:
    run(store, out)
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(ExportMismatch, match="the same choice again"):
        run(store, out, **other)
    assert (out / MANIFEST).read_bytes() == before
    same_rows(out, store)


def test_a_folder_of_something_else_is_refused_and_left_alone(store: Path, out: Path) -> None:
    (out / "topic=orders").mkdir(parents=True)
    (out / "topic=orders" / "data.parquet").write_text("mine")
    with pytest.raises(ExportMismatch, match="it holds topic=orders"):
        run(store, out)
    assert [path.name for path in out.rglob("*")] == ["topic=orders", "data.parquet"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "keelog-export", "format_version": 9}']
)
def test_a_manifest_that_is_none_is_refused(store: Path, out: Path, text: str) -> None:
    run(store, out)
    (out / MANIFEST).write_text(text)
    with pytest.raises(ExportMismatch, match=MANIFEST):
        run(store, out)


def test_two_exports_into_one_folder_are_one_too_many(store: Path, out: Path) -> None:
    run(store, out)
    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked):
            run(store, out)
    finally:
        os.close(handle)
    run(store, out)


def test_times_choose_rows_and_the_end_may_move(store: Path, out: Path) -> None:
    times = sorted(row["storeTimestamp"] // 1000 for row in read_rows(path=str(store), **SIZES))
    first, middle = times[10], times[40]
    run(store, out, from_ms=first, to_ms=middle)
    same_rows(out, store, startingTimestamp=str(first), endingTimestamp=str(middle))
    run(store, out, from_ms=first, to_ms=times[20])
    run(store, out, from_ms=first)
    same_rows(out, store, startingTimestamp=str(first))


def test_columns_are_those_that_were_asked_for(store: Path, out: Path) -> None:
    run(store, out, columns="queueOffset, body")
    for path in data_files(out):
        assert pq.ParquetFile(out / path).schema_arrow.names == ["queueOffset", "body"]
    with pytest.raises(BadOption, match="a file needs a column"):
        run(store, out.with_name("other"), columns="topic")


def test_large_exports_are_cut_into_files(golden: GetStore, out: Path) -> None:
    store = golden("small-clean")
    options = ExportOptions(file_bytes_max=64 << 10)
    result = export_here(str(store), str(out), options)
    sizes = [file["bytes"] for file in manifest(out)["files"]]
    # The rows gathered last may pass the limit, as they are when they are compressed.
    assert max(sizes) < 2 * options.file_bytes_max
    assert result.files > 3
    assert len(exported(out)) == len(facts("small-clean").messages)


def test_damage_is_what_the_source_makes_of_it(golden_copy: GetStore, tmp_path: Path) -> None:
    root = golden_copy("small-clean")
    known = facts("small-clean").messages
    offset = known[100]["physicalOffset"]
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(offset + 11)
        file.write(b"\xff")
    with pytest.raises(CorruptRecord, match=f"offset {offset}"):
        export_here(str(root), str(tmp_path / "fail"))
    assert not (tmp_path / "fail" / MANIFEST).exists()
    skipped = export_here(str(root), str(tmp_path / "skip"), ExportOptions(on_corrupt="skip"))
    assert skipped.rows == len(known) - 1
    told = ExportOptions(on_corrupt="report", columns="queueOffset, physicalOffset")
    assert export_here(str(root), str(tmp_path / "report"), told).rows == len(known)
    (row,) = [row for row in exported(tmp_path / "report") if row["damage"]]
    assert row["physicalOffset"] == offset


@pytest.mark.parametrize("out_name", ["", "a\0b", "nowhere://x/y"])
def test_a_place_that_is_none_is_refused(store: Path, out_name: str) -> None:
    with pytest.raises(MqError, match=r"\[KEELOG_BAD_OPTION\]"):
        export_here(str(store), out_name)


def test_what_is_no_store_or_no_column_is_refused_before_a_folder_is_made(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "never"
    with pytest.raises(NotAStore, match="does not exist"):
        export_here(str(tmp_path / "nowhere"), str(out))
    with pytest.raises(UnknownColumn, match="colour"):
        export_here(str(store), str(out), ExportOptions(columns="colour"))
    assert not out.exists()


def test_a_place_that_cannot_be_written_is_named(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportUnwritable, match="file/out"):
        run(store, tmp_path / "file" / "out")
