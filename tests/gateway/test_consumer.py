"""Python's members of consumer groups at a real node, beside others, and through failures."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

import keelog.aio
from keelog import BadRequest, Consumer, GroupMessage, NotAllowed
from protocol.names import CONSUMER_OFFSETS_FILE
from protocol.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place

pytestmark = pytest.mark.process
QUEUES = 4
WAIT_S = 30.0


@pytest.fixture
def topic(node: RunningNode, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    node.client.create_topic(name, QUEUES)
    return name


def send(node: RunningNode, topic: str, count: int, first: int = 0) -> set[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    with node.client.producer() as producer:
        for number, body in enumerate(bodies):
            producer.send_nowait(topic, body, queue_id=number % QUEUES)
    return set(bodies)


def read(consumer: Consumer, bodies: set[bytes], wait_s: float = WAIT_S) -> list[GroupMessage]:
    """Takes and acknowledges messages until all of these have come."""
    left, got = set(bodies), []
    until = time.monotonic() + wait_s
    while left:
        message = consumer.get(max(0.0, until - time.monotonic()))
        assert message is not None, f"{len(left)} did not come, as {sorted(left)[:3]}"
        left.discard(message.body)
        message.ack()
        got.append(message)
    return got


def owned(consumer: Consumer, topic: str) -> set[int]:
    return {queue for name, queue in consumer.assignment() if name == topic}


def places(node: RunningNode, topic: str, group: str) -> dict[int, int]:
    return node.client.cursor(topic, group)


def await_places(node: RunningNode, topic: str, group: str, wanted: dict[int, int]) -> None:
    """The gateway gives the writer the commits of a moment together."""

    def are_there() -> bool:
        found = places(node, topic, group)
        return {queue: found.get(queue) for queue in wanted} == wanted

    wait_until(are_there, f"not {wanted}", 10)


def test_a_group_reads_all_messages_and_goes_on_where_it_was(node: RunningNode, topic: str) -> None:
    first = send(node, topic, 200)
    with node.client.consumer("once", topic, start="earliest") as consumer:
        got = read(consumer, first)
        assert len(got) == 200
        for queue in range(QUEUES):
            offsets = [one.queue_offset for one in got if one.queue_id == queue]
            assert offsets == list(range(50)), "a queue's messages come in its order"
    await_places(node, topic, "once", dict.fromkeys(range(QUEUES), 50))
    second = send(node, topic, 40, first=200)
    with node.client.consumer("once", topic) as consumer:
        assert {one.body for one in read(consumer, second)} == second


def test_a_loop_acknowledges_what_it_asks_after_and_not_the_last(
    node: RunningNode, topic: str
) -> None:
    for number in range(3):
        node.client.send(topic, b"%d" % number, queue_id=0)
    with node.client.consumer("loop", topic, start="earliest") as consumer:
        for message in consumer:
            if message.body == b"1":
                break
    await_places(node, topic, "loop", {0: 1})
    with node.client.consumer("loop", topic) as consumer:
        assert {one.body for one in read(consumer, {b"1", b"2"})} == {b"1", b"2"}


def test_two_members_share_the_queues_and_take_over_when_one_closes(
    node: RunningNode, topic: str
) -> None:
    with (
        node.client.consumer("shared", topic, start="earliest") as one,
        node.client.consumer("shared", topic, start="earliest") as two,
    ):
        wait_until(
            lambda: len(owned(one, topic)) == len(owned(two, topic)) == QUEUES // 2, "no shares"
        )
        assert owned(one, topic) | owned(two, topic) == set(range(QUEUES))
        bodies = send(node, topic, 80)
        halves: dict[Consumer, list[GroupMessage]] = {one: [], two: []}

        def take(consumer: Consumer) -> None:
            while (message := consumer.get(1.0)) is not None:
                message.ack()
                halves[consumer].append(message)

        threads = [Thread(target=take, args=(consumer,)) for consumer in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for consumer, half in halves.items():
            assert {message.queue_id for message in half} == owned(consumer, topic)
        assert {message.body for half in halves.values() for message in half} == bodies
        assert sum(map(len, halves.values())) == 80
        two.close()
        wait_until(lambda: owned(one, topic) == set(range(QUEUES)), "it did not take over", 10)
        more = send(node, topic, 8, first=80)
        assert {message.body for message in read(one, more)} == more

        def members() -> list[tuple[str, str]]:
            (group,) = node.client.groups("shared")
            return [(member.language, member.client_id) for member in group.members]

        wait_until(lambda: members() == [("PYTHON", one.client_id)], "it is not shown", 10)


MEMBER = """
import sys, time
import keelog
node, topic, group, pause = sys.argv[1:]
with keelog.connect(node, timeout=30) as client:
    with client.consumer(group, topic, start="earliest") as consumer:
        for message in consumer:
            place = f"{message.queue_id} {message.queue_offset}"
            # In one write: a kill leaves no part of a line, also where output is not buffered.
            print(f"{place} {message.body.decode()}\\n", end="", flush=True)
            time.sleep(float(pause))
"""


class OtherProcess:
    """A member in a process of its own, which prints what it has begun to handle."""

    def __init__(self, node: RunningNode, topic: str, group: str, pause: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, node.endpoint, topic, group, str(pause)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self.lines: list[str] = []
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def kill(self) -> dict[int, int]:
        """The last offset of each queue that it had begun to handle."""
        self.process.kill()
        self.process.wait()
        self._thread.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        found: dict[int, int] = {}
        for line in self.lines:
            queue, offset, _ = map(int, line.split())
            found[queue] = max(found.get(queue, 0), offset)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.lines))


def test_a_killed_member_skips_nothing_and_others_take_over(node: RunningNode, topic: str) -> None:
    bodies = send(node, topic, 400)
    other = OtherProcess(node, topic, "killed", 0.01)

    def has_committed() -> bool:
        return sum(places(node, topic, "killed").values()) > 20

    try:
        wait_until(has_committed, "nothing is committed", WAIT_S)
    finally:
        began = other.kill()
    last_queue, last_offset, _ = map(int, other.lines[-1].split())
    committed = places(node, topic, "killed")
    assert committed[last_queue] <= last_offset, "what it was handling when it died"
    for queue, place in committed.items():
        assert place <= began[queue] + 1, "what it had not begun"
    handled = {line.split()[2].encode() for line in other}
    with node.client.consumer("killed", topic, start="earliest") as consumer:
        read(consumer, bodies - handled)


def test_members_of_a_group_may_be_of_any_language(node: RunningNode, topic: str) -> None:
    with (
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
        node.client.consumer("mixed", topic, start="earliest") as consumer,
    ):
        wait_until(lambda: len(owned(consumer, topic)) == QUEUES, "it has no queues")
        wanted = (SubscriptionData(topic, "*"), SubscriptionData("%RETRY%mixed", "*"))
        data = HeartbeatData(
            "0.0.0.0@java", (), (ConsumerData("mixed", subscription_data_set=wanted),)
        )
        beat = peer.ask(RequestCode.HEART_BEAT, {}, write_body(data, standard=True))
        assert beat.code == ResponseCode.SUCCESS
        # Its id is the first of the two, so Java's rule gives it the first queues.
        wait_until(lambda: owned(consumer, topic) == {2, 3}, "it did not share", 10)
        peer.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        peer.close()
        wait_until(lambda: len(owned(consumer, topic)) == QUEUES, "it did not take over", 10)


def test_what_a_handler_fails_on_comes_again_and_is_a_dead_letter_at_last(
    node: RunningNode, topic: str
) -> None:
    node.client.send(topic, b"poison", keys="k", queue_id=1)
    node.client.send(topic, b"good", queue_id=1)
    seen: list[tuple[bytes, int, str]] = []
    with node.client.consumer("failing", topic, start="earliest", max_retries=2) as consumer:

        def handler(message: GroupMessage) -> None:
            seen.append((message.body, message.reconsume_times, message.topic))
            if message.body == b"poison":
                raise ValueError("poison")

        running = Thread(target=consumer.run, args=(handler,), kwargs={"workers": 2})
        running.start()
        letters = node.client.tail("%DLQ%failing", "earliest")
        dead = next(letters)
        consumer.stop()
        running.join(WAIT_S)
    assert (dead.body, dead.keys, dead.reconsume_times) == (b"poison", ["k"], 3)
    assert [times for body, times, _ in seen if body == b"poison"] == [0, 1, 2]
    assert {name for *_, name in seen} == {topic}
    assert (b"good", 0, topic) in seen
    await_places(node, topic, "failing", {1: 2})


def test_a_message_may_be_made_a_dead_letter_at_once(node: RunningNode, topic: str) -> None:
    node.client.send(topic, b"bad")
    with node.client.consumer("dead", topic, start="earliest") as consumer:
        message = consumer.get(WAIT_S)
        assert message is not None
        message.retry(-1)
    assert next(node.client.tail("%DLQ%dead", "earliest")).body == b"bad"


def test_only_a_commit_commits_without_auto_commit(node: RunningNode, topic: str) -> None:
    for number in range(4):
        node.client.send(topic, b"%d" % number, queue_id=0)
    with node.client.consumer("explicit", topic, start="earliest", auto_commit=False) as consumer:
        read(consumer, {b"0", b"1"})
        consumer.commit()
        await_places(node, topic, "explicit", {0: 2})
        read(consumer, {b"2"})
    assert places(node, topic, "explicit")[0] == 2
    with node.client.consumer("explicit", topic) as consumer:
        assert consumer.get(WAIT_S).body == b"2"  # type: ignore[union-attr]


def test_a_cursor_and_a_group_of_one_name_are_one_place(node: RunningNode, topic: str) -> None:
    for number in range(6):
        node.client.send(topic, b"%d" % number, queue_id=0)
    tail = node.client.tail(topic, "earliest", until_end=True, cursor="one-place")
    assert [message.body for message, _ in zip(tail, range(3), strict=False)][:2] == [b"0", b"1"]
    tail.close()
    before = places(node, topic, "one-place")[0]  # the cursor's commits are the writer's at once
    assert before >= 2
    with node.client.consumer("one-place", topic) as consumer:
        got = read(consumer, {b"5"})
        assert [one.queue_offset for one in got if one.queue_id == 0] == list(range(before, 6))
    await_places(node, topic, "one-place", {0: 6})
    left = node.client.tail(topic, "earliest", until_end=True, cursor="one-place")
    assert list(left) == []
    path = node.root / CONSUMER_OFFSETS_FILE

    def saved() -> bool:
        table = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
        return bool(table.get(f"{topic}@one-place", {}).get("0") == 6)

    wait_until(saved, "the file has not the place")


def test_tags_and_sql_choose_messages(node: RunningNode, topic: str) -> None:
    for number in range(12):
        tags = ("red", "green", "blue")[number % 3]
        properties = {"n": str(number)}
        node.client.send(topic, b"%d" % number, tags=tags, properties=properties)
    with node.client.consumer("tags", topic, start="earliest", tags="red || blue") as consumer:
        wanted = {b"%d" % number for number in range(12) if number % 3 != 1}
        assert {one.body for one in read(consumer, wanted)} == wanted
    sql = "n >= 4 AND TAGS = 'green'"
    with node.client.consumer("sql", topic, start="earliest", sql=sql) as consumer:
        assert {one.body for one in read(consumer, {b"4", b"7", b"10"})} == {b"4", b"7", b"10"}
    with (
        node.client.consumer("bad-sql", topic, sql="n >") as consumer,
        pytest.raises(BadRequest, match="refuses the expression"),
    ):
        consumer.get(WAIT_S)


def test_orderly_members_keep_the_order_of_a_queue_through_failures(
    node: RunningNode, topic: str
) -> None:
    send(node, topic, 40)
    seen: dict[int, list[int]] = {queue: [] for queue in range(QUEUES)}
    with node.client.consumer("orderly", topic, start="earliest", orderly=True) as consumer:

        def handler(message: GroupMessage) -> None:
            if message.queue_offset == 3 and not message.reconsume_times:
                raise ValueError("not yet")
            seen[message.queue_id].append(message.queue_offset)

        running = Thread(target=consumer.run, args=(handler,), kwargs={"workers": 4})
        running.start()
        wait_until(lambda: sum(map(len, seen.values())) == 40, f"not all: {seen}", WAIT_S)
        consumer.stop()
        running.join(WAIT_S)
    assert seen == {queue: list(range(10)) for queue in range(QUEUES)}


def test_a_topic_that_is_made_later_is_read_from_its_begin(node: RunningNode) -> None:
    with node.client.consumer("early", "made-later", start="earliest") as consumer:
        assert consumer.get(0.5) is None
        node.client.send("made-later", b"first")
        assert consumer.get(WAIT_S).body == b"first"  # type: ignore[union-attr]


def test_messages_come_once_each_through_the_death_of_the_gateway_at_least(
    tmp_path: Path,
) -> None:
    count, topic = 1_000, "t"
    seen: list[bytes] = []
    with RunningNode(tmp_path / "store", (REMOTING,), queue_workers=1, readers=1) as node:
        node.client.create_topic(topic, QUEUES)
        with node.client.consumer("survivor", topic, start="earliest") as consumer:
            running = Thread(target=consumer.run, args=(lambda message: seen.append(message.body),))
            running.start()
            bodies: set[bytes] = set()
            for turn in range(4):
                bodies |= send(node, topic, count // 4, first=turn * count // 4)
                half = len(bodies) // 2
                wait_until(lambda: len(seen) > half, "nothing comes", WAIT_S)  # noqa: B023
                if turn % 2 == 0:
                    node.kill("gateway")
            wait_until(
                lambda: set(seen) == bodies, f"{len(bodies - set(seen))} did not come", WAIT_S
            )
            consumer.stop()
            running.join(WAIT_S)
        ends = {one.queue_id: one.max_offset for one in node.client.offsets(topic)}
        await_places(node, topic, "survivor", ends)


def test_tasks_of_asyncio_read_as_threads_do(node: RunningNode, topic: str) -> None:
    bodies = send(node, topic, 60)

    async def main() -> None:
        seen: list[bytes] = []
        async with (
            keelog.aio.connect(node.endpoint, timeout=30.0) as client,
            client.consumer("aio", topic, start="earliest", max_retries=1) as consumer,
        ):

            async def handler(message: GroupMessage) -> None:
                await asyncio.sleep(0)
                if message.body == b"7" and not message.reconsume_times:
                    raise ValueError("not yet")
                seen.append(message.body)
                if set(seen) == bodies:
                    consumer.stop()

            async with asyncio.timeout(WAIT_S):
                with pytest.raises(BadRequest, match="timeout"):
                    await consumer.run(handler, timeout="5")  # type: ignore[arg-type]
                await consumer.run(handler, workers=3)
            assert sorted(seen) == sorted(bodies)
        async with (
            keelog.aio.connect(node.endpoint, timeout=30.0) as client,
            client.consumer("aio", topic) as consumer,
        ):
            assert await consumer.get(0.5) is None
            await client.send(topic, b"more")
            async for message in consumer:
                assert message.body == b"more"
                message.ack()
                await consumer.commit()
                break

    asyncio.run(main())
    wait_until(lambda: sum(places(node, topic, "aio").values()) == 61, "not all committed", 10)


def test_a_client_that_closes_ends_its_consumers(node: RunningNode, topic: str) -> None:
    node.client.send(topic, b"x")
    with keelog.connect(node.endpoint, timeout=30.0) as client:
        consumer = client.consumer("with-client", topic, start="earliest")
        read(consumer, {b"x"})
    wait_until(lambda: sum(places(node, topic, "with-client").values()) == 1, "not committed", 10)
    assert consumer.get(WAIT_S) is None


def test_a_consumer_that_nobody_has_any_more_leaves_its_group(
    node: RunningNode, topic: str
) -> None:
    consumer = node.client.consumer("dropped", topic)
    with node.client.consumer("dropped", topic) as other:
        wait_until(lambda: len(owned(other, topic)) == QUEUES // 2, "no shares")
        del consumer
        wait_until(lambda: len(owned(other, topic)) == QUEUES, "it did not take over", 10)
        assert owned(other, topic) == set(range(QUEUES))


def test_a_node_without_a_gateway_says_so(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        with pytest.raises(NotAllowed, match="has no gateway") as found:
            node.client.consumer("g", "t")
        assert "--remoting" in found.value.hint

        async def main() -> None:
            async with keelog.aio.connect(node.endpoint) as client:
                with pytest.raises(NotAllowed, match="has no gateway"):
                    async with client.consumer("g", "t"):
                        pass

        asyncio.run(main())


@pytest.mark.faults
def test_members_go_on_after_the_node_was_killed_and_started_again(tmp_path: Path) -> None:
    root, seen = tmp_path / "store", list[bytes]()
    node = RunningNode(root, (REMOTING,), queue_workers=1, readers=1)
    node.start()
    node.client.create_topic("t", QUEUES)
    with keelog.connect(node.endpoint, timeout=30.0) as client:
        consumer = client.consumer("g", "t", start="earliest")
        running = Thread(target=consumer.run, args=(lambda one: seen.append(one.body),))
        running.start()
        bodies = send(node, "t", 200)
        wait_until(lambda: len(seen) > 50, "nothing comes", WAIT_S)
        node.kill_all()
        # One reader, too: the port of a second one may have become the client's.
        with RunningNode(root, (REMOTING,), readers=1, bind=node.endpoint) as again:
            bodies |= send(again, "t", 100, first=200)
            wait_until(lambda: set(seen) == bodies, "not all came", 60)
            consumer.stop()
            running.join(WAIT_S)
            consumer.close()
            wait_until(lambda: sum(places(again, "t", "g").values()) == 300, "not committed", 10)


@pytest.mark.faults
def test_no_message_is_skipped_while_members_are_killed_again_and_again(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", (REMOTING,), queue_workers=1, readers=1) as node:
        node.client.create_topic("t", QUEUES)
        bodies = send(node, "t", 3_000)
        handled: set[bytes] = set()
        for turn in range(6):
            others = [OtherProcess(node, "t", "g", 0.002) for _ in range(2)]
            time.sleep(2.5)
            if turn == 3:
                node.kill("gateway")
                time.sleep(1.0)
            ends: dict[int, int] = {}
            for other in others:
                for queue, offset in other.kill().items():
                    ends[queue] = max(ends.get(queue, 0), offset)
                handled |= {line.split()[2].encode() for line in other}
        with node.client.consumer("g", "t", start="earliest") as consumer:
            rest = {message.body for message in read(consumer, bodies - handled, 60)}
        assert handled | rest == bodies


def test_a_handler_that_hangs_keeps_no_stop_waiting(
    node: RunningNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.client.send(topic, b"hangs")
    hangs, over = Event(), Event()

    def handler(_: GroupMessage) -> None:
        hangs.set()
        over.wait()

    with node.client.consumer("hung", topic, start="earliest") as consumer:

        def stop() -> None:
            hangs.wait()
            consumer.stop(timeout=0.3)

        stopping = Thread(target=stop)
        stopping.start()
        consumer.run(handler)
        stopping.join()
    assert f"left at the stop, the message comes again: {topic}, queue " in caplog.text
    over.set()
    with node.client.consumer("hung", topic) as consumer:
        message = consumer.get(timeout=WAIT_S)
        assert message is not None
        assert message.body == b"hangs"


def test_the_message_of_a_handler_that_hangs_comes_again(node: RunningNode, topic: str) -> None:
    node.client.send(topic, b"hangs once")
    over, seen = Event(), list[int]()

    def handler(message: GroupMessage) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times:
            consumer.stop(timeout=0.3)
        else:
            over.wait()

    with node.client.consumer("late", topic, start="earliest") as consumer:
        consumer.run(handler, workers=2, timeout=0.5)
    over.set()
    assert seen == [0, 1]
