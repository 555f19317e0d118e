"""`topic rm` and `topic purge` on a real node: gone for every reader, and for good."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import keelog
import keelog.aio
from keelog.cli.messages.reading import ConsumeChoice, TopicPrinter
from keelog.cli.messages.selectors import StartPoint
from keelog.cli.shapes import DamagedPlaces
from keelog.client.client import Client
from keelog.store import open_store
from keelog.testing import TestNode
from node.store.verify.verify import verify
from protocol.errors import BadRequest, NotFound, UnknownTopic
from protocol.ids import Queue
from tests.support.node import RunningNode, wait_until
from workers.rebuild import rebuild

pytestmark = pytest.mark.process
COUNT = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TestNode]:
    with TestNode(tmp_path, queue_workers=2) as running:
        yield running


@pytest.fixture
def client(node: TestNode) -> Iterator[Client]:
    with keelog.connect(node.endpoint) as connected:
        yield connected


@pytest.fixture
def shared(shared_node: RunningNode) -> Iterator[Client]:
    """Of the node of this process, for tests that leave it running."""
    with keelog.connect(shared_node.endpoint) as connected:
        yield connected


@pytest.fixture
def topic(keelog_topic: str) -> str:
    return keelog_topic


def bodies(client: Client, topic: str) -> list[bytes]:
    """All that a reader gets of a topic, queue by queue."""
    found: list[bytes] = []
    for queue in client.offsets(topic):
        at = queue.min_offset
        while at < queue.max_offset:
            pulled = client.pull(topic, queue.queue_id, at, wait=5)
            found += [message.body for message in pulled.messages]
            at = pulled.next_begin_offset
    return found


def stored(root: Path) -> dict[Queue, list[bytes]]:
    """All that an open store shows, by its queues; its scan must show the same."""
    with open_store(root) as store:
        found: dict[Queue, list[bytes]] = {}
        for queue in store.queues():
            reader = store.queue(*queue)
            assert reader is not None
            places = reader.units(reader.min_offset, reader.max_offset)["physical_offset"].tolist()
            found[queue] = [store.get(physical_offset=place).body for place in places]
        scanned = sorted(message.body for message in store.scan())
        assert scanned == sorted(body for of in found.values() for body in of)
    return {queue: of for queue, of in found.items() if of}


def fill(client: Client, topic: str, word: str, count: int = COUNT) -> list[keelog.Receipt]:
    return [
        client.send(topic, f"{word} {n}".encode(), queue_id=n % 2, keys=[f"k{n}"])
        for n in range(count)
    ]


def test_a_removed_topic_is_gone_for_every_reader(node: TestNode, client: Client) -> None:
    receipts = fill(client, "gone", "old")
    fill(client, "kept", "kept")
    gone = client.delete_topic("gone")
    assert gone.deleted
    assert gone.left_in_log_bytes > COUNT * 100
    assert gone.until is None, "the segment is still being written"
    assert [info.topic for info in client.topics()] == ["kept"]
    with pytest.raises(UnknownTopic):
        client.offsets("gone")
    with pytest.raises(UnknownTopic):
        list(client.find("gone", "k3"))
    pulled = client.pull("gone", 0, 0)
    assert (pulled.status, len(pulled.messages)) == ("NO_MESSAGE_IN_QUEUE", 0)
    first = receipts[0]
    for asked in (
        {"physical_offset": first.physical_offset},
        {"msg_id": first.msg_id},
        {"topic": "gone", "unique_key": first.unique_key},
        {"topic": "gone", "queue_id": 0, "queue_offset": 0},
    ):
        with pytest.raises(NotFound):
            client.get(**asked)
    assert sorted(bodies(client, "kept")) == sorted(f"kept {n}".encode() for n in range(COUNT))
    assert not client.delete_topic("gone")
    node.stop()
    assert {queue.topic for queue in stored(node.store)} == {"kept"}
    assert not (node.store / "consumequeue/gone").exists()
    assert verify(node.store, deep=False).findings == verify(node.store, deep=True).findings == []


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_new_topic_of_the_name_begins_at_0_and_stays_so(
    node: TestNode, client: Client, end: str
) -> None:
    fill(client, "t", "old")
    client.delete_topic("t")
    receipts = fill(client, "t", "new", 6)
    assert [receipt.queue_offset for receipt in receipts] == [0, 0, 1, 1, 2, 2]
    new = {Queue("t", q): [f"new {n}".encode() for n in range(q, 6, 2)] for q in (0, 1)}
    assert bodies(client, "t") == [*new[Queue("t", 0)], *new[Queue("t", 1)]]
    wait_until(lambda: len(list(client.find("t", "k5"))) == 1, "the index worker is late")
    assert len(list(client.find("t", "k1"))) == 1
    assert client.get(msg_id=receipts[1].msg_id).body == b"new 1"
    getattr(node, end)()
    assert stored(node.store) == new
    rebuild(node.store)
    assert stored(node.store) == new
    assert verify(node.store, deep=False).findings == verify(node.store, deep=True).findings == []
    shutil.rmtree(node.store / "consumequeue")
    assert stored(node.store) == new
    node.start()
    assert client.send("t", b"new 6", queue_id=0).queue_offset == 3
    assert bodies(client, "t") == [*new[Queue("t", 0)], b"new 6", *new[Queue("t", 1)]]


@pytest.mark.faults
def test_a_kill_of_every_process_right_after_the_answer_brings_nothing_back(
    node: TestNode, client: Client
) -> None:
    for turn in range(3):
        fill(client, "t", f"old {turn}")
        client.delete_topic("t")
        node.kill()
        assert stored(node.store) == {}
        if turn == 1:
            (node.store / "keelog/tails").unlink()
        node.start()
        assert [info.topic for info in client.topics()] == []
    assert client.send("t", b"new", queue_id=1).queue_offset == 0
    assert bodies(client, "t") == [b"new"]


@pytest.mark.faults
def test_a_kill_between_the_note_and_the_table_is_finished_by_the_next_start(
    node: TestNode, client: Client
) -> None:
    fill(client, "t", "old")
    table = (node.store / "config/topics.json").read_bytes()
    client.delete_topic("t")
    node.kill()
    (node.store / "config/topics.json").write_bytes(table)
    assert stored(node.store) == {}
    node.start()
    assert client.topics() == []
    assert "t" not in json.loads((node.store / "config/topics.json").read_text())


def test_a_removal_while_the_queue_workers_are_stopped_holds(
    node: TestNode, client: Client
) -> None:
    fill(client, "t", "old")
    assert len(bodies(client, "t")) == COUNT
    workers = [one.pid for one in client.status().processes if one.role == "queue"]
    assert len(workers) == 2
    for pid in workers:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    try:
        client.delete_topic("t")
        assert client.topics() == []
        with pytest.raises(UnknownTopic):
            client.offsets("t")
        assert client.send("t", b"new", queue_id=0).queue_offset == 0
    finally:
        for pid in workers:
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
    assert client.pull("t", 0, 0, wait=10).messages[0].body == b"new"
    assert bodies(client, "t") == [b"new"]


def test_a_held_pull_of_a_removed_topic_ends_as_for_an_unknown_topic(
    shared_node: RunningNode, shared: Client, topic: str
) -> None:
    fill(shared, topic, "old")
    with keelog.connect(shared_node.endpoint) as other, ThreadPoolExecutor(1) as pool:
        held = pool.submit(other.pull, topic, 0, COUNT // 2, wait=25)
        time.sleep(0.3)
        assert not held.done()
        shared.delete_topic(topic)
        pulled = held.result(timeout=10)
    unknown = shared.pull(f"{topic}-never", 0, COUNT // 2)
    assert (pulled.status, pulled.next_begin_offset) == (unknown.status, unknown.next_begin_offset)


def test_a_purge_raises_the_begin_and_leaves_the_offsets(node: TestNode, client: Client) -> None:
    receipts = fill(client, "t", "m")
    purged = client.purge_topic("t", before_offset=5, queue_id=0)
    assert [tuple(row) for row in purged.queues] == [(0, 5)]
    assert purged.left_in_log_bytes > 0

    def bounds() -> list[tuple[int, int]]:
        return [(q.min_offset, q.max_offset) for q in client.offsets("t")][:2]

    # While the queue worker lags, a begin is at most the number of units that it has written.
    wait_until(lambda: bounds() == [(5, 20), (0, 20)], f"the queues are {bounds()}")
    pulled = client.pull("t", 0, 0)
    assert (pulled.status, pulled.next_begin_offset) == ("OFFSET_TOO_SMALL", 5)
    with pytest.raises(NotFound):
        client.get(physical_offset=receipts[0].physical_offset)
    wait_until(lambda: len(list(client.find("t", "k39"))) == 1, "the index worker is late")
    assert list(client.find("t", "k0")) == []
    assert len(list(client.find("t", "k1"))) == 1
    time_ms = receipts[30].store_timestamp
    expected = [n for n in range(COUNT) if receipts[n].store_timestamp >= time_ms]
    client.purge_topic("t", before_time=time_ms)
    assert sorted(bodies(client, "t")) == sorted(f"m {n}".encode() for n in expected)
    all_gone = client.purge_topic("t", before_offset=2**62)
    assert [tuple(row) for row in all_gone.queues] == [(0, 20), (1, 20)]
    assert bodies(client, "t") == []
    assert client.send("t", b"next", queue_id=0).queue_offset == 20
    node.kill()
    assert stored(node.store) == {Queue("t", 0): [b"next"]}
    rebuild(node.store)
    assert stored(node.store) == {Queue("t", 0): [b"next"]}
    assert verify(node.store, deep=False).findings == verify(node.store, deep=True).findings == []
    node.start()
    assert bodies(client, "t") == [b"next"]
    assert [(q.min_offset, q.max_offset) for q in client.offsets("t")][:2] == [(20, 21), (20, 20)]


def test_a_purge_that_names_no_place_or_no_topic_is_refused(shared: Client, topic: str) -> None:
    shared.create_topic(topic, queues=1)
    with pytest.raises(UnknownTopic):
        shared.purge_topic(f"{topic}-never", before_offset=3)
    with pytest.raises(BadRequest):
        shared.purge_topic(topic)
    with pytest.raises(BadRequest):
        shared.purge_topic(topic, before_offset=3, queue_id=9)


def make_anew(client: Client, topic: str, count: int = 10) -> list[str]:
    client.delete_topic(topic)
    client.create_topic(topic, queues=2)
    fill(client, topic, "new", count)
    return sorted(f"new {n}" for n in range(count))


@pytest.mark.parametrize("cursor", [None, "billing"])
def test_a_follower_reads_all_of_a_topic_that_is_made_anew(
    shared: Client, topic: str, caplog: pytest.LogCaptureFixture, cursor: str | None
) -> None:
    shared.create_topic(topic, queues=2)
    fill(shared, topic, "old", 6)
    found: list[str] = []
    for message in shared.tail(topic, "earliest", cursor=cursor):
        found.append(message.body.decode())
        if len(found) == 6:
            expected = make_anew(shared, topic)
        if len(found) == 16:
            break
    assert sorted(found[6:]) == expected
    assert caplog.text.count(f"topic {topic} was removed") == 1
    if cursor is not None:
        left = shared.tail(topic, "earliest", cursor=cursor, until_end=True)
        assert [m.body for m in left] == [found[-1].encode()], "all before it were committed"


def test_a_read_up_to_an_end_that_was_removed_says_so(shared: Client, topic: str) -> None:
    shared.create_topic(topic, queues=2)
    fill(shared, topic, "old", 6)
    found = shared.tail(topic, "earliest", until_end=True, max_messages=1)
    next(found)
    make_anew(shared, topic)
    with pytest.raises(keelog.TopicRemoved):
        list(found)


def test_places_of_a_removed_topic_are_refused_by_name(shared: Client, topic: str) -> None:
    shared.create_topic(topic, queues=2)
    receipts = fill(shared, topic, "old", 6)

    def got(generation: int | None) -> bytes:
        found = shared.get(topic=topic, queue_id=0, queue_offset=2, generation=generation)
        return found.body

    (known_at,) = {queue.generation for queue in shared.offsets(topic)}
    assert got(receipts[4].physical_offset) == b"old 4"
    shared.purge_topic(topic, before_offset=1)
    assert shared.pull(topic, 0, 2, generation=known_at).count, "a purge makes none anew"
    make_anew(shared, topic)
    for generation in (known_at, receipts[4].physical_offset):
        with pytest.raises(keelog.TopicRemoved) as refused:
            shared.pull(topic, 0, 2, generation=generation)
        with pytest.raises(keelog.TopicRemoved):
            got(generation)
        with pytest.raises(keelog.TopicRemoved):
            shared.commit_cursor(topic, "billing", {0: 2}, generation=generation)
    now = shared.offsets(topic)[0].generation
    assert refused.value.generation == now
    assert shared.cursor(topic, "billing") == {}
    assert shared.pull(topic, 0, 2, generation=now).messages[0].body == b"new 4"
    assert got(None) == b"new 4", "taken as it is"


def test_a_pull_that_is_held_ends_when_its_topic_is_removed(shared: Client, topic: str) -> None:
    shared.create_topic(topic, queues=2)
    fill(shared, topic, "old", 2)
    (known_at,) = {queue.generation for queue in shared.offsets(topic)}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(shared.pull, topic, 0, 1, wait=20, generation=known_at)
        time.sleep(0.3)
        make_anew(shared, topic)
        with pytest.raises(keelog.TopicRemoved):
            held.result(timeout=10)


def test_offsets_that_a_program_keeps_begin_anew_with_the_topic(shared: Client, topic: str) -> None:
    shared.create_topic(topic, queues=2)
    receipts = fill(shared, topic, "old", 6)
    expected = make_anew(shared, topic)
    options: keelog.TailOptions = {"until_end": True, "generation": receipts[-1].physical_offset}
    found = shared.tail(topic, {0: 3, 1: 3}, **options)
    assert sorted(message.body.decode() for message in found) == expected


def test_a_follower_of_asyncio_reads_all_of_a_topic_that_is_made_anew(
    shared_node: RunningNode, shared: Client, topic: str
) -> None:
    shared.create_topic(topic, queues=2)
    fill(shared, topic, "old", 6)

    async def follow() -> list[str]:
        found: list[str] = []
        async with keelog.aio.connect(shared_node.endpoint) as own:
            async for message in own.tail(topic, "earliest", cursor="billing"):
                found.append(message.body.decode())
                if len(found) == 6:
                    await asyncio.to_thread(make_anew, shared, topic)
                if len(found) == 16:
                    return found
        raise AssertionError

    found = asyncio.run(asyncio.wait_for(follow(), 60))
    assert sorted(found[6:]) == sorted(f"new {n}" for n in range(10))


@pytest.mark.parametrize("is_merged", [False, True])
def test_consume_prints_all_of_a_topic_that_is_made_anew(
    shared: Client, topic: str, is_merged: bool
) -> None:
    shared.create_topic(topic, queues=2)
    fill(shared, topic, "old", 6)
    wanted = ConsumeChoice(topic, (), None, StartPoint("start"), None)
    found: list[str] = []
    for message in TopicPrinter(shared, wanted, DamagedPlaces(), {}).messages(is_merged):
        found.append(message.body.decode())
        if len(found) == 6:
            make_anew(shared, topic)
        if len(found) == 16:
            break
    assert sorted(found[6:]) == sorted(f"new {n}" for n in range(10))
