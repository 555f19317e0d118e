"""Damage and loss: an error that names the place, the rest of the rows, or a row that tells."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from keelog.pipeline.task_spec import LogPart
from protocol.errors import MqError
from protocol.names import offset_file_name
from tests.pipeline.facts_as_rows import plain_rows, read_rows
from tests.protocol.records import Draft, pack_draft
from tests.support.golden import GetStore, Row, facts

NAME = "small-clean"
SEGMENT_BYTES = 262_144
WAYS = pytest.mark.parametrize("way", [{}, {"subscribePattern": ".*"}], ids=["log", "queues"])
HIT = (100, 101, 5000)
"""Which messages are damaged: two neighbours, and one far behind them."""


def log_file(root: Path, offset: int) -> Path:
    return root / "commitlog" / offset_file_name(offset - offset % SEGMENT_BYTES)


def overwrite(root: Path, offset: int, data: bytes) -> None:
    with log_file(root, offset).open("r+b") as file:
        file.seek(offset % SEGMENT_BYTES)
        file.write(data)


def flip(root: Path, offset: int) -> None:
    with log_file(root, offset).open("rb") as file:
        file.seek(offset % SEGMENT_BYTES)
        byte = file.read(1)[0]
    overwrite(root, offset, bytes([byte ^ 1]))


@pytest.fixture
def damaged(golden_copy: GetStore) -> Path:
    """A store in which a few records have a wrong bit in the body's checksum."""
    root = golden_copy(NAME)
    for number in HIT:
        flip(root, facts(NAME).messages[number]["physicalOffset"] + 11)
    return root


@WAYS
def test_a_bad_checksum_ends_the_read_and_is_named(damaged: Path, way: dict[str, str]) -> None:
    offset = facts(NAME).messages[HIT[0]]["physicalOffset"]
    with pytest.raises(MqError) as caught:
        read_rows(path=str(damaged), **way)
    text = str(caught.value)
    assert text.startswith(f"[KEELOG_CORRUPT_RECORD] {log_file(damaged, offset)}, offset {offset}:")
    assert "onCorruptRecord=skip" in text


@WAYS
@pytest.mark.parametrize("cuts", ["1", "9"])
def test_skip_gives_all_other_rows(damaged: Path, way: dict[str, str], cuts: str) -> None:
    rows = read_rows(path=str(damaged), onCorruptRecord="skip", minPartitions=cuts, **way)
    assert sorted(row["physicalOffset"] for row in rows) == [
        fact["physicalOffset"]
        for number, fact in enumerate(facts(NAME).messages)
        if number not in HIT
    ]
    assert "damage" not in rows[0]


@WAYS
def test_report_gives_a_row_for_each_damaged_place(damaged: Path, way: dict[str, str]) -> None:
    rows = read_rows(
        path=str(damaged),
        onCorruptRecord="report",
        columns="queueOffset,physicalOffset,storeSize,body",
        **way,
    )
    told = [row for row in rows if row["damage"] is not None]
    known = facts(NAME).messages
    assert len(rows) - len(told) == len(known) - len(HIT)
    assert all(row["body"] is None for row in told)
    lost = {offset for row in told for offset in range(row["physicalOffset"], _end(row))} & {
        fact["physicalOffset"] for fact in known
    }
    assert lost == {known[number]["physicalOffset"] for number in HIT}
    if way:
        assert [row["queueOffset"] for row in told] == [known[at]["queueOffset"] for at in HIT]
        assert all("checksum" in row["damage"].lower() for row in told), told


def _end(row: Row) -> int:
    return int(row["physicalOffset"]) + int(row["storeSize"])


@WAYS
def test_a_torn_tail_is_where_the_rows_end_and_the_log_says_so(
    golden: GetStore, way: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = read_rows(path=str(golden("small-torn")), **way)
    known = facts("small-torn")
    assert len(rows) == len(known.messages)
    assert f"ends at offset {known.state['maxPhyOffset']}" in caplog.text


def test_a_unit_that_leads_to_another_message_is_damage(golden_copy: GetStore) -> None:
    root, fact = golden_copy(NAME), facts(NAME).queue_units[3]
    place = root / "consumequeue" / fact["topic"] / str(fact["queueId"]) / offset_file_name(0)
    data = bytearray(place.read_bytes())
    data[20 * fact["index"] : 20 * fact["index"] + 20] = data[20 * (fact["index"] + 1) :][:20]
    place.write_bytes(data)
    with pytest.raises(MqError, match=r"KEELOG_CORRUPT_RECORD.*leads to another message"):
        read_rows(path=str(root), subscribe=fact["topic"])
    rows = read_rows(path=str(root), subscribe=fact["topic"], onCorruptRecord="skip")
    assert fact["index"] not in {
        row["queueOffset"] for row in rows if row["queueId"] == fact["queueId"]
    }
    units = [other for other in facts(NAME).queue_units if other["topic"] == fact["topic"]]
    assert len(rows) == len(units) - 1


def read_with_a_change(options: dict[str, str], change: Iterator[None]) -> list[Row]:
    """Plans, lets the store be changed, and reads."""
    parts = plan_parts(parse_options(options))
    next(change)
    batches: list[pa.RecordBatch] = [batch for part in parts for batch in read_part(part)]
    return [row for batch in batches for row in plain_rows(batch)]


def deleting(root: Path, offset: int) -> Iterator[None]:
    log_file(root, offset).unlink()
    yield


@WAYS
def test_a_segment_deleted_after_planning_is_a_loss_that_is_told(
    golden_copy: GetStore, way: dict[str, str]
) -> None:
    root = golden_copy(NAME)
    options = {"path": str(root), **way}
    with pytest.raises(MqError, match=r"\[KEELOG_DATA_LOSS\].*delete"):
        read_with_a_change(options, deleting(root, 0))


@WAYS
def test_without_fail_on_data_loss_the_rest_is_read(
    golden_copy: GetStore, way: dict[str, str]
) -> None:
    root = golden_copy(NAME)
    options = {"path": str(root), "failOnDataLoss": "false", **way}
    rows = read_with_a_change(options, deleting(root, SEGMENT_BYTES))
    assert sorted(row["physicalOffset"] for row in rows) == [
        fact["physicalOffset"]
        for fact in facts(NAME).messages
        if not SEGMENT_BYTES <= fact["physicalOffset"] < 2 * SEGMENT_BYTES
    ]


@WAYS
def test_a_segment_deleted_while_a_task_reads_is_read_to_its_end(
    golden_copy: GetStore, way: dict[str, str]
) -> None:
    root = golden_copy(NAME)
    (part,) = plan_parts(parse_options({"path": str(root), **way}))
    batches = read_part(part)
    rows = next(batches).num_rows
    for file in (root / "commitlog").iterdir():
        file.unlink()
    assert rows + sum(batch.num_rows for batch in batches) == len(facts(NAME).messages)


def truncating(root: Path, offset: int) -> Iterator[None]:
    with log_file(root, offset).open("r+b") as file:
        file.truncate(1000)
    yield


@WAYS
def test_a_truncated_log_is_named_with_its_length(
    golden_copy: GetStore, way: dict[str, str]
) -> None:
    root = golden_copy(NAME)
    change = truncating(root, SEGMENT_BYTES)
    with pytest.raises(MqError, match=r"\[KEELOG_STORE_DAMAGED\].*has 1000 bytes, 262144"):
        read_with_a_change({"path": str(root), **way}, change)


@pytest.mark.parametrize("table", ["queues", "index"])
def test_derived_files_deleted_after_planning_are_a_loss(golden_copy: GetStore, table: str) -> None:
    root = golden_copy(NAME)

    def delete() -> Iterator[None]:
        folder = root / {"queues": "consumequeue", "index": "index"}[table]
        for file in [file for file in folder.rglob("*") if file.is_file()]:
            file.unlink()
        yield

    with pytest.raises(MqError, match=r"\[KEELOG_DATA_LOSS\]"):
        read_with_a_change({"path": str(root), "table": table}, delete())
    rows = read_with_a_change_of_nothing(root, table)
    assert rows, "planned anew the rows come from the log"


def read_with_a_change_of_nothing(root: Path, table: str) -> list[Row]:
    pairs = {f"store.{name}": str(value) for name, value in _SIZES.items()}
    return read_rows(path=str(root), table=table, **pairs)


_SIZES = {"mapped_file_size_consume_queue": 4000, "max_hash_slot_num": 500, "max_index_num": 2000}


def test_a_damaged_message_without_a_unit_is_not_passed_over_in_silence(damaged: Path) -> None:
    """Without queue files units come from the log, and that message has none."""
    shutil.rmtree(damaged / "consumequeue")
    options = {
        "path": str(damaged),
        "subscribePattern": ".*",
        "columns": "queueOffset",
        "store.mapped_file_size_consume_queue": "4000",
    }
    with pytest.raises(MqError, match=r"KEELOG_CORRUPT_RECORD.*the message is lost"):
        read_rows(**options)
    rows = read_rows(**options, onCorruptRecord="report")
    known = facts(NAME).messages
    told = [row["queueOffset"] for row in rows if row["damage"] is not None]
    assert sorted(told) == sorted(known[number]["queueOffset"] for number in HIT)
    assert len(rows) == len(known)


def log_starts(options: dict[str, str]) -> list[int]:
    parts = plan_parts(parse_options(options))
    return [part.start for part in parts if isinstance(part, LogPart)]


def test_parts_as_large_as_segments_are_cut_at_segments_alone(golden: GetStore) -> None:
    path = str(golden(NAME))
    starts = log_starts({"path": path, "maxPartitionBytes": str(2 * SEGMENT_BYTES + 5)})
    assert len(starts) > 10
    assert all(start % SEGMENT_BYTES == 0 for start in starts)
    rows = read_rows(path=path, columns="physicalOffset", maxPartitionBytes=str(SEGMENT_BYTES))
    assert [row["physicalOffset"] for row in rows] == [
        fact["physicalOffset"] for fact in facts(NAME).messages
    ]


def test_a_body_that_imitates_a_record_at_a_border_is_found_out(tmp_path: Path) -> None:
    """It has the right place and checksum, so a border may fall on it: the read must not."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    front = pack_draft(Draft(queue_offset=0, store_timestamp=1))
    empty = pack_draft(Draft(queue_offset=1, store_timestamp=2), len(front))
    body_at = len(empty) - len(b"t") - 1 - 2
    forged = pack_draft(Draft(topic=b"forged", store_timestamp=3), len(front) + body_at)
    real = pack_draft(Draft(queue_offset=1, store_timestamp=2, body=forged), len(front))
    assert real.index(forged) == body_at
    tail_at = len(front) + len(real)
    tail = pack_draft(Draft(queue_offset=2, store_timestamp=4, body=b"x" * 400), tail_at)
    log = front + real + tail
    (root / "commitlog" / offset_file_name(0)).write_bytes(log.ljust(4096, b"\0"))
    options = {"path": str(root), "columns": "topic,queueOffset"}
    # A border is looked for from the middle on: let it be the imitation's place.
    borders = {
        parts: log_starts({**options, "minPartitions": parts}) for parts in map(str, range(2, 12))
    }
    caught = [parts for parts, starts in borders.items() if len(front) + body_at in starts]
    assert caught, borders
    for parts in caught:
        with pytest.raises(MqError, match=r"imitates a record.*maxPartitionBytes=4096"):
            read_rows(**options, minPartitions=parts)
    whole = read_rows(**options, maxPartitionBytes="4096")
    assert [row["topic"] for row in whole] == ["t", "t", "t"]
