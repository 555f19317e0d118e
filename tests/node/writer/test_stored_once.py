"""Messages with one unique key that are sent again are stored once, whatever happens between."""

import logging
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from node.runtime.settings import Settings
from node.runtime.stored_times import ClockHistory, Moment, write_clock
from node.store.config.topics_file import TopicsFile
from node.store.log.reader import Bounds
from node.writer import repeats
from node.writer.appender import Appender, AppendRequest, Placement, RepeatedMessage
from node.writer.log.commit_log import CommitLog
from node.writer.repeats import (
    KeyTable,
    KeyWindow,
    MessageKey,
    StoredOnce,
    check_asked,
    unique_hashes,
)
from node.writer.topic_table import TopicTable
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import BadRequest, IllegalMessage, NodeBusy
from protocol.ids import Host, Queue
from protocol.record.append import Put
from protocol.record.codec import Filler, Record, decode
from protocol.record.columns import scan
from protocol.record.encode import NewMessage, check_message, encode_batch, record_bytes
from protocol.record.patch import AppendRules

SEGMENT_BYTES = 64 * 1024
WINDOW_MS = 10_000
STORE_HOST = Host(bytes([127, 0, 0, 1]), 7850)


@pytest.fixture(scope="module", autouse=True)
def _ways(way: str) -> str:
    """Every test of this file runs with and without the kernel."""
    return way


class Once:
    """A log in a folder whose appends store each unique key once."""

    def __init__(self, root: Path, keys_max: int = 40_000) -> None:
        self.root = root
        (root / "commitlog").mkdir(parents=True)
        (root / "keelog/run").mkdir(parents=True)
        self.keys_max = keys_max
        self.log = CommitLog(root, SEGMENT_BYTES, 0)
        self.log.open_tail()
        topics = TopicTable(TopicsFile(root), Settings(), [], lambda: 1_000)
        rules = AppendRules(4 * 1024 * 1024, True)
        self.placement = Placement(self.log, {})
        self.appender = Appender(self.placement, topics, rules, STORE_HOST.to_bytes())
        self.removed = NOTHING_REMOVED
        self.now_ms = 1_000_000
        self.shift_ms = 0
        """By how much the wall clock is ahead."""
        self.window, self.once = self._started()

    def _started(self) -> tuple[KeyWindow, StoredOnce]:
        bounds, removed = Bounds(0, self.log.end), lambda: self.removed
        last_ms = self.placement.last_store_timestamp
        window = KeyWindow(self.root, WINDOW_MS, self.keys_max, bounds, last_ms, self.moment)
        append = self.appender.append
        return window, StoredOnce(window, append, lambda: (0, self.log.end), removed, True)

    def moment(self) -> Moment:
        return Moment(self.now_ms + self.shift_ms, self.now_ms)

    def start(self) -> None:
        """As a writer that starts: nothing is known but the log."""
        self.window.close()
        self.window, self.once = self._started()

    def append(self, *requests: AppendRequest) -> None:
        self.once.append(list(requests), self.now_ms + self.shift_ms)
        self.once.turn()

    def records(self) -> list[Record]:
        found: list[Record] = []
        for path in sorted((self.root / "commitlog").iterdir()):
            data, base, position = path.read_bytes(), int(path.name), 0
            while isinstance(here := decode(data, position, base + position), Record):
                found.append(here)
                position += here.size
            if not isinstance(here, Filler):
                break
        return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Once]:
    made = Once(tmp_path / "store")
    yield made
    made.window.close()
    made.log.close(unlink_next=True)


def message(key: str, topic: str = "orders", queue_id: int = 0, body: bytes = b"x") -> NewMessage:
    return NewMessage(topic=topic, body=body, queue_id=queue_id, unique_key=key)


def asking(*messages: NewMessage) -> AppendRequest:
    encoded = encode_batch(messages, True)
    crc = zlib.crc32(encoded.records)
    return AppendRequest(encoded.records, len(encoded.sizes), crc=crc, repeats={})


def plain(*messages: NewMessage) -> AppendRequest:
    encoded = encode_batch(messages, True)
    return AppendRequest(encoded.records, len(encoded.sizes))


def draft(one: NewMessage) -> AppendRequest:
    properties = check_message(one, True, 4 * 1024 * 1024)
    put = Put(one.topic, one.body, one.queue_id, properties, one.born_timestamp, one.born_host)
    size = record_bytes(one, properties, True)
    return AppendRequest(b"", 1, draft=put, draft_bytes=size, repeats={})


def test_a_repeated_message_gets_the_place_of_the_first(log: Once) -> None:
    first, again = asking(message("k", queue_id=3)), asking(message("k", queue_id=5, body=b"y"))
    log.append(first)
    log.now_ms += 500
    log.append(again)
    assert first.repeats == {}
    assert again.repeats == {0: RepeatedMessage(3, 0, 0, 1_000_000)}
    assert again.queues == (("orders", 3, 0, 1),)
    assert (again.physical_offset, again.end) == (0, first.end)
    assert [record.body for record in log.records()] == [b"x"]


def test_a_message_that_the_node_encodes_is_stored_once_too(log: Once) -> None:
    log.append(draft(message("k")))
    again = draft(message("k"))
    log.append(again)
    assert again.queues == (("orders", 0, 0, 1),)
    assert len(log.records()) == 1


def test_a_request_that_does_not_ask_is_stored_and_known(log: Once) -> None:
    log.append(plain(message("k")))
    log.append(plain(message("k")))
    again = asking(message("k"))
    log.append(again)
    assert again.repeats is not None
    assert again.repeats[0].queue_offset == 0
    assert len(log.records()) == 2


def test_another_topic_or_key_is_another_message(log: Once) -> None:
    log.append(asking(message("k")), asking(message("k", topic="other")), asking(message("K")))
    assert len(log.records()) == 3


def test_messages_without_a_key_are_stored_each_time(log: Once) -> None:
    log.append(asking(message("")), asking(message("")))
    log.append(asking(message(""), message("")))
    assert len(log.records()) == 4


def test_of_a_batch_the_new_messages_are_stored(log: Once) -> None:
    log.append(asking(message("a"), message("b", queue_id=1)))
    mixed = asking(message("c"), message("b", queue_id=1), message("d"), message("c"))
    log.append(mixed)
    assert mixed.error is None
    assert mixed.count == 2
    assert mixed.queues == (("orders", 0, 1, 2),) or mixed.queues == [("orders", 0, 1, 2)]
    records = log.records()
    assert [record.unique_key for record in records] == ["a", "b", "c", "d"]
    assert mixed.repeats is not None
    places = {row: one.physical_offset for row, one in mixed.repeats.items()}
    assert places == {1: records[1].physical_offset, 3: records[2].physical_offset}
    assert mixed.repeats[3].queue_offset == 1


def test_requests_of_one_turn_see_each_other(log: Once) -> None:
    requests = [asking(message("k")), plain(message("p")), asking(message("p"), message("k"))]
    log.append(*requests)
    assert [record.unique_key for record in log.records()] == ["k", "p"]
    assert sorted(requests[2].repeats or {}) == [0, 1]


def test_the_window_ends_on_the_millisecond(log: Once) -> None:
    log.append(asking(message("k")))
    log.now_ms += WINDOW_MS
    log.append(asking(message("k")))
    assert len(log.records()) == 1
    log.now_ms += 1
    log.append(asking(message("k")))
    assert len(log.records()) == 2
    log.now_ms += WINDOW_MS
    again = asking(message("k"))
    log.append(again)
    assert again.repeats is not None
    assert again.repeats[0].queue_offset == 1


def test_keys_of_one_hash_are_different_messages(log: Once) -> None:
    keys = ["Aa", "BB"]
    assert len({MessageKey("orders", key.encode(), b"").hash for key in keys}) == 1
    for key in keys * 2:
        log.append(asking(message(key)))
    assert [record.unique_key for record in log.records()] == keys


def test_what_was_removed_is_stored_again(log: Once) -> None:
    log.append(asking(message("k")))
    log.removed = Removed().without_topic("orders", log.log.end, 0)
    log.append(asking(message("k")))
    log.append(asking(message("k")))
    assert len(log.records()) == 2
    log.removed = log.removed.with_purged({Queue("orders", 0): log.log.end})
    log.append(asking(message("k")))
    assert len(log.records()) == 3


def test_a_bad_request_gets_the_error_that_it_always_got(log: Once) -> None:
    torn = asking(message("k"))
    torn.records, torn.crc = bytes(torn.records[:-1]), None
    lying = asking(message("k"))
    lying.crc = 1
    log.append(torn, lying, asking(message("k")))
    assert isinstance(torn.error, IllegalMessage)
    assert isinstance(lying.error, BadRequest)
    assert len(log.records()) == 1


def test_while_the_log_is_unread_who_asks_is_refused(
    log: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(*(plain(message(f"k{number}", body=bytes(20_000))) for number in range(9)))
    monkeypatch.setattr(repeats, "CATCH_UP_BYTES", 50_000)
    monkeypatch.setattr(repeats, "FOLLOW_BYTES", 50_000)
    log.start()
    early = asking(message("k8"))
    log.append(early, plain(message("other")))
    assert isinstance(early.error, NodeBusy)
    for _ in range(9):
        log.once.turn()
    assert not log.once.is_behind
    late = asking(message("k8"))
    log.append(late)
    assert late.error is None
    assert len(log.records()) == 10


def test_while_messages_come_less_is_read_in_a_turn_and_the_log_says_when_all_is(
    log: Once, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(*(plain(message(f"k{number}", body=bytes(20_000))) for number in range(9)))
    monkeypatch.setattr(repeats, "CATCH_UP_BYTES", 50_000)
    monkeypatch.setattr(repeats, "FOLLOW_BYTES", 200_000)
    monkeypatch.setattr(repeats, "FOLLOW_BUSY_BYTES", 30_000)
    log.start()
    with caplog.at_level(logging.INFO, "keelog.writer"):
        turns = 0
        while log.once.is_behind:
            log.once.turn(is_busy=True)
            turns += 1
        log.once.turn()
    assert 4 <= turns <= 8
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the log is read for repeated keys", "repeated keys are known"]
    log.start()
    log.once.turn()
    assert not log.once.is_behind


def test_keys_after_damage_at_which_a_look_stops_are_known(
    log: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(*(plain(message(f"k{number}", body=bytes(20_000))) for number in range(9)))
    bad = log.records()[4]
    segment = (
        log.root / "commitlog" / f"{bad.physical_offset // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
    )
    with segment.open("r+b") as file:
        file.seek(bad.physical_offset % SEGMENT_BYTES + 4)
        file.write(bytes(4))
    monkeypatch.setattr(repeats, "FOLLOW_BYTES", bad.physical_offset + 100)
    log.start()
    while log.once.is_behind:
        log.once.turn()
    again = asking(message("k8", body=bytes(20_000)))
    log.append(again)
    assert again.repeats


def test_what_is_unread_shrinks_however_much_comes_in_a_turn(
    log: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "CATCH_UP_BYTES", 50_000)
    monkeypatch.setattr(repeats, "FOLLOW_BUSY_BYTES", 30_000)
    log.append(*(plain(message(f"k{number}", body=bytes(20_000))) for number in range(12)))
    log.start()
    turns = 0
    while log.once._is_far_behind():
        log.once.append([plain(message("other", body=bytes(20_000))) for _ in range(3)], log.now_ms)
        log.once.turn(is_busy=True)
        turns += 1
        assert turns < 20


def test_only_a_node_with_a_window_may_be_asked() -> None:
    with pytest.raises(BadRequest, match="does not look for repeated keys"):
        check_asked(1, Settings())
    check_asked(10_000, Settings(idempotent_window=1))
    with pytest.raises(BadRequest, match="10000 are allowed"):
        check_asked(10_001, Settings(idempotent_window=1))
    with pytest.raises(BadRequest, match="deliver_ms or delay_ms"):
        check_asked(1, Settings(idempotent_window=1), is_timer=True)
    with pytest.raises(BadRequest, match="transient_store_pool_enable"):
        Settings(idempotent_window=1, transient_store_pool_enable=True)


class Stored(NamedTuple):
    """A message as the model stores it."""

    key: tuple[str, str]
    time: int


class Model:
    """The messages that should be in the log."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []

    def take(self, one: NewMessage, asks: bool, now_ms: int) -> int | None:
        """The number of the first stored one that this one repeats; None when it is stored."""
        key = one.topic, one.unique_key
        if asks and one.unique_key:
            for number, there in enumerate(self.stored):
                if there.key == key and there.time >= now_ms - WINDOW_MS:
                    return number
        self.stored.append(Stored(key, now_ms))
        return None


@pytest.mark.parametrize("seed", range(3))
def test_any_sends_starts_and_times_store_what_the_model_stores(log: Once, seed: int) -> None:
    rng, model = random.Random(seed), Model()
    keys = [f"{rng.choice(['Aa', 'BB'])}{rng.choice(['Aa', 'BB'])}{n}" for n in range(40)] + [""]
    repeated = 0
    for _ in range(80):
        group, expected = [], []
        for _ in range(rng.choice([1, 1, 2, 5])):
            asks = rng.random() < 0.7
            messages = [
                message(rng.choice(keys), rng.choice(["orders", "other"]), rng.randrange(3))
                for _ in range(rng.choice([1, 1, 3, 60]))
            ]
            group.append(asking(*messages) if asks else plain(*messages))
            expected.append([model.take(one, asks, log.now_ms) for one in messages])
        log.append(*group)
        records = log.records()
        assert [(one.topic, one.unique_key) for one in records] == [one.key for one in model.stored]
        for request, numbers in zip(group, expected, strict=True):
            assert request.error is None
            for row, number in enumerate(numbers):
                got = (request.repeats or {}).get(row)
                assert (got is None) == (number is None)
                if number is not None and got is not None:
                    repeated += 1
                    head = records[number].head
                    place = head.queue_id, head.queue_offset, head.physical_offset
                    assert (*place, head.store_timestamp) == got
        log.now_ms += rng.choice([0, 1, 700, 4_000])
        if rng.random() < 0.15:
            log.start()
    assert repeated > 300
    assert log.log.end > SEGMENT_BYTES


def test_a_table_keeps_the_newest_keys_in_bounded_memory() -> None:
    table, rng = KeyTable(1_000), random.Random(5)
    entered: list[tuple[int, int]] = []
    while len(entered) < 20_000:
        count = rng.choice([1, 1, 1, 40, 700, 3_000])
        rows = [(rng.randrange(300) * 7, len(entered) + number) for number in range(count)]
        entered += rows
        if count == 1:
            table.put(*rows[0])
        else:
            hashes, offsets = zip(*rows, strict=True)
            table.put_many(np.array(hashes, np.int32), np.array(offsets, np.int64))
        asked = [rng.randrange(300) * 7 for _ in range(rng.choice([1, 50]))]
        found = table.find(asked)
        newest = len(entered) - 1_000
        for row, key_hash in enumerate(asked):
            wanted = {at for own, at in entered if own == key_hash}
            got = {at for own, at in found if own == row}
            assert got <= wanted
            assert {at for at in wanted if at >= newest} <= got
    assert len(table._parts) == 5


def test_plain_and_columnar_look_ups_agree(log: Once) -> None:
    log.append(plain(*(message(f"k{number % 50}") for number in range(400))))
    log.once.turn()
    hashes = [MessageKey("orders", f"k{number}".encode(), b"").hash for number in range(80)]
    for part in log.window._table._parts:
        few = sorted(part.find_few(hashes))
        assert few == sorted(part.find_many(np.array(hashes, np.int64)))
        assert len(few) == 400


def test_the_hash_of_a_record_is_that_of_its_columns() -> None:
    messages = [message(key, topic) for key in ("k", "", "ä中", "x" * 300) for topic in ("a", "b")]
    messages += [NewMessage(topic="a", body=b"", queue_id=0, keys=("k", "l"), unique_key="u")]
    messages += [NewMessage(topic="a", body=b"", queue_id=0, keys=("only",))]
    columns = scan(encode_batch(messages, True).records, None, sealed=False).columns
    rows, hashes = unique_hashes(columns)
    expected = {
        row: MessageKey(one.topic, one.unique_key.encode(), b"").hash
        for row, one in enumerate(messages)
        if one.unique_key
    }
    assert dict(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


@pytest.mark.parametrize("shift_ms", [2 * 3_600_000, -2 * 3_600_000])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_window_is_as_long_as_it_says_when_the_clock_is_set(
    log: Once, shift_ms: int, restarts: bool
) -> None:
    log.append(asking(message("before")))
    log.shift_ms = shift_ms
    log.append(asking(message("meanwhile")))
    log.shift_ms = 0
    if restarts:
        log.start()
        log.once.turn()
    log.now_ms += WINDOW_MS - 1
    keys = ("meanwhile",) if restarts and shift_ms > 0 else ("before", "meanwhile")
    for key in keys:
        log.append(again := asking(message(key)))
        assert again.repeats, key
    log.now_ms += 2
    log.append(asking(message("after")))
    for key in (*keys, "after"):
        log.append(again := asking(message(key)))
        assert bool(again.repeats) == (key == "after"), key


def test_a_key_of_before_the_clock_was_set_forward_is_known_to_a_writer_that_starts(
    log: Once,
) -> None:
    write_clock(log.root, ClockHistory(log.moment(), ()))
    log.append(asking(message("before")))
    while log.log.end < 3 * SEGMENT_BYTES:
        log.append(asking(message(f"more {log.log.end}", body=bytes(SEGMENT_BYTES // 4))))
    log.shift_ms = 2 * 3_600_000
    log.append(asking(message("after")))
    log.start()
    log.once.turn()
    log.now_ms += WINDOW_MS - 1
    for key in ("before", "after"):
        log.append(again := asking(message(key)))
        assert again.repeats, key
    log.now_ms += 2
    log.append(again := asking(message("before")))
    assert not again.repeats
