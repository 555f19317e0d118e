"""The asyncio client: the same names, awaited."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_args, get_origin

import pytest

import keelog
import keelog.aio
from tests.support.fake_node import FakeNode, fake_node

WAIT_S = 60.0


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_node() as running:
        yield running


BOTH = [
    (keelog.Client, keelog.aio.Client),
    (keelog.Producer, keelog.aio.Producer),
]


@pytest.mark.parametrize(("plain", "awaited"), BOTH)
def test_both_clients_have_the_same_names(plain: type, awaited: type) -> None:
    def public(kind: type) -> dict[str, type]:
        return {name: type(vars(kind)[name]) for name in vars(kind) if not name.startswith("_")}

    assert public(plain) == public(awaited)


@pytest.mark.parametrize(("plain", "awaited"), [(keelog, keelog.aio), *BOTH])
def test_both_clients_take_the_same_and_answer_the_same(plain: object, awaited: object) -> None:
    functions = inspect.getmembers(plain, inspect.isfunction)
    for name, function in functions if plain is not keelog else [("connect", keelog.connect)]:
        if name.startswith("_"):
            continue
        other = getattr(awaited, name)
        ours, theirs = inspect.signature(function), inspect.signature(other)
        assert list(theirs.parameters.values()) == list(ours.parameters.values()), name
        answers, others = ours.return_annotation, theirs.return_annotation
        if inspect.iscoroutinefunction(other):
            assert others == answers, name
        elif get_origin(answers) is Iterator:
            assert (get_origin(others), get_args(others)) == (AsyncIterator, get_args(answers))


def test_a_message_goes_there_and_back(node: FakeNode) -> None:
    async def scenario() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            receipt = await mq.send("orders", b"hello", keys="k", tags="paid")
            assert (await mq.get(receipt.msg_id)).body == b"hello"
            result = await mq.pull("orders", receipt.queue_id, 0)
            assert [m.body for m in result.messages] == [b"hello"]
            assert [m.body async for m in mq.find("orders", "k")] == [b"hello"]
            assert [t.topic for t in await mq.topics()] == ["orders"]
            assert (await mq.create_topic("more", queues=2)).created
            assert len(await mq.offsets("more")) == 2
            assert await mq.seek("more", 0, 0) == 0
            with pytest.raises(keelog.BadRequest):
                await mq.purge_topic("more")
            assert await mq.delete_topic("more")
            assert (await mq.status()).ready
            assert (await mq.health()).ready
            assert (await mq.routes()).node == "fake"

    asyncio.run(scenario())


def test_connect_may_be_awaited(node: FakeNode) -> None:
    async def scenario() -> None:
        mq = await keelog.aio.connect(node.url, timeout=WAIT_S)
        assert (await mq.send("orders", b"x")).status == "PUT_OK"
        await mq.close()

    asyncio.run(scenario())


def test_nobody_there_is_an_error_of_connect() -> None:
    async def scenario() -> None:
        with pytest.raises(keelog.NotConnected):
            async with keelog.aio.connect("tcp://127.0.0.1:1"):
                pass

    asyncio.run(scenario())


def test_many_sends_run_at_once(node: FakeNode) -> None:
    async def scenario() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            receipts = await asyncio.gather(*(mq.send("orders", b"x") for _ in range(200)))
            assert len({r.physical_offset for r in receipts}) == 200

    asyncio.run(scenario())


def test_a_producer_drains_between_sends(node: FakeNode) -> None:
    async def scenario() -> None:
        async with (
            keelog.aio.connect(node.url, timeout=WAIT_S) as mq,
            mq.producer(max_in_flight=10) as producer,
        ):
            futures = []
            for n in range(100):
                await producer.drain()
                futures.append(producer.send_nowait("orders", b"%d" % n))
            await producer.drain()
            producer.send_oneway("audit", b"x")
            await producer.flush()
            receipts = [await future for future in futures]
            assert len({r.physical_offset for r in receipts}) == 100
            assert len(await producer.send_many("orders", [b"x"] * 20)) == 20

    asyncio.run(scenario())


def test_tasks_that_drain_at_once_all_find_room(node: FakeNode) -> None:
    async def scenario() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await mq.create_topic("orders")
            async with mq.producer(max_in_flight=2, linger=0) as producer:

                async def send(name: int) -> None:
                    for _ in range(5):
                        await producer.drain()
                        producer.send_oneway("orders", b"%d" % name)

                await asyncio.gather(*(send(name) for name in range(10)))
            assert producer.failed == 0

    asyncio.run(scenario())
    assert len(node.stored()) == 50


def test_a_full_producer_never_blocks_the_loop(node: FakeNode) -> None:
    async def scenario() -> None:
        node.delay["append"] = 60.0
        async with (
            keelog.aio.connect(node.url, timeout=WAIT_S) as mq,
            mq.producer(max_in_flight=2) as producer,
        ):
            producer.send_nowait("orders", b"1")
            producer.send_nowait("orders", b"2")
            with pytest.raises(keelog.NodeBusy):
                producer.send_nowait("orders", b"3")
            node.delay.clear()

    asyncio.run(scenario())


def test_a_follower_gets_what_comes_later_while_the_loop_works(node: FakeNode) -> None:
    async def scenario() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await mq.create_topic("orders", queues=2)

            async def feed() -> None:
                for n in range(5):
                    await asyncio.sleep(0.02)
                    await mq.send("orders", b"%d" % n)

            found: list[int] = []
            async with asyncio.TaskGroup() as group:
                group.create_task(feed())
                async for message in mq.tail("orders", "earliest"):
                    found.append(int(message.body))
                    if len(found) == 5:
                        break
            assert sorted(found) == list(range(5))
            again = [m async for m in mq.tail("orders", "earliest", until_end=True)]
            assert len(again) == 5
            whole = [r async for r in mq.consume("orders", "earliest", until_end=True)]
            assert sorted(m.raw for r in whole for m in r.messages) == sorted(m.raw for m in again)

    asyncio.run(scenario())


def test_a_follower_whose_task_was_cancelled_goes_on_where_it_was(node: FakeNode) -> None:
    async def within(seconds: float, follower: AsyncIterator[keelog.Message]) -> bytes:
        async with asyncio.timeout(seconds):
            return (await anext(follower)).body

    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await mq.create_topic("orders", queues=2)
            for n in range(4):
                await mq.send("orders", b"%d" % n, queue_id=n % 2)
            follower = mq.tail("orders", "earliest")
            node.delay["offsets"] = 60.0
            with pytest.raises(TimeoutError):
                await within(0.05, follower)  # it asks where the queues are
            del node.delay["offsets"]
            found = {await within(60, follower) for _ in range(4)}
            assert found == {b"0", b"1", b"2", b"3"}
            with pytest.raises(TimeoutError):
                await within(0.05, follower)  # it waits for a message
            await mq.send("orders", b"4", queue_id=0)
            assert await within(60, follower) == b"4"

    asyncio.run(main())


def test_a_follower_ends_after_its_timeout_or_when_it_is_stopped(node: FakeNode) -> None:
    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await mq.producer().send_many("orders", [b"%d" % n for n in range(9)], queue_id=0)
            with pytest.raises(keelog.BadRequest):
                mq.tail("orders", "yesterday")  # type: ignore[arg-type]
            heard = [m async for m in mq.tail("orders", "earliest", queues=[0], timeout=0.2)]
            assert len(heard) == 9
            follower = mq.tail("orders", "earliest", queues=[0])
            assert [(await anext(follower)).body for _ in range(2)] == [b"0", b"1"]
            follower.stop()
            assert [message async for message in follower] == []
            waiting = mq.tail("orders", "latest")
            asyncio.get_running_loop().call_later(0.1, waiting.stop)
            assert [message async for message in waiting] == []

    asyncio.run(main())


def test_an_error_or_its_closing_ends_a_follower(node: FakeNode) -> None:
    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            lost = mq.tail("no-such-topic", until_end=True)
            with pytest.raises(keelog.UnknownTopic):
                await anext(lost)
            assert [message async for message in lost] == []
            await mq.producer().send_many("orders", [b"x"] * 9, queue_id=0)
            follower: Any = mq.tail("orders", "earliest")
            async with contextlib.aclosing(follower):
                await anext(follower)
            assert [message async for message in follower] == []

    asyncio.run(main())


def test_a_cancelled_call_does_no_harm(node: FakeNode) -> None:
    async def scenario() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await mq.create_topic("orders", queues=1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await mq.pull("orders", 0, 0, wait=10.0)
            assert (await mq.send("orders", b"x", queue_id=0)).queue_offset == 0
            await asyncio.sleep(0.1)

    asyncio.run(scenario())
