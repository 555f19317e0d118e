"""A reader's answers over golden stores, as RocketMQ gave them, and what becomes of held pulls."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.reader.loop import ReaderService, ReaderStats
from node.runtime.state_page import DAMAGED, RUNNING, STARTING
from node.runtime.stats import SUM, Counts
from node.runtime.stats_series import (
    DURATION,
    INDEX_LOOKUPS,
    READER,
    REQUESTS,
    SERIES,
    Family,
    SeriesKind,
)
from node.serving.request_server import BadFrames, Payload, Received
from node.store.config.topics_file import TopicsFile
from node.store.opening import RunningStore
from node.store.query.pull import TransferLimits
from protocol.errors import BadRequest
from protocol.ids import Queue, shard_of
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, TOPICS_FILE, offset_file_name
from protocol.record.codec import Record, decode
from protocol.wire.frames import Header, pack
from tests.support.golden import GetStore, Row, facts, unpack
from tests.support.living_store import LivingStore

TOLD = (
    "small-clean",
    "small-clean-533",
    "mixed-kinds",
    "default-sizes",
    "crc32-property",
    "trimmed",
)


class Reply(NamedTuple):
    """What was sent to a peer."""

    peer: bytes
    header: Header
    payload: Payload | None

    @property
    def records(self) -> list[Record]:
        """The records in the payload, decoded by the sizes in the header."""
        found, position = [], 0
        for size in np.frombuffer(self.header["sizes"], "<u4").tolist():
            assert self.payload is not None
            record = decode(self.payload[position : position + size], 0)
            assert isinstance(record, Record)
            found.append(record)
            position += size
        assert position == len(self.payload or b"")
        return found

    @property
    def error(self) -> str:
        """The kind of a refusal, empty for a good answer."""
        return "" if self.header["ok"] else str(self.header["error"]["kind"])


def properties_of(message: Row) -> dict[str, str]:
    """A record's properties; RocketMQ says null for none."""
    return message["properties"] or {}


class Desk:
    """A reader's service over a living store, without sockets, and with a clock of its own."""

    def __init__(self, living: LivingStore) -> None:
        self.living = living
        self.now = 100.0
        self.sent: list[Reply] = []
        self.gone: set[bytes] = set()
        self.store: RunningStore = RunningStore(living.root, living.shards, living.settings)
        self.service = ReaderService(
            self.store, TopicsFile(living.root), TransferLimits(), self._send, living.shards
        )

        self.counts = Counts(READER)
        self.service.stats = ReaderStats(self.counts)

    def counted(self, family: Family, **labels: str) -> int:
        """The numbers of a family's series that have these labels, added up; of times how many."""
        return sum(
            sum(self.counts.numbers[place : place + SUM])
            if family.kind is SeriesKind.SECONDS
            else self.counts.numbers[place]
            for one in SERIES[READER]
            if one.family is family and labels.items() <= dict(one.labels).items()
            for place in [self.counts.place(family, **dict(one.labels))]
        )

    def _send(self, peer: bytes, header: Header, payload: Payload | None) -> bool:
        json.dumps(header, default=repr)
        pack(header)
        self.sent.append(Reply(peer, header, payload))
        return peer not in self.gone

    def ask(self, op: str, peer: bytes = b"p", **fields: Any) -> None:
        """Hands in a request."""
        self.store.refresh()
        header = pack({"v": 1, "id": 7, "op": op, **fields})
        self.service.handle(Received(peer, header, None), self.now)

    def get(self, op: str, **fields: Any) -> Reply:
        """The answer to a request that is answered at once."""
        before = len(self.sent)
        self.ask(op, **fields)
        assert len(self.sent) == before + 1
        assert self.sent[-1].header["id"] == 7
        return self.sent[-1]

    def grow(self, end: int, *queues: Queue) -> None:
        """The log becomes readable up to `end`; the workers of these queues have placed more."""
        self.living.publish(end)
        self.store.refresh()
        self.service.desk.wake({shard_of(queue, self.living.shards) for queue in queues})

    def close(self) -> None:
        self.store.close()
        self.living.close()


OpenDesk = Callable[[str], Desk]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`stores(name)`: a golden store that the tests of this module share; they change its pages."""
    return cache(lambda name: unpack(name, tmp_path_factory.mktemp("living")))


@pytest.fixture
def desk(stores: Callable[[str], Path]) -> Iterator[OpenDesk]:
    """`desk(name)`: a reader's service over a golden store."""
    opened = []

    def get(name: str) -> Desk:
        opened.append(Desk(LivingStore(stores(name), facts(name))))
        return opened[-1]

    yield get
    for each in opened:
        each.close()


# As RocketMQ answers


@pytest.mark.parametrize("name", TOLD)
def test_every_pull_is_answered_as_rocketmq_answers_it(desk: OpenDesk, name: str) -> None:
    reader = desk(name)
    for told in facts(name).queries:
        if told["op"] != "getMessage":
            continue
        reply = reader.get(
            "pull",
            topic=told["topic"],
            queue=told["queueId"],
            offset=told["offset"],
            max_messages=min(told["maxMsgNums"], 32),
            tags=told["filter"] or "",
        )
        found = [reply.header[field] for field in ("status", "next_begin_offset", "min_offset")]
        assert found == [told["status"], told["nextBeginOffset"], told["minOffset"]], told
        assert reply.header["max_offset"] == told["maxOffset"]
        records = reply.records
        assert [record.physical_offset for record in records] == told["phyOffsets"]
        assert [record.head.queue_offset for record in records] == told["queueOffsets"]
        assert reply.header["count"] == len(records)


@pytest.mark.parametrize("name", TOLD)
def test_every_time_is_looked_up_as_rocketmq_does(desk: OpenDesk, name: str) -> None:
    reader = desk(name)
    for told in facts(name).queries:
        if told["op"] == "getOffsetInQueueByTime":
            reply = reader.get(
                "seek",
                topic=told["topic"],
                queue=told["queueId"],
                timestamp=told["timestamp"],
                boundary=told["boundary"].lower(),
            )
            assert reply.header["offset"] == told["result"], told


# Single records


@pytest.mark.parametrize("name", ["mixed-kinds", "crc32-property"])
def test_a_message_is_found_by_place_id_queue_offset_and_unique_key(
    desk: OpenDesk, name: str
) -> None:
    reader = desk(name)
    newest: dict[tuple[str, str], int] = {}
    for message in facts(name).messages:
        key = properties_of(message).get("UNIQ_KEY")
        if key:
            newest[message["topic"], key] = message["physicalOffset"]
    for message in facts(name).messages[::37]:
        place, topic = message["physicalOffset"], message["topic"]
        by_place = reader.get("get", physical_offset=place)
        assert by_place.header["size"] == message["storeSize"]
        assert by_place.payload is not None
        assert decode(by_place.payload, 0, place).message_id == message["msgId"]  # type: ignore[union-attr]
        for text in (message["msgId"], message["msgId"].lower()):
            assert reader.get("get", msg_id=text).payload == by_place.payload
        if message["queued"]:
            queue = {"topic": topic, "queue": message["queueId"], "offset": message["queueOffset"]}
            assert reader.get("get", **queue).payload == by_place.payload
        key = properties_of(message).get("UNIQ_KEY")
        if key and newest[topic, key] == place and message["queued"]:
            found = reader.get("get", topic=topic, unique_key=key)
            assert found.payload == by_place.payload, (topic, key)


def test_what_is_not_stored_is_not_found(desk: OpenDesk) -> None:
    reader = desk("small-clean")
    message = facts("small-clean").messages[5]
    end = reader.living.end
    other_node = "01020304" + message["msgId"][8:]
    queue = {"topic": message["topic"], "queue": message["queueId"]}
    for wanted in (
        {"physical_offset": end},
        {"physical_offset": end + 10**9},
        {"physical_offset": message["physicalOffset"] + 1},
        {"msg_id": other_node},
        {"msg_id": message["msgId"][:16] + "F" * 16},
        {"topic": "no-such-topic", "unique_key": "k"},
        {"topic": message["topic"], "unique_key": "no such key"},
        {**queue, "offset": 10**12},
        {**queue, "queue": 77, "offset": 0},
    ):
        assert reader.get("get", **wanted).error == "NotFound", wanted


def test_a_damaged_record_fails_its_own_request_and_no_other(golden_copy: GetStore) -> None:
    reader = Desk(LivingStore(golden_copy("small-clean"), facts("small-clean")))
    queued = [message for message in facts("small-clean").messages if message["queued"]]
    bad, other = queued[100], queued[200]
    segment = reader.living.settings.mapped_file_size_commit_log
    place = bad["physicalOffset"]
    path = reader.living.root / "commitlog" / offset_file_name(place - place % segment)
    with path.open("r+b") as file:
        file.seek(place % segment + 4)
        file.write(b"\xff")
    wanted = {"topic": bad["topic"], "queue": bad["queueId"], "offset": bad["queueOffset"]}
    for op in ("get", "pull"):
        reply = reader.get(op, **wanted)
        assert reply.error == "MessageDamaged"
        assert reader.counted(REQUESTS, op=op, code="STORE_DAMAGED") == 1
        assert reply.header["error"]["offset"] == place
        assert reply.header["error"]["queue_offset"] == bad["queueOffset"]
        assert reply.header["error"]["next_offset"] == bad["queueOffset"] + 1
        assert reply.header["error"]["where"] == str(path)
        assert reply.header["error"]["found"]
    assert not reader.get("get", physical_offset=other["physicalOffset"]).error
    following = {**wanted, "offset": bad["queueOffset"] + 1}
    assert reader.get("pull", **following).error == ""
    reader.close()


# By key


def test_finding_by_key_goes_through_all_pages_newest_first(desk: OpenDesk) -> None:
    reader = desk("small-clean")
    places: dict[tuple[str, str], list[int]] = {}
    for message in facts("small-clean").messages:
        properties = properties_of(message)
        texts = {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")} - {""}
        for text in texts:
            places.setdefault((message["topic"], text), []).append(message["physicalOffset"])
    often = sorted(places, key=lambda key: len(places[key]))[-5:]
    for topic, key in often:
        found, cursor = list[int](), None
        while True:
            page = reader.get("find", topic=topic, key=key, max_messages=7, cursor=cursor)
            assert page.header["count"] <= 7
            found += [record.physical_offset for record in page.records]
            cursor = page.header["cursor"]
            if cursor is None:
                break
        assert found == places[topic, key][::-1], (topic, key)


def test_an_unknown_topic_and_an_unknown_key_are_different_answers(desk: OpenDesk) -> None:
    reader = desk("small-clean")
    topic = facts("small-clean").messages[0]["topic"]
    assert reader.get("find", topic="no-such-topic", key="k").error == "UnknownTopic"
    none = reader.get("find", topic=topic, key="no such key")
    assert (none.error, none.header["count"], none.header["cursor"]) == ("", 0, None)
    assert none.payload is None
    assert reader.get("find", topic=topic, key="k", cursor="no cursor").error == "BadRequest"
    assert reader.counted(REQUESTS, op="find", code="TOPIC_NOT_EXIST") == 1
    assert reader.counted(REQUESTS, op="find", code="OK") == 1
    assert reader.counted(INDEX_LOOKUPS, result="miss") == 1
    assert reader.counted(INDEX_LOOKUPS, result="hit") == 0


# Topics and offsets


def test_offsets_are_those_of_all_queues_that_the_topic_has(desk: OpenDesk) -> None:
    reader = desk("trimmed")
    told: dict[str, dict[int, tuple[int, int]]] = {}
    for queue in facts("trimmed").state["queues"]:
        bounds = queue["minOffset"], queue["maxOffset"]
        told.setdefault(queue["topic"], {})[queue["queueId"]] = bounds
    for topic, queues in told.items():
        rows = reader.get("offsets", topic=topic).header["queues"]
        found = {row["queue_id"]: (row["min_offset"], row["max_offset"]) for row in rows}
        assert found.items() >= queues.items()
        number, (low, high) = next(iter(queues.items()))
        (row,) = reader.get("offsets", topic=topic, queue=number).header["queues"]
        assert (row["queue_id"], row["min_offset"], row["max_offset"]) == (number, low, high)
    assert reader.get("offsets", topic="no-such-topic").error == "UnknownTopic"


def write_topics(root: Path, **read_queues: int) -> None:
    table = {
        name: {"topicName": name, "readQueueNums": n, "writeQueueNums": n, "perm": 6}
        for name, n in read_queues.items()
    }
    path = root / TOPICS_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"topicConfigTable": table}))


def test_topics_are_those_of_the_table_and_those_that_only_have_queues(
    golden_copy: GetStore,
) -> None:
    reader = Desk(LivingStore(golden_copy("small-clean"), facts("small-clean")))
    write_topics(reader.living.root, fresh=3)
    rows = {row["topic"]: row for row in reader.get("topics").header["topics"]}
    assert rows["fresh"] == {
        "topic": "fresh", "queues": 3, "read_queues": 3, "write_queues": 3, "perm": 6,
        "retention_hours": 0,
    }  # fmt: skip
    stored = {queue["topic"]: queue["queueId"] for queue in facts("small-clean").state["queues"]}
    assert set(rows) >= {topic for topic in stored if topic != "no-such-topic"}
    empty = reader.get("offsets", topic="fresh").header["queues"]
    assert [(row["queue_id"], row["max_offset"]) for row in empty] == [(n, 0) for n in range(3)]
    assert reader.get("find", topic="fresh", key="k").header["count"] == 0
    reader.close()


# Requests that are none


def test_what_is_no_request_gets_a_typed_refusal(desk: OpenDesk) -> None:
    reader = desk("small-clean")
    assert reader.get("nonsense").error == "UnknownOperation"
    assert reader.get("pull", topic="t", queue=0).error == "BadRequest"
    assert reader.get("ping").error == ""
    service = reader.service
    service.handle(Received(b"p", b"", None), 0)
    service.handle(Received(b"p", pack({"v": 2, "id": 3, "op": "ping"}), None), 0)
    service.handle(Received(b"p", pack({"v": 1, "id": 4, "op": "ping"}), b"payload"), 0)
    service.handle(Received(b"p", pack({"op": "x" * 200_000}), None), 0)
    service.handle(BadFrames(b"p", 5, BadRequest("frames")), 0)
    service.handle(Received(b"p", pack({"id": 6, "topics": ["t"] * 1_001}), None), 0)
    kinds = [(reply.header["id"], reply.error) for reply in reader.sent[-6:]]
    assert kinds == [
        (0, "BadRequest"), (3, "UnknownOperation"), (4, "BadRequest"), (0, "BadRequest"),
        (5, "BadRequest"), (6, "BadRequest"),
    ]  # fmt: skip


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
plausible = st.fixed_dictionaries(
    {
        "v": st.just(1),
        "id": st.integers(0, 9),
        "op": st.sampled_from(["pull", "get", "find", "offsets", "seek", "topics", "ping"]),
    },
    optional={
        "topic": st.sampled_from(["TopicTest", "no-such-topic", "../..", ""]) | anything,
        "queue": st.integers(-2, 9) | anything,
        "offset": st.integers(-2, 99) | st.sampled_from([2**63 - 1, 2**62, -(2**63)]) | anything,
        "max_messages": st.integers(-1, 99) | anything,
        "max_bytes": st.integers(-1, 9_999) | anything,
        "tags": st.sampled_from(["TagA || TagB", "*", "||"]) | anything,
        "physical_offset": st.integers(-2, 10**7) | anything,
        "msg_id": anything,
        "unique_key": anything,
        "key": st.text(max_size=5) | anything,
        "cursor": st.from_regex(r"\d{1,17}:\d{1,12}:\d{1,20}", fullmatch=True) | anything,
        "begin": anything,
        "end": anything,
        "timestamp": st.integers(-(2**63), 2**63 - 1) | anything,
        "boundary": st.sampled_from(["lower", "upper", "?"]),
        "unique": st.booleans() | anything,
        "wait_ms": st.just(0) | st.just(10) | anything,
    },
)


FUZZ = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture
def fuzzed(desk: OpenDesk) -> Desk:
    return desk("small-clean")


@FUZZ
@given(header=plausible, topic=st.integers(0, 20))
def test_any_request_is_answered_refused_or_held(
    fuzzed: Desk, header: dict[str, Any], topic: int
) -> None:
    queues = facts("small-clean").state["queues"]
    if header.get("topic") == "TopicTest":
        header["topic"] = queues[topic % len(queues)]["topic"]
    before = len(fuzzed.sent)
    fuzzed.service.handle(Received(b"p", pack(header), None), fuzzed.now)
    held = fuzzed.service.desk.holds.count
    assert len(fuzzed.sent) - before == 1 - held
    fuzzed.service.desk.stop()
    assert len(fuzzed.sent) == before + 1 == fuzzed.counted(REQUESTS)
    assert fuzzed.sent[-1].error in (
        "", "BadRequest", "NotFound", "UnknownTopic", "UnknownOperation",
    )  # fmt: skip


@FUZZ
@given(st.binary(max_size=300), st.none() | st.binary(max_size=20))
def test_any_bytes_are_refused_or_answered(
    fuzzed: Desk, header: bytes, payload: bytes | None
) -> None:
    before = len(fuzzed.sent)
    fuzzed.service.handle(Received(b"p", header, payload), fuzzed.now)
    fuzzed.service.desk.stop()
    assert len(fuzzed.sent) == before + 1 == fuzzed.counted(REQUESTS)


# Held pulls


class Spot(NamedTuple):
    """A place in a queue of a golden store, and log offsets around the message there."""

    queue: Queue
    offset: int
    before: int
    after: int
    tags: str


def spot(name: str, tagged: bool = False) -> Spot:
    """The last of many messages of a queue: the log can be hidden before and shown after it."""
    found = [
        message
        for message in facts(name).messages
        if message["queued"] and message["queueOffset"] > 20
        and (not tagged or properties_of(message).get("TAGS"))
    ]  # fmt: skip
    last = found[-1]
    return Spot(
        Queue(last["topic"], last["queueId"]),
        last["queueOffset"],
        last["physicalOffset"],
        last["physicalOffset"] + last["storeSize"],
        properties_of(last).get("TAGS", ""),
    )


def hold(reader: Desk, where: Spot, peer: bytes = b"p", **fields: Any) -> None:
    """Asks for the message at `where`, which cannot be read yet."""
    held = reader.service.desk.holds.count
    topic, queue = where.queue
    place = {"topic": topic, "queue": queue, "offset": where.offset, "wait_ms": 10_000}
    reader.ask("pull", peer, **{**place, **fields})
    assert reader.service.desk.holds.count == held + 1, reader.sent[-1:]


@pytest.fixture
def waiting(desk: OpenDesk) -> tuple[Desk, Spot]:
    """A reader of a log that ends just before the message of a spot."""
    reader, where = desk("small-clean"), spot("small-clean", tagged=True)
    reader.living.begin_epoch(where.before)
    return reader, where


def test_a_held_pull_is_answered_when_its_queue_has_grown(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    hold(reader, where)
    reader.grow(where.before, where.queue)
    assert reader.sent == []
    ours = shard_of(where.queue, 2)
    others = (Queue(where.queue.topic, number) for number in range(99))
    reader.grow(where.after, next(one for one in others if shard_of(one, 2) != ours))
    assert reader.sent == []
    reader.grow(where.after, where.queue)
    (reply,) = reader.sent
    assert reply.header["status"] == "FOUND"
    assert [record.physical_offset for record in reply.records] == [where.before]
    assert reader.service.desk.holds.count == 0
    # It waited because it was told to.
    assert (reader.counted(REQUESTS, op="pull"), reader.counted(DURATION)) == (1, 0)


def test_a_held_pull_is_found_when_every_hint_was_lost(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    hold(reader, where)
    reader.living.publish(where.after)
    reader.store.refresh()
    reader.service.desk.wake({0, 1})
    assert [reply.header["status"] for reply in reader.sent] == ["FOUND"]


def test_while_one_pull_has_no_patience_the_log_is_followed_for_all(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    desk = reader.service.desk
    hold(reader, where, b"a", patience_ms=50)
    hold(reader, where, b"b")
    hold(reader, where, b"c", patience_ms=70)
    assert desk.holds.patience_s == 0
    for held in desk.holds.forget(b"b"):
        assert held.is_over
    assert desk.holds.patience_s == 0.05
    reader.grow(where.after, where.queue)
    assert sorted(reply.peer for reply in reader.sent) == [b"a", b"c"]


def test_what_the_files_got_without_a_hint_before_the_log_was_followed_answers_a_held_pull(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    hold(reader, where, b"a")
    hold(reader, where, b"b", tags=where.tags)
    assert not reader.service.desk.tail.follows
    reader.living.publish(where.after)
    reader.store.refresh()
    reader.service.desk.follow(reader.now)
    assert reader.service.desk.tail.begin == where.after
    assert [(reply.peer, reply.header["status"]) for reply in reader.sent] == [
        (b"a", "FOUND"),
        (b"b", "FOUND"),
    ]


def test_a_held_pull_is_answered_from_the_log_before_its_worker_has_placed_the_message(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    reader.service.desk.follow(reader.now)
    hold(reader, where, b"a")
    hold(reader, where, b"b")
    hold(reader, where, b"c", tags="no-such-tag")
    reader.living.log.publish(appended=where.after, readable=where.after)
    reader.store.refresh()
    reader.service.desk.follow(reader.now)
    assert [reply.peer for reply in reader.sent] == [b"a", b"b"]
    for reply in reader.sent:
        assert [record.physical_offset for record in reply.records] == [where.before]
        assert reply.header["next_begin_offset"] == where.offset + 1 == reply.header["max_offset"]
        assert reply.header["min_offset"] == 0
    # Who comes later gets the message, and waits behind it, as if its unit stood there.
    late = reader.get("pull", topic=where.queue.topic, queue=where.queue.queue_id,
                      offset=where.offset)  # fmt: skip
    assert (late.header["status"], late.payload) == ("FOUND", reader.sent[0].payload)
    hold(reader, where._replace(offset=where.offset + 1))
    reader.service.desk.time_out(reader.now + 10)
    ends = [reply.header["next_begin_offset"] for reply in reader.sent[-2:]]
    assert ends == [where.offset + 1] * 2


@pytest.mark.parametrize("op", ["pull", "get", "offsets"])
def test_what_is_stored_is_read_at_once_although_nobody_waits_and_its_worker_is_late(
    waiting: tuple[Desk, Spot], op: str
) -> None:
    reader, where = waiting
    topic, queue = where.queue
    place = {"topic": topic, "queue": queue, "offset": where.offset}
    reader.living.log.publish(appended=where.after, readable=where.after)
    reply = reader.get(op, **place)
    if op == "offsets":
        assert reply.header["queues"] == [
            {"queue_id": queue, "min_offset": 0, "max_offset": where.offset + 1, "behind": False}
        ]
    else:
        record = decode(bytes(reply.payload or b""), 0)
        assert isinstance(record, Record)
        assert record.physical_offset == where.before
    # Recovery cuts the log: what it had is not there any more.
    reader.living.begin_epoch(where.before)
    reply = reader.get(op, **place)
    if op == "offsets":
        assert reply.header["queues"][0]["max_offset"] == where.offset
    else:
        assert "FOUND" not in reply.header.values()
        assert reply.payload is None


def test_a_stream_is_answered_again_and_again_until_its_time_is_up(desk: OpenDesk) -> None:
    reader, where = desk("small-clean"), spot("small-clean")
    rows = [m for m in facts("small-clean").messages
            if Queue(m["topic"], m["queueId"]) == where.queue][-4:]  # fmt: skip
    reader.living.begin_epoch(rows[0]["physicalOffset"])
    reader.store.refresh()
    reader.service.desk.follow(reader.now)
    hold(reader, where._replace(offset=rows[0]["queueOffset"]), stream=True)
    for row in rows:
        reader.living.publish(row["physicalOffset"] + row["storeSize"])
        reader.store.refresh()
        reader.service.desk.follow(reader.now)
    reader.service.desk.time_out(reader.now + 10)
    *parts, last = reader.sent
    assert b"".join(bytes(part.payload or b"") for part in parts) == b"".join(
        record.raw for part in parts for record in part.records
    )
    found = [record.head.queue_offset for part in parts for record in part.records]
    assert found == [row["queueOffset"] for row in rows]
    assert len(parts) > 1
    assert all(part.header["more"] for part in parts)
    assert "more" not in last.header
    assert last.header["status"] == "OFFSET_OVERFLOW_ONE"
    assert last.header["next_begin_offset"] == rows[-1]["queueOffset"] + 1
    assert reader.service.desk.holds.count == 0


@pytest.mark.parametrize("bound", [{"max_messages": 1}, {"max_bytes": 100}])
def test_a_stream_ends_where_one_answer_would_have(
    waiting: tuple[Desk, Spot], bound: dict[str, Any]
) -> None:
    reader, where = waiting
    reader.service.desk.follow(reader.now)
    hold(reader, where, stream=True, **bound)
    reader.service.desk.follow(reader.now)
    reader.living.log.publish(appended=where.after, readable=where.after)
    reader.store.refresh()
    reader.service.desk.follow(reader.now)
    (reply,) = reader.sent
    assert len(reply.records) == 1
    assert "more" not in reply.header
    assert reader.service.desk.holds.count == 0


def test_a_held_pull_is_answered_when_its_time_is_up(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    hold(reader, where, wait_ms=500)
    reader.service.desk.time_out(reader.now + 0.499)
    assert reader.sent == []
    reader.service.desk.time_out(reader.now + 0.5)
    (reply,) = reader.sent
    assert reply.header["status"] == "OFFSET_OVERFLOW_ONE"
    assert reply.header["next_begin_offset"] == reply.header["max_offset"] == where.offset
    assert reply.payload is None


def test_a_message_that_the_filter_refuses_leaves_the_pull_held_and_moves_it_on(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    hold(reader, where, tags="no-such-tag")
    reader.grow(where.after, where.queue)
    assert reader.sent == []
    reader.service.desk.time_out(reader.now + 10)
    (reply,) = reader.sent
    assert reply.header["status"] == "NO_MATCHED_MESSAGE"
    assert reply.header["next_begin_offset"] == where.offset + 1


def test_a_message_that_the_filter_takes_answers_the_pull(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    hold(reader, where, tags=f"no-such-tag || {where.tags}")
    reader.grow(where.after, where.queue)
    (reply,) = reader.sent
    assert [record.tags for record in reply.records] == [where.tags]


def test_tags_match_by_their_text_where_a_broker_compares_hashes(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    same_hash = chr(ord(where.tags[0]) + 1) + chr(ord(where.tags[1]) - 31) + where.tags[2:]
    hold(reader, where, tags=same_hash)
    reader.grow(where.after, where.queue)
    assert reader.sent == []


def test_equal_pulls_of_many_peers_are_all_answered(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    peers = {bytes([number]) for number in range(50)}
    for peer in peers:
        hold(reader, where, peer)
    reader.grow(where.after, where.queue)
    assert {reply.peer for reply in reader.sent} == peers
    assert {reply.payload for reply in reader.sent} == {reader.sent[0].payload}


def test_a_peer_that_is_gone_is_sent_to_once(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    for _ in range(20):
        hold(reader, where, b"gone")
    reader.gone.add(b"gone")
    reader.grow(where.after, where.queue)
    assert len(reader.sent) == 1
    assert reader.service.desk.holds.count == 0


def test_a_pull_that_cannot_wait_is_answered_at_once(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    topic, queue = where.queue
    reply = reader.get("pull", topic=topic, queue=queue, offset=where.offset)
    assert reply.header["status"] == "OFFSET_OVERFLOW_ONE"
    for offset, status in ((-1, "OFFSET_TOO_SMALL"), (where.offset + 1, "OFFSET_OVERFLOW_BADLY")):
        reply = reader.get("pull", topic=topic, queue=queue, offset=offset, wait_ms=1_000)
        assert reply.header["status"] == status
    reply = reader.get("pull", topic=topic, queue=99, offset=5, wait_ms=1_000)
    assert (reply.header["status"], reply.header["next_begin_offset"]) == ("NO_MESSAGE_IN_QUEUE", 0)


def test_a_pull_of_a_queue_that_is_not_there_yet_waits_from_offset_0(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    hold(reader, where, queue=99, offset=0)
    reader.service.desk.wake_all()
    assert reader.sent == []
    reader.service.desk.time_out(reader.now + 10)
    assert reader.sent[0].header["status"] == "NO_MESSAGE_IN_QUEUE"


def test_a_log_that_was_cut_below_a_held_pull_answers_it(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    hold(reader, where)
    earlier = [
        message["physicalOffset"]
        for message in facts("small-clean").messages
        if Queue(message["topic"], message["queueId"]) == where.queue
    ][-5]
    reader.living.begin_epoch(earlier)
    reader.store.refresh()
    reader.service.desk.wake_all()
    (reply,) = reader.sent
    assert reply.header["status"] == "OFFSET_OVERFLOW_BADLY"
    assert reply.header["next_begin_offset"] == reply.header["max_offset"] < where.offset


def test_one_held_pull_too_many_is_refused_as_busy(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    reader.service.desk.holds._limit = 3
    for _ in range(3):
        hold(reader, where)
    topic, queue = where.queue
    reply = reader.get("pull", topic=topic, queue=queue, offset=where.offset, wait_ms=1)
    assert reply.error == "NodeBusy"
    assert reply.header["error"]["retriable"]
    assert reader.get("pull", topic=topic, queue=queue, offset=where.offset).error == ""


def test_stopping_answers_every_held_pull(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    for _ in range(5):
        hold(reader, where)
    reader.service.desk.stop()
    assert [reply.header["status"] for reply in reader.sent] == ["OFFSET_OVERFLOW_ONE"] * 5


def test_a_filter_that_refuses_thousands_of_messages_lets_others_have_their_turn(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    reader.store.settings = replace(reader.store.settings, max_filter_message_size=20)
    hold(reader, where, tags="no-such-tag", max_messages=1)
    (held,) = reader.service.desk.holds.of(where.queue)
    held.next_offset = max(0, where.offset - 200)
    looks = 0
    reader.service.desk.wake({0, 1})
    while reader.service.desk.unfinished:
        looks += 1
        reader.service.desk.wake(set())
    assert looks >= 2
    assert held.next_offset == where.offset
    assert reader.service.desk.holds.count == 1


# While a queue worker is behind


def lag(reader: Desk, end: int, state: int = RUNNING) -> None:
    """The queue workers have come back, and have only got to `end` of the log so far."""
    for worker in reader.living.workers:
        worker.publish(dispatched=end, pid=worker.read().pid + 1, state=state)
    reader.store.refresh()
    reader.service.desk.wake_all()
    reader.service.desk.settle()


def test_a_worker_that_starts_again_sends_no_consumer_back(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    hold(reader, where)
    lag(reader, where.before // 2)
    lag(reader, where.before // 2, STARTING)
    lag(reader, where.before - 1)
    assert reader.sent == []
    lag(reader, where.before)
    assert reader.sent == []
    reader.grow(where.after, where.queue)
    assert [reply.header["status"] for reply in reader.sent] == ["FOUND"]


def test_a_pull_beyond_what_a_late_worker_has_seen_is_answered_when_it_has_caught_up(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    lag(reader, where.before // 2)
    for offset in (where.offset, where.offset + 1):
        hold(reader, where, offset=offset, wait_ms=0)
    lag(reader, where.before)
    found = [(reply.header["status"], reply.header["next_begin_offset"]) for reply in reader.sent]
    assert found == [("OFFSET_OVERFLOW_ONE", where.offset), ("OFFSET_OVERFLOW_BADLY", where.offset)]


def test_a_late_worker_is_waited_for_a_second_and_no_longer(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    lag(reader, where.before // 2)
    hold(reader, where, wait_ms=0)
    reader.service.desk.time_out(reader.now + 0.9)
    assert reader.sent == []
    reader.service.desk.time_out(reader.now + 1.1)
    assert [reply.error for reply in reader.sent] == ["ServiceNotAvailable"]


def test_the_end_of_a_queue_is_decided_although_the_log_grows_on(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    lag(reader, where.before // 2)
    hold(reader, where, offset=where.offset + 9)
    reader.living.log.publish(readable=where.after)
    lag(reader, where.before)
    assert [reply.header["status"] for reply in reader.sent] == ["OFFSET_OVERFLOW_BADLY"]


def test_what_a_late_worker_has_seen_is_answered_at_once(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    lag(reader, where.before // 2)
    topic, queue = where.queue
    assert reader.get("pull", topic=topic, queue=queue, offset=0).header["status"] == "FOUND"


def test_a_queue_s_bounds_say_whether_its_worker_may_have_more(waiting: tuple[Desk, Spot]) -> None:
    reader, where = waiting
    topic, queue = where.queue

    def is_behind() -> bool:
        (row,) = reader.get("offsets", topic=topic, queue=queue).header["queues"]
        return bool(row["behind"])

    assert not is_behind()
    for dispatched, state in (
        (where.before // 2, RUNNING),
        (where.before, STARTING),
        (where.before, DAMAGED),
    ):
        for worker in reader.living.workers:
            worker.publish(damaged_at=where.before)
        lag(reader, dispatched, state)
        assert is_behind()
    lag(reader, where.before)
    assert not is_behind()


def test_who_reads_past_where_a_worker_stopped_before_damage_is_told(
    waiting: tuple[Desk, Spot],
) -> None:
    """It is not started again: nobody will ever say what the queue has behind its last unit."""
    reader, where = waiting
    hold(reader, where)
    for worker in reader.living.workers:
        worker.publish(state=DAMAGED, damaged_at=where.before)
    reader.store.refresh()
    reader.service.desk.time_out(reader.now + 11)
    assert [reply.error for reply in reader.sent] == ["StoreDamaged"]
    topic, queue = where.queue
    place = {"topic": topic, "queue": queue}
    for wait_ms in (0, 10_000):
        for offset in (where.offset, where.offset + 5):
            refused = reader.get("pull", **place, offset=offset, wait_ms=wait_ms)
            assert refused.error == "StoreDamaged"
            assert f"offset {where.before}" in refused.header["error"]["reason"]
    assert reader.get("pull", **place, offset=0).header["status"] == "FOUND"


def test_a_page_that_an_earlier_node_left_before_damage_counts_no_more(
    waiting: tuple[Desk, Spot],
) -> None:
    reader, where = waiting
    for worker in reader.living.workers:
        worker.publish(state=DAMAGED, damaged_at=where.before)
    topic, queue = where.queue
    asked = {"topic": topic, "queue": queue, "offset": where.offset, "wait_ms": 10_000}
    assert reader.get("pull", **asked).error == "StoreDamaged"
    epoch = reader.living.log.read().epoch + 1
    ends = dict.fromkeys(
        ("epoch_start", "appended", "committed", "flushed", "readable"), where.before
    )
    reader.living.log.begin_epoch(epoch, min_offset=reader.living.start, **ends)
    answered = len(reader.sent)
    hold(reader, where)
    assert len(reader.sent) == answered, "it waits, and is not refused"


def test_a_queue_whose_files_were_made_anew_is_read_on(golden_copy: GetStore) -> None:
    reader = Desk(LivingStore(golden_copy("small-clean"), facts("small-clean")))
    where = spot("small-clean")
    reader.living.begin_epoch(where.before)
    hold(reader, where)
    topic, queue = where.queue
    folder = reader.living.root / CONSUME_QUEUE_DIR / topic / str(queue)
    for path in folder.iterdir():
        anew = path.with_suffix(".new")
        anew.write_bytes(path.read_bytes())
        path.write_bytes(bytes(len(path.read_bytes())))
        anew.rename(path)
    reader.grow(where.after, where.queue)
    assert [reply.header["status"] for reply in reader.sent] == ["FOUND"]
    reader.close()


def test_a_record_whose_tags_are_damaged_is_not_passed_over(golden_copy: GetStore) -> None:
    reader = Desk(LivingStore(golden_copy("crc32-property"), facts("crc32-property")))
    where = spot("crc32-property", tagged=True)
    segment = reader.living.settings.mapped_file_size_commit_log
    start = where.before - where.before % segment
    path = reader.living.root / COMMIT_LOG_DIR / offset_file_name(start)
    data = bytearray(path.read_bytes())
    at = data.index(b"TAGS\x01", where.before - start) + 5
    data[at] ^= 1
    path.write_bytes(data)
    topic, queue = where.queue
    pull = {"topic": topic, "queue": queue, "offset": where.offset, "tags": where.tags}
    reply = reader.get("pull", **pull)
    assert reply.error == "MessageDamaged"
    assert reply.header["error"]["offset"] == where.before
    reader.close()
