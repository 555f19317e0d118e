"""The selector of the gateway's loop: what comes in its look is found awake, the rest as ever."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from selectors import EVENT_READ

import pytest

from client.transport.awake import ASLEEP_LOOKS
from gateway.awake_selector import AWAKE_S, AwakeSelector


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


@pytest.fixture
def selector(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> Iterator[AwakeSelector]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with AwakeSelector() as made:
        made.register(ends[0], EVENT_READ, "data")
        yield made


def test_what_is_there_is_found_at_once(
    selector: AwakeSelector,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def yields() -> None:
        raise AssertionError("it gave way though something was there")

    ends[1].send(b"x")
    monkeypatch.setattr(os, "sched_yield", yields)
    ((key, events),) = selector.select()
    assert (key.data, events) == ("data", EVENT_READ)
    assert selector.select(0) != []


def test_what_comes_while_it_looks_is_found_without_sleep(
    selector: AwakeSelector,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_yield", lambda: ends[1].send(b"x"))
    # A minute, should it go to sleep after all.
    began = time.monotonic()
    assert len(selector.select(60)) == 1
    assert time.monotonic() - began < 30


def test_it_looks_for_a_moment_then_sleeps_and_looks_no_more_for_a_while(
    selector: AwakeSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def yields() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(os, "sched_yield", yields)
    began = time.monotonic()
    assert selector.select(0.05) == []
    assert time.monotonic() - began >= 0.05 > AWAKE_S
    assert looks > 0
    before = looks
    for _ in range(ASLEEP_LOOKS):
        assert selector.select(0.001) == []
    assert looks == before
    assert selector.select(0) == [], "it never looks where it must not wait"
    assert looks == before


def test_a_loop_runs_with_it(ends: tuple[socket.socket, socket.socket]) -> None:
    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, ends[1].send, b"late")
        ends[0].setblocking(False)
        return await loop.sock_recv(ends[0], 10)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(AwakeSelector())) as runner:
        assert runner.run(run()) == b"late"
