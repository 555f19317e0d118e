"""Groups of requests become bytes: the two ways agree, and bad requests change nothing."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.store.config.topics_file import TopicsFile
from node.writer.appender import Appender, AppendRequest, Placement
from node.writer.log.commit_log import CommitLog
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge, MqError, UnknownTopic
from protocol.ids import Host, Queue
from protocol.kernel import loader
from protocol.record.append import Put
from protocol.record.codec import Filler, Record, decode
from protocol.record.encode import NewMessage, check_message, encode_batch, record_bytes
from protocol.record.patch import AppendRules
from tests.support.kernel import using

SEGMENT_BYTES = 64 * 1024
STORE_HOST = Host(bytes([127, 0, 0, 1]), 7850)


class Log:
    """A commit log in a folder with its appender."""

    def __init__(self, root: Path, crc: bool = True, settings: Settings | None = None) -> None:
        self.root = root
        (root / "commitlog").mkdir(parents=True)
        (root / "keelog/run").mkdir(parents=True)
        self.log = CommitLog(root, SEGMENT_BYTES, 0)
        self.log.open_tail()
        topics = TopicTable(TopicsFile(root), settings or Settings(), [], lambda: 1_000)
        rules = AppendRules(4 * 1024 * 1024, crc)
        self.placement = Placement(self.log, {})
        self.appender = Appender(self.placement, topics, rules, STORE_HOST.to_bytes())

    def append(self, *requests: AppendRequest, now_ms: int = 5_000) -> list[AppendRequest]:
        self.appender.append(list(requests), now_ms)
        return list(requests)

    def records(self) -> list[Record]:
        found: list[Record] = []
        for path in sorted((self.root / "commitlog").iterdir()):
            data, base, position = path.read_bytes(), int(path.name), 0
            while isinstance(stands := decode(data, position, base + position), Record):
                found.append(stands)
                position += stands.size
            if not isinstance(stands, Filler):
                break
        return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "store")
    yield made
    made.log.close(unlink_next=True)


def batch(*messages: NewMessage, crc: bool = True) -> AppendRequest:
    encoded = encode_batch(messages, crc)
    return AppendRequest(encoded.records, len(encoded.sizes))


def draft(message: NewMessage, crc: bool = True) -> AppendRequest:
    """As the writer makes one of an operation `send`."""
    properties = check_message(message, crc, 4 * 1024 * 1024)
    put = Put(
        message.topic,
        message.body,
        message.queue_id,
        properties,
        message.born_timestamp,
        message.born_host,
    )
    size = record_bytes(message, properties, crc)
    return AppendRequest(b"", 1, draft=put, draft_bytes=size)


@pytest.fixture(scope="module", autouse=True)
def _ways(way: str) -> str:
    """Every test of this file runs with and without the kernel."""
    return way


def random_requests(seed: int) -> list[list[AppendRequest]]:
    """Groups of requests, one in ten of them damaged."""
    rng = random.Random(seed)
    groups = []
    for _ in range(80):
        group = []
        for _ in range(rng.choice([1, 1, rng.randrange(1, 7)])):
            messages = [
                NewMessage(
                    topic=f"topic{rng.randrange(3)}",
                    body=rng.randbytes(rng.randrange(0, 900)),
                    queue_id=rng.randrange(8),
                    tags=rng.choice(["", "A", "中文"]),
                    keys=("k1", f"k{rng.randrange(9)}"),
                    born_host=rng.choice([Host(bytes(4), 1), Host(bytes(range(16)), 2)]),
                )
                for _ in range(rng.choice([1, rng.randrange(1, 12)]))
            ]
            request = draft(messages[0]) if rng.random() < 0.3 else batch(*messages)
            if request.draft is None and rng.random() < 0.1:
                cut = rng.randrange(len(request.records))
                request.records = (
                    bytes(request.records[:cut]) + b"\x07" + bytes(request.records[cut + 1 :])
                )
            group.append(request)
        groups.append(group)
    return groups


@pytest.mark.parametrize("seed", [1, 2])
def test_both_ways_of_appending_give_the_same_bytes_and_answers(tmp_path: Path, seed: int) -> None:
    seen = []
    for way, compiled in (("plain", None), ("compiled", loader.kernel)):
        with using(compiled):
            made = Log(tmp_path / way)
        outcomes = []
        for number, group in enumerate(random_requests(seed)):
            sizes = [request.size for request in group]
            made.append(*group, now_ms=5_000 + number)
            assert [request.size for request in group] == sizes
            for done in group:
                words = str(done.error)
                outcomes.append((words, done.physical_offset, sorted(done.queues)))
        made.log.close(unlink_next=True)
        files = [path.read_bytes() for path in sorted((made.root / "commitlog").iterdir())]
        placed = made.placement
        seen.append((outcomes, files, placed.tails, placed.records, placed.snapshot()))
    assert len(seen[0][1]) > 1
    assert seen[0] == seen[1]


def test_what_was_appended_is_what_was_sent(log: Log) -> None:
    message = NewMessage("orders", b"hello", 3, "paid", ("o-1", "o-2"), {"tenant": "a"}, "U" * 32)
    (done,) = log.append(batch(message, message))
    first, second = log.records()
    assert done.queues == [("orders", 3, 0, 2)]
    assert (first.body, first.tags, first.keys) == (b"hello", "paid", ["o-1", "o-2"])
    assert first.properties["tenant"] == "a"
    assert (first.head.queue_offset, second.head.queue_offset) == (0, 1)
    assert second.physical_offset == first.size == done.physical_offset + first.size
    assert (first.store_host, first.head.store_timestamp) == (STORE_HOST, 5_000)


def test_store_times_never_run_backwards(log: Log) -> None:
    log.append(batch(NewMessage("t", b"", 0)), now_ms=9_000)
    log.append(batch(NewMessage("t", b"", 0)), now_ms=8_000)
    assert [record.head.store_timestamp for record in log.records()] == [9_000, 9_000]


def test_a_refused_request_leaves_no_trace_of_its_time(log: Log) -> None:
    """The checkpoint names this time: one above the last record's is damage to `store verify`."""
    good, bad = batch(NewMessage("T", b"x", queue_id=0)), AppendRequest(b"nothing", 1)
    log.append(good, now_ms=5_000)
    log.append(bad, now_ms=9_000)
    assert bad.error is not None
    assert log.placement.snapshot().store_timestamp == 5_000
    log.append(bad, batch(NewMessage("T", b"x", queue_id=0)), now_ms=4_000)
    assert log.records()[-1].head.store_timestamp == 5_000


def test_a_request_goes_whole_into_one_segment(log: Log) -> None:
    size = len(batch(NewMessage("t", bytes(20_000), 0)).records)
    for _ in range(7):
        log.append(batch(NewMessage("t", bytes(20_000), 0)))
    offsets = [record.physical_offset for record in log.records()]
    per_segment = (SEGMENT_BYTES - 8) // size
    assert offsets == [i // per_segment * SEGMENT_BYTES + i % per_segment * size for i in range(7)]


def test_a_request_larger_than_a_segment_is_refused_and_nothing_is_written(log: Log) -> None:
    messages = [NewMessage("t", bytes(9_000), 0)] * 8
    (done,) = log.append(batch(*messages))
    assert isinstance(done.error, MessageTooLarge)
    assert log.records() == []
    assert log.placement.tails == {}


def test_a_bad_request_does_not_roll_the_segment(log: Log) -> None:
    log.append(batch(NewMessage("t", bytes(60_000), 0)))
    end = log.log.end
    bad = batch(NewMessage("t", bytes(20_000), 0))
    bad.records = bytes(bad.records[:-1]) + b"x"
    assert isinstance(log.append(bad)[0].error, IllegalMessage)
    assert log.log.end == end


def test_the_node_chooses_one_queue_for_a_batch_that_names_none(log: Log) -> None:
    request = batch(*[NewMessage("t", bytes([i])) for i in range(50)])
    request.any_queue = True
    (done,) = log.append(request)
    assert len(done.queues) == 1
    assert {record.head.queue_id for record in log.records()} == {done.queues[0][1]}
    assert [record.body for record in log.records()] == [bytes([i]) for i in range(50)]


def test_a_request_that_begins_a_segment_gets_the_next_queue_in_turn(log: Log) -> None:
    chosen = []
    for _ in range(9):
        request = batch(NewMessage("t", bytes(20_000)))
        request.any_queue = True
        chosen.append(log.append(request)[0].queues[0][1])
    assert log.log.end > 2 * SEGMENT_BYTES
    assert chosen == [(chosen[0] + turn) % 8 for turn in range(9)]


BAD: dict[str, tuple[AppendRequest, type[MqError]]] = {
    "a queue that the topic lacks": (batch(NewMessage("t", b"", 8)), BadRequest),
    "no queue where one is needed": (batch(NewMessage("t", b"")), BadRequest),
    "no room for the checksum": (batch(NewMessage("t", b"", 0), crc=False), IllegalMessage),
    "another count": (AppendRequest(batch(NewMessage("t", b"", 0)).records, 2), BadRequest),
    "other sizes": (AppendRequest(batch(NewMessage("t", b"", 0)).records, 1, bytes(4)), BadRequest),
    "a cut record": (AppendRequest(batch(NewMessage("t", b"", 0)).records[:-3], 1), IllegalMessage),
    "half a record behind": (
        AppendRequest(bytes(batch(NewMessage("t", b"", 0)).records) + bytes(50), 1),
        IllegalMessage,
    ),
    "no record at all": (AppendRequest(b"", 1), BadRequest),
    "zeros": (AppendRequest(bytes(200), 1), IllegalMessage),
    "a filler": (
        AppendRequest(b"\0\0\0\x08\xcb\xd4\x31\x94" + bytes(90), 1),
        IllegalMessage,
    ),
}


@pytest.mark.parametrize("group_size", [1, 40])
@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused_alone_and_changes_nothing(
    log: Log, what: str, group_size: int
) -> None:
    template, expected = BAD[what]
    bad = AppendRequest(template.records, template.count, template.sizes)
    good = [batch(NewMessage("t", b"good", 0)) for _ in range(group_size)]
    log.append(*good[: group_size // 2], bad, *good[group_size // 2 :])
    assert type(bad.error) is expected
    assert all(request.error is None for request in good)
    assert [record.body for record in log.records()] == [b"good"] * group_size
    assert log.placement.tails == {Queue("t", 0): group_size}


def test_an_unknown_topic_is_refused_when_topics_are_not_made_by_sending(tmp_path: Path) -> None:
    made = Log(tmp_path / "store", settings=Settings(auto_create_topic_enable=False))
    (done,) = made.append(batch(NewMessage("nobody", b"", 0)))
    made.log.close(unlink_next=True)
    assert isinstance(done.error, UnknownTopic)
