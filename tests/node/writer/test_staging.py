"""Staged batches: what is refused, what is visible when, and that each is published once."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import node.writer.staging.publisher
import node.writer.staging.stages
from node.store.repair.plan import plan_repair
from node.store.staging_files import (
    StagedBatch,
    StageSummary,
    journal_path,
    problems,
    published_path,
    stage_path,
)
from node.store.verify.verify import verify
from node.writer.log.retention import Clock
from node.writer.staging.jobs import mark
from protocol.record.codec import Record
from protocol.record.encode import NewMessage, encode_message
from tests.crash.publications import (
    Refused,
    Row,
    StagingClient,
    encode_rows,
    lines_of,
    log_records,
    rows_of,
    stage_rows,
)
from tests.crash.scene import Scene
from workers.rebuild import rebuild

SEGMENT_BYTES = 16 * 1024
PLACE = ("q", 0)
ROWS = rows_of(0, 1, 20, 60)[0]


class Node(StagingClient):
    """A writer moved by hand, and what its log holds."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        super().__init__(scene.start())

    def restart(self, kill: bool = True) -> None:
        """Ends the writer and starts another one."""
        if kill:
            self.scene.crash(self.life)
        else:
            self.life.stop_in_order(self.scene.producer, workers_are_done=True)
            self.life.end()
        self.life = self.scene.start()

    def stored(self) -> list[Record]:
        """What a reader may see."""
        end = self.life.store.log.end
        records = log_records(bytes(self.scene.truth.data[:end]), self.scene.truth.segment_bytes)
        return [record for record in records if record.topic == "staged"]

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.stored()]

    def staged(
        self, rows: list[Row] = ROWS, stage: str = "s", place: tuple[str, int] = PLACE
    ) -> StageSummary:
        part = stage_rows(self, place, stage, rows, per_frame=7)
        assert part is not None
        return part


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, SEGMENT_BYTES)
    with made.on_disk():
        yield made


@pytest.fixture
def writer(scene: Scene) -> Iterator[Node]:
    made = Node(scene)
    yield made
    made.life.end()


def test_what_is_staged_is_in_no_log_before_it_is_published(writer: Node) -> None:
    part = writer.staged()
    assert writer.life.store.log.end == 0
    answer = writer.publish("q", 0, [part])
    assert (answer["already"], answer["records"], answer["bytes"]) == (False, 20, part.bytes)
    assert writer.bodies() == [row.body for row in ROWS]


def test_store_times_and_queue_offsets_are_those_of_the_publication(writer: Node) -> None:
    part = writer.staged()
    writer.life.turn(writer.scene.producer, 3, 0.1)
    before = writer.life.store.placement.last_store_timestamp
    writer.publish("q", 0, [part])
    stored = writer.stored()
    assert all(record.head.store_timestamp > before for record in stored)
    for queue in range(3):
        offsets = [r.head.queue_offset for r in stored if r.head.queue_id == queue]
        assert offsets == list(range(len(offsets)))


def test_stages_are_published_in_the_order_that_is_asked_for(writer: Node) -> None:
    parts = rows_of(0, 3, 4, 50)
    made = [writer.staged(rows, f"s{i}") for i, rows in enumerate(parts)]
    writer.publish("q", 0, [made[2], made[0], made[1]])
    assert writer.bodies() == [row.body for i in (2, 0, 1) for row in parts[i]]


def test_a_batch_is_published_once_however_often_it_is_asked_for(writer: Node) -> None:
    part = writer.staged()
    writer.publish("q", 0, [part])
    assert writer.publish("q", 0, [part])["already"]
    writer.restart()
    assert writer.publish("q", 0, [part])["already"]
    assert len(writer.bodies()) == 20


def test_an_earlier_batch_of_a_query_is_published_no_more(writer: Node) -> None:
    writer.publish("q", 5, [writer.staged(place=("q", 5))])
    assert writer.publish("q", 4, [])["already"]
    assert stage_rows(writer, ("q", 3), "late", ROWS, 7) is None
    assert not writer.publish("other", 4, [])["already"]


def test_a_frame_that_comes_again_changes_nothing(writer: Node) -> None:
    records = encode_rows(ROWS[:4], "s")
    for _ in range(3):
        answer = writer.stage(records, query="q", batch=0, stage="s")
        assert (answer["frames"], answer["records"]) == (1, 4)
    with pytest.raises(Refused, match="is there with other records"):
        writer.stage(encode_rows(ROWS[4:8], "s"), query="q", batch=0, stage="s")


def test_a_frame_before_its_turn_is_told_to_wait(writer: Node) -> None:
    with pytest.raises(Refused, match="NodeBusy: frame 1 of stage s came, 0 is the next"):
        writer.stage(encode_rows(ROWS[:2], "s"), 1, query="q", batch=0, stage="s")
    with pytest.raises(Refused, match="BadRequest: frame 99"):
        writer.stage(encode_rows(ROWS[:2], "s"), 99, query="q", batch=0, stage="s")


def test_a_stage_goes_on_behind_a_kill_of_the_writer(writer: Node) -> None:
    records = encode_rows(ROWS[:6], "s")
    writer.stage(records[:3], 0, query="q", batch=0, stage="s")
    writer.restart()
    assert writer.stage(records[:3], 0, query="q", batch=0, stage="s")["frames"] == 1
    assert writer.stage(records[3:], 1, query="q", batch=0, stage="s")["frames"] == 2
    writer.publish("q", 0, [StageSummary("s", 2, 6, sum(map(len, records)))])
    assert writer.bodies() == [row.body for row in ROWS[:6]]


def test_a_torn_frame_is_written_again(writer: Node) -> None:
    records = encode_rows(ROWS[:6], "s")
    writer.stage(records[:3], 0, query="q", batch=0, stage="s")
    writer.stage(records[3:], 1, query="q", batch=0, stage="s")
    path = stage_path(writer.life.store.root, StagedBatch("q", 0), "s")
    path.write_bytes(path.read_bytes()[:-5])
    writer.restart()
    assert writer.stage(records[3:], 1, query="q", batch=0, stage="s")["frames"] == 2


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (NewMessage("staged", b"x", 9, unique_key="u"), "queue 9 of topic staged is outside"),
        (NewMessage("staged", b"x", 0), "record 2 of the batch has no UNIQ_KEY"),
        (
            NewMessage("staged", b"x", 0, properties={"XUNIQ_KEY": "u"}),
            "record 2 of the batch has no",
        ),
    ],
)
def test_a_record_that_cannot_be_appended_is_refused_before_it_is_staged(
    writer: Node, message: NewMessage, why: str
) -> None:
    records = [*encode_rows(ROWS[:2], "s"), encode_message(message, crc=True)]
    with pytest.raises(Refused, match=why):
        writer.stage(records, query="q", batch=0, stage="s")
    assert not stage_path(writer.life.store.root, StagedBatch("q", 0), "s").exists()


def test_a_record_that_fits_into_no_segment_is_refused_when_it_is_staged(writer: Node) -> None:
    large = [Row(b"x" * SEGMENT_BYTES, 0)]
    with pytest.raises(Refused, match="MessageTooLarge: record 0 of the batch"):
        writer.stage(encode_rows(large, "s"), query="q", batch=0, stage="s")


def test_staging_makes_no_topic(writer: Node) -> None:
    part = writer.staged()
    assert [topic["topic"] for topic in writer.ask("topics")["topics"]] == []
    writer.publish("q", 0, [part])
    assert [topic["topic"] for topic in writer.ask("topics")["topics"]] == ["staged"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 65, "a b"])
def test_what_is_no_id_becomes_no_file(writer: Node, name: str) -> None:
    with pytest.raises(Refused, match="BadRequest"):
        writer.stage(encode_rows(ROWS[:1], "s"), query=name, batch=0, stage="s")
    with pytest.raises(Refused, match="BadRequest"):
        writer.stage(encode_rows(ROWS[:1], "s"), query="q", batch=0, stage=name)


@pytest.mark.parametrize("line", ["s 1 2", "s 1 2 x", "s -1 2 3", "../s 1 2 3"])
def test_a_line_that_names_no_stage_is_refused(writer: Node, line: str) -> None:
    with pytest.raises(Refused, match="BadRequest"):
        writer.ask("publish", f"{line}\n".encode(), query="q", batch=0, stages=1)


def test_a_stage_that_is_not_all_there_is_not_published(writer: Node) -> None:
    part = writer.staged()
    with pytest.raises(Refused, match="NotFound: stage s has 3 frames, 20 records"):
        writer.publish("q", 0, [part._replace(frames=4, records=27)])
    with pytest.raises(Refused, match="NotFound: stage t has 0 frames"):
        writer.publish("q", 0, [part, StageSummary("t", 1, 1, 100)])
    assert writer.bodies() == []
    assert not writer.publish("q", 0, [part])["already"]


def test_a_stage_with_other_bytes_than_were_staged_is_not_published(writer: Node) -> None:
    part = writer.staged()
    path = stage_path(writer.life.store.root, StagedBatch("q", 0), "s")
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    with pytest.raises(Refused, match="StoreDamaged"):
        writer.publish("q", 0, [part])
    assert writer.bodies() == []


def test_limits_are_refused_with_their_names(writer: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.staged()
    with monkeypatch.context() as patch:
        patch.setattr(node.writer.staging.stages, "STAGES_MAX", 1)
        with pytest.raises(Refused, match="NotAllowed: batch 0 of query q has 1 stages"):
            writer.staged(stage="t")
    with monkeypatch.context() as patch:
        patch.setattr(node.writer.staging.stages, "QUERIES_MAX", 1)
        with pytest.raises(Refused, match="NotAllowed: 1 queries"):
            writer.staged(place=("other", 0))
    with monkeypatch.context() as patch:
        patch.setattr(node.writer.staging.stages, "FRAMES_MAX", 3)
        with pytest.raises(Refused, match="NotAllowed: stage s has 3 frames"):
            writer.stage(encode_rows(ROWS[:1], "s"), 3, query="q", batch=0, stage="s")


def test_more_bytes_than_the_setting_allows_are_refused(scene: Scene) -> None:
    scene.settings = replace(scene.settings, staging_bytes_max=3_000)
    writer = Node(scene)
    with pytest.raises(Refused, match="staging_bytes_max is 3000"):
        writer.staged()
    writer.ask("unstage", query="q", batch=0)
    writer.staged(ROWS[:7])
    writer.life.end()


def test_what_is_unstaged_is_gone(writer: Node) -> None:
    one, two = writer.staged(stage="one"), writer.staged(stage="two")
    assert writer.ask("unstage", query="q", batch=0, stage="one")["dropped"] == 1
    with pytest.raises(Refused, match="stage one has 0 frames"):
        writer.publish("q", 0, [one, two])
    assert writer.ask("unstage", query="q", batch=0)["dropped"] == 1
    assert writer.ask("unstage", query="q", batch=0)["dropped"] == 0
    assert writer.publish("q", 0, [])["records"] == 0


def test_what_nobody_publishes_goes_after_the_retention_and_the_ledger_stays(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.publish("q", 0, [writer.staged()])
    writer.publish("once", 0, [writer.staged(place=("once", 0))], final=True)
    writer.staged(place=("q", 1))
    late = 4_000_000_000_000
    monkeypatch.setattr("node.writer.staging.publisher.now_ms", lambda: late)
    retention = writer.life.store.retention
    monkeypatch.setattr(retention, "clock", Clock(lambda: late / 1000, lambda: 0.0))
    for _ in range(4):
        writer.life.now += node.writer.staging.publisher.SWEEP_EVERY_S
        writer.turn()
    root = writer.life.store.root
    assert not stage_path(root, StagedBatch("q", 1), "s").exists()
    assert published_path(root, "q").exists()
    assert not published_path(root, "once").exists()
    assert writer.publish("q", 0, [])["already"]


def test_others_send_between_the_chunks_of_a_publication(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.writer.staging.publisher, "PUBLISH_BYTES_MAX", 500)
    part = writer.staged()
    number = writer.send("publish", lines_of([part]), query="q", batch=0, stages=1)
    while (answer := writer.answer(number)) is None:
        writer.life.turn(writer.scene.producer, 1, 0.1)
        writer.life.run_jobs()
    assert answer["records"] == 20
    data = bytes(writer.scene.truth.data)
    topics = [record.topic for record in log_records(data, SEGMENT_BYTES)]
    inner = topics[topics.index("staged") : len(topics) - topics[::-1].index("staged")]
    assert sum(topic != "staged" for topic in inner) >= 3
    assert writer.bodies() == [row.body for row in ROWS]


def half_published(writer: Node, patch: pytest.MonkeyPatch) -> StageSummary:
    """Some of the batch is in the log, and the rest is not."""
    patch.setattr(node.writer.staging.publisher, "PUBLISH_BYTES_MAX", 500)
    part = writer.staged()
    writer.send("publish", lines_of([part]), query="q", batch=0, stages=1)
    while not writer.bodies():
        writer.turn()
    assert len(writer.bodies()) < 20
    return part


@pytest.mark.parametrize("kill", [True, False])
def test_a_publication_goes_on_by_itself_behind_the_next_start(
    writer: Node, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    half_published(writer, monkeypatch)
    writer.restart(kill)
    for _ in range(60):
        writer.turn()
    assert writer.bodies() == [row.body for row in ROWS]
    assert not journal_path(writer.life.store.root, StagedBatch("q", 0)).exists()


def test_a_repeated_request_joins_the_publication_that_runs(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = half_published(writer, monkeypatch)
    writer.restart()
    assert stage_rows(writer, PLACE, "again", ROWS, 7) is None
    assert not writer.publish("q", 0, [part._replace(stage="again")])["already"]
    assert writer.bodies() == [row.body for row in ROWS]


def test_a_full_disk_only_interrupts_a_publication(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_published(writer, monkeypatch)
    there = len(writer.bodies())
    monkeypatch.setattr(writer.life.store, "retain", lambda _now: None)
    monkeypatch.setattr(writer.life.store.retention, "full", "the disk is 99 % full")
    for _ in range(20):
        writer.turn()
    assert len(writer.bodies()) == there
    monkeypatch.setattr(writer.life.store.retention, "full", None)
    for _ in range(60):
        writer.turn()
    assert writer.bodies() == [row.body for row in ROWS]


def test_a_topic_that_takes_no_messages_any_more_blocks_its_batch_alone(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = half_published(writer, monkeypatch)
    writer.ask("create_topic", topic="staged", queues=3, perm=4)
    with pytest.raises(Refused, match="NotAllowed: topic staged does not take messages"):
        writer.publish("q", 0, [part])
    for _ in range(3):
        writer.turn()
    assert "does not take messages" in next(problems(writer.life.store.root))
    assert not writer.publish("other", 0, [])["already"]
    writer.ask("create_topic", topic="staged", queues=3, perm=6)
    writer.publish("q", 0, [part])
    assert writer.bodies() == [row.body for row in ROWS]
    assert not list(problems(writer.life.store.root))


@pytest.mark.parametrize("damage", ["journal", "stage"])
def test_a_publication_that_cannot_be_resumed_says_so_and_is_not_guessed(
    writer: Node, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    part = half_published(writer, monkeypatch)
    there = writer.bodies()
    root = writer.life.store.root
    if damage == "journal":
        journal_path(root, StagedBatch("q", 0)).write_bytes(b'{"offset": 0}\ncrc 00000000\n')
    else:
        stage_path(root, StagedBatch("q", 0), "s").unlink()
    writer.restart()
    with pytest.raises(Refused, match="StoreDamaged" if damage == "journal" else "NotFound"):
        writer.publish("q", 0, [part])
    for _ in range(3):
        writer.turn()
    assert "batch 0 of query q" in next(problems(root))
    assert writer.bodies() == there
    writer.publish("other", 0, [writer.staged(place=("other", 0))])
    assert len(writer.bodies()) == len(there) + 20


def test_a_damaged_ledger_publishes_nothing(writer: Node) -> None:
    part = writer.staged()
    writer.publish("q", 0, [part])
    path = published_path(writer.life.store.root, "q")
    path.write_bytes(path.read_bytes().replace(b"0 ", b"1 ", 1))
    with pytest.raises(Refused, match="StoreDamaged"):
        writer.publish("q", 0, [part])
    assert len(writer.bodies()) == 20


def test_a_journal_is_text_that_names_a_durable_offset(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_published(writer, monkeypatch)
    text = journal_path(writer.life.store.root, StagedBatch("q", 0)).read_text()
    journal = json.loads(text.splitlines()[0])
    assert journal["offset"] <= writer.life.writer.flushing.flushed
    assert journal["parts"][0][:3] == ["s", 3, 20]


def test_who_looks_at_the_store_is_not_upset_by_what_is_staged(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_published(writer, monkeypatch)
    root = writer.life.store.root
    writer.life.stop_in_order(writer.scene.producer, workers_are_done=True)
    rebuild(root, settings=writer.scene.settings)
    assert verify(root, deep=True, settings=writer.scene.settings).ok
    assert plan_repair(root, writer.scene.settings).ok
    assert journal_path(root, StagedBatch("q", 0)).exists()


@given(
    body=st.binary(max_size=40),
    numbers=st.tuples(*[st.integers(0, 2**40)] * 2),
    crc=st.booleans(),
    wide=st.booleans(),
)
def test_a_mark_is_the_same_before_and_after_the_append_and_no_other_records(
    body: bytes, numbers: tuple[int, int], crc: bool, wide: bool
) -> None:
    from protocol.ids import parse_host
    from protocol.record.patch import PlainRow, StoreStamp, patch_plain

    host = parse_host("[::1]:7" if wide else "1.2.3.4:7")
    message = NewMessage("t", body, 1, unique_key="u", born_host=host, properties={"a": "b"})
    record = encode_message(message, crc)
    stored = bytearray(record)
    row = PlainRow(0, len(record), "t", 1, 0x10 if wide else 0)
    patch_plain(stored, row, *numbers, StoreStamp(numbers[0], b"\x7f\0\0\1\0\0\1\1"), crc)
    assert mark(bytes(stored)) == mark(record)
    for other in (
        replace(message, body=body + b"x"),
        replace(message, queue_id=2),
        replace(message, unique_key="v"),
        replace(message, topic="s"),
    ):
        assert mark(encode_message(other, crc)) != mark(record)
