"""Waiting sends of asyncio tasks: what goes together, and what each task is told."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import keelog
import keelog.aio
from keelog import Receipt
from keelog.client.event_loop import EARLY_RECORDS, AsyncioChannel
from keelog.client.send.sender import UNDER_WAY_MAX
from keelog.client.transport.exchange import Call
from protocol.errors import ClientClosed, IllegalMessage, NodeBusy, UnknownTopic
from protocol.kernel import loader
from protocol.wire import zmtp
from tests.support.fake_node import FakeNode, fake_node

WAIT_S = 60.0


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_node() as running:
        running.memory.topics["orders"] = 4
        yield running


def test_tasks_of_any_kind_get_their_own_receipts(node: FakeNode) -> None:
    async def main() -> list[Receipt]:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            sends = []
            for n in range(60):
                options = [{}, {"tags": "a"}, {"keys": f"k{n}"}, {"queue_id": 1}, {"flag": 3}][
                    n % 5
                ]
                sends.append(mq.send("orders" if n % 2 else "other", b"%d" % n, **options))  # type: ignore[arg-type]
            return await asyncio.gather(*sends)

    receipts = asyncio.run(main())
    stored = {record.body: record for record in node.stored()}
    assert len(stored) == len(receipts) == 60
    for n, receipt in enumerate(receipts):
        record = stored[b"%d" % n]
        assert (receipt.topic, receipt.unique_key) == (record.topic, record.unique_key)
        assert (receipt.queue_id, receipt.queue_offset) == (
            record.head.queue_id,
            record.head.queue_offset,
        )
        assert (receipt.physical_offset, receipt.msg_id) == (
            record.physical_offset,
            record.message_id,
        )
        assert record.properties.get("TAGS") == ("a" if n % 5 == 1 else None)
        assert record.properties.get("KEYS") == (f"k{n}" if n % 5 == 2 else None)


@pytest.mark.skipif(loader.kernel is None, reason="columns need the kernel")
def test_plain_sends_of_one_turn_share_requests_and_the_first_go_early(node: FakeNode) -> None:
    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await asyncio.gather(*(mq.send("orders", b"%d" % n) for n in range(1_500)))

    asyncio.run(main())
    counts = [header["count"] for header in node.operations("append")]
    assert counts == [EARLY_RECORDS, 1_000, 500 - EARLY_RECORDS]


def test_a_message_that_the_node_refuses_takes_no_other_with_it(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = node.memory.store

    def picky(frame: bytes, queue: int | None) -> dict[str, object]:
        if b"refused" in frame:
            raise IllegalMessage("I do not like it")
        return store(frame, queue)

    monkeypatch.setattr(node.memory, "store", picky)

    async def main() -> list[Receipt | BaseException]:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            bodies = [b"refused" if n in (3, 20) else b"%d" % n for n in range(32)]
            sends = (mq.send("orders", body) for body in bodies)
            found = await asyncio.gather(*sends, return_exceptions=True)
            assert (await mq.send("orders", b"later")).status == "PUT_OK"
            return found

    outcomes = asyncio.run(main())
    for n, outcome in enumerate(outcomes):
        assert isinstance(outcome, IllegalMessage if n in (3, 20) else Receipt)
    assert len(node.stored()) == 31


def test_errors_are_those_of_the_plain_client(node: FakeNode) -> None:
    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            for topic, body, options in (
                ("orders", bytes(5 * 1024 * 1024), {}), ("bad topic", b"x", {}),
                ("orders", "text", {}), ("orders", b"x", {"keys": "a b"}), (["t"], b"x", {}),
            ):  # fmt: skip
                with pytest.raises(keelog.MqError):
                    await mq.send(topic, body, **options)  # type: ignore[arg-type]
            node.memory.auto_create = False
            sends = (mq.send("none", b"x") for _ in range(3))
            for error in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(error, UnknownTopic)
            node.lose_answers["append"] = 3
            sends = (mq.send("orders", b"x", timeout=1.5) for _ in range(3))
            for error in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(error, keelog.SendTimeout)
        with pytest.raises(keelog.ClientClosed):
            await mq.send("orders", b"x")

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_the_others(node: FakeNode) -> None:
    node.delay["append"] = 0.1

    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            tasks = [asyncio.create_task(mq.send("orders", b"%d" % n)) for n in range(5)]
            await asyncio.sleep(0)
            tasks[2].cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(each, Receipt) for each in found] == [True, True, False, True, True]

    asyncio.run(main())


def test_requests_without_an_answer_delay_no_other(node: FakeNode) -> None:
    node.lose_answers["append"] = UNDER_WAY_MAX

    async def main() -> None:
        lost = []
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            for left in reversed(range(UNDER_WAY_MAX)):
                lost.append(asyncio.create_task(mq.send("orders", b"lost")))
                deadline = time.monotonic() + WAIT_S
                while node.lose_answers["append"] > left:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.001)
            receipts = await asyncio.gather(*(mq.send("orders", b"x") for _ in range(3)))
            assert not any(task.done() for task in lost), "the others still wait"
            assert len({receipt.queue_id for receipt in receipts}) == 1, "one request"
        errors = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(error) for error in errors] == [keelog.SendTimeout] * UNDER_WAY_MAX

    asyncio.run(main())


Carried = list[bool]


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Carried:
    """Whether each request of columns was carried by the loop."""
    found: Carried = []
    carry = AsyncioChannel.carry

    def noted(self: AsyncioChannel, call: Call) -> bool:
        found.append(carry(self, call))
        return found[-1]

    monkeypatch.setattr(AsyncioChannel, "carry", noted)
    return found


async def send_until_carried(mq: keelog.aio.Client, carried: Carried) -> None:
    deadline = time.monotonic() + WAIT_S
    carried.clear()
    while not any(carried):
        assert time.monotonic() < deadline, "the loop's connection never came up"
        await mq.send("orders", b"x")
        await asyncio.sleep(0.001)
    carried.clear()


@pytest.mark.skipif(loader.kernel is None, reason="columns need the kernel")
def test_the_loop_carries_plain_sends_itself_refused_and_repeated_ones_too(
    node: FakeNode, carried: Carried
) -> None:
    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await send_until_carried(mq, carried)
            node.refuse["append"] = [NodeBusy("full")]
            before = len(node.stored())
            for n in range(5):
                assert (await mq.send("orders", b"%d" % n)).status == "PUT_OK"
            assert carried == [True] * 5
            assert [record.body for record in node.stored()[before:]] == [
                b"%d" % n for n in range(5)
            ]

    asyncio.run(main())


@pytest.mark.skipif(loader.kernel is None, reason="columns need the kernel")
@pytest.mark.parametrize("same_port", [True, False])
def test_the_loop_finds_a_writer_that_came_back(
    node: FakeNode, carried: Carried, same_port: bool
) -> None:
    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await send_until_carried(mq, carried)
            node.lose_answers["append"] = 1
            lost = asyncio.create_task(mq.send("orders", b"lost"))
            while node.lose_answers["append"]:
                await asyncio.sleep(0.001)
            node.stop_process("writer")
            with pytest.raises(keelog.SendTimeout, match="connection"):
                await lost
            node.start_process("writer", same_port=same_port)
            assert (await mq.send("orders", b"after")).status == "PUT_OK"
            await send_until_carried(mq, carried)

    asyncio.run(main())
    bodies = [record.body for record in node.stored()]
    assert (bodies.count(b"lost"), bodies.count(b"after")) == (1, 1)


@pytest.mark.skipif(loader.kernel is None, reason="columns need the kernel")
def test_a_node_that_takes_its_time_keeps_its_connection_while_others_send(
    node: FakeNode, carried: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is silent for long is given up only when nothing is under way."""

    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await send_until_carried(mq, carried)
            node.delay["append"] = WAIT_S
            asked = len(node.operations("append"))
            first = asyncio.create_task(mq.send("orders", b"1"))
            while len(node.operations("append")) < asked + 1:
                await asyncio.sleep(0.001)
            monkeypatch.setattr(zmtp, "STALE_S", 0.1)
            await asyncio.sleep(0.3)
            second = asyncio.create_task(mq.send("orders", b"2"))
            while len(node.operations("append")) < asked + 2:
                await asyncio.sleep(0.001)
            node.delay.clear()
            assert (await first).status == (await second).status == "PUT_OK"
            assert carried == [True, True]

    asyncio.run(main())


@pytest.mark.skipif(loader.kernel is None, reason="columns need the kernel")
@pytest.mark.parametrize("in_loop", [True, False], ids=["in the loop", "by another thread"])
def test_closing_tells_a_task_that_nobody_knows(
    node: FakeNode, carried: Carried, in_loop: bool
) -> None:
    async def main() -> None:
        mq = await keelog.aio.connect(node.url, timeout=WAIT_S)
        await send_until_carried(mq, carried)
        node.lose_answers["append"] = 1
        lost = asyncio.create_task(mq.send("orders", b"lost"))
        while node.lose_answers["append"]:
            await asyncio.sleep(0.001)
        if in_loop:
            mq._core.close()
        else:
            await mq.close()
        with pytest.raises(keelog.SendTimeout):
            await lost
        with pytest.raises(keelog.ClientClosed):
            await mq.send("orders", b"x")

    asyncio.run(main())


def test_two_loops_of_two_threads_may_share_a_client(node: FakeNode) -> None:
    mq = keelog.aio.connect(node.url, timeout=WAIT_S)

    async def send_some(name: bytes) -> None:
        for n in range(20):
            receipts = await asyncio.gather(*(mq.send("orders", b"%s%d" % (name, n)) for _ in "ab"))
            assert [receipt.status for receipt in receipts] == ["PUT_OK"] * 2

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: asyncio.run(send_some(name)), (b"a", b"b")))
    asyncio.run(mq.close())
    assert len(node.stored()) == 80


def test_one_client_may_serve_one_loop_after_the_other(node: FakeNode) -> None:
    mq = keelog.aio.connect(node.url, timeout=WAIT_S)
    for _ in range(2):
        assert asyncio.run(mq.send("orders", b"x")).status == "PUT_OK"
    asyncio.run(mq.close())
    assert len(node.stored()) == 2


def test_sends_that_fail_at_once_fail_for_every_task(node: FakeNode) -> None:
    async def main() -> list[Receipt | BaseException]:
        mq = await keelog.aio.connect(node.url, timeout=WAIT_S)
        await mq.send("orders", b"first")
        await mq.close()
        sends = (mq.send("orders", b"late") for _ in range(EARLY_RECORDS + 8))
        return await asyncio.gather(*sends, return_exceptions=True)

    assert {type(outcome) for outcome in asyncio.run(main())} == {ClientClosed}
