"""Futures that let their tasks go on: in order, at once, and whatever one of the tasks does."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from keelog import Receipt
from keelog.aio_resume import ReceiptFuture, end_all
from protocol.errors import MqError, NodeBusy


def receipt(number: int) -> Receipt:
    return Receipt("PUT_OK", "orders", 0, number, 300 * number, "", "", False, 0)


Heard = list[tuple[int, object]]


async def wait(number: int, future: ReceiptFuture, heard: Heard) -> None:
    try:
        heard.append((number, (await future).queue_offset))
    except (MqError, asyncio.CancelledError) as error:
        heard.append((number, type(error)))


async def begin(
    count: int, do: Callable[[int, ReceiptFuture, Heard], Awaitable[None]], heard: Heard
) -> tuple[list[ReceiptFuture], list["asyncio.Task[None]"]]:
    """So many tasks that wait."""

    async def run(number: int) -> None:
        await do(number, futures[number], heard)

    loop = asyncio.get_running_loop()
    futures = [ReceiptFuture(loop=loop) for _ in range(count)]
    tasks = [loop.create_task(run(number)) for number in range(count)]
    await asyncio.sleep(0)
    return futures, tasks


def test_tasks_go_on_in_order_before_the_loop_does_anything_else() -> None:
    async def main() -> Heard:
        heard: Heard = []
        futures, tasks = await begin(3, wait, heard)
        outcomes: list[Receipt | MqError] = [receipt(7), NodeBusy("full"), receipt(9)]

        def end() -> None:
            asyncio.get_running_loop().call_soon(heard.append, (-1, "a turn later"))
            end_all(futures, outcomes)
            heard.append((-1, "all told"))

        asyncio.get_running_loop().call_soon(end)
        await asyncio.gather(*tasks)
        return heard

    told = [(0, 7), (1, NodeBusy), (2, 9), (-1, "all told"), (-1, "a turn later")]
    assert asyncio.run(main()) == told


def test_a_cancelled_task_is_left_alone_also_when_another_of_them_cancels_it() -> None:
    async def main() -> Heard:
        heard: Heard = []

        async def do(number: int, future: ReceiptFuture, heard: Heard) -> None:
            await wait(number, future, heard)
            if number == 1:
                tasks[2].cancel()

        futures, tasks = await begin(4, do, heard)
        tasks[0].cancel()
        asyncio.get_running_loop().call_soon(end_all, futures, [receipt(n) for n in range(4)])
        await asyncio.gather(*tasks)
        return heard

    cancelled = asyncio.CancelledError
    assert sorted(asyncio.run(main()), key=str) == [(0, cancelled), (1, 1), (2, cancelled), (3, 3)]


def test_a_task_keeps_its_context() -> None:
    name: ContextVar[int] = ContextVar("name")

    async def main() -> Heard:
        heard: Heard = []

        async def do(number: int, future: ReceiptFuture, heard: Heard) -> None:
            name.set(number)
            await wait(number, future, heard)
            heard.append((number, name.get()))

        futures, tasks = await begin(2, do, heard)
        asyncio.get_running_loop().call_soon(end_all, futures, [receipt(5), receipt(6)])
        await asyncio.gather(*tasks)
        return heard

    assert asyncio.run(main()) == [(0, 5), (0, 0), (1, 6), (1, 1)]


def test_a_task_that_ends_the_program_keeps_no_outcome_from_the_others() -> None:
    heard: Heard = []

    async def do(number: int, future: ReceiptFuture, heard: Heard) -> None:
        await wait(number, future, heard)
        if number == 0:
            raise SystemExit(3)

    loop = asyncio.new_event_loop()
    try:
        futures, tasks = loop.run_until_complete(begin(3, do, heard))
        loop.call_soon(end_all, futures, [receipt(n) for n in range(3)])
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.wait(tasks[1:]))
        assert isinstance(tasks[0].exception(), SystemExit)
    finally:
        loop.close()
    assert heard == [(0, 0), (1, 1), (2, 2)]
