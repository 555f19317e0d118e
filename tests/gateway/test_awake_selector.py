"""The selector of the gateway's loop: what comes in its look is found awake, the rest as ever."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from selectors import EVENT_READ

import pytest

from keelog.gateway.loop import AWAKE_S, AwakeSelector
from protocol.wire.zmtp import ASLEEP_LOOKS


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


class Watcher:
    """A selector of one end, and what happens whenever it gives way."""

    def __init__(self, end: socket.socket) -> None:
        self.gave_way = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.selector = AwakeSelector(self._give_way)
        self.selector.register(end, EVENT_READ, "data")

    def _give_way(self) -> None:
        self.gave_way += 1
        self.meanwhile()


@pytest.fixture
def watcher(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watcher]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    made = Watcher(ends[0])
    with made.selector:
        yield made


def test_what_is_there_is_found_at_once(
    watcher: Watcher, ends: tuple[socket.socket, socket.socket]
) -> None:
    ends[1].send(b"x")
    watcher.selector.look_once()
    ((key, events),) = watcher.selector.select()
    assert (key.data, events) == ("data", EVENT_READ)
    assert len(watcher.selector.select(0)) == 1
    assert watcher.gave_way == 0


def test_what_comes_while_it_looks_is_found_without_sleep(
    watcher: Watcher, ends: tuple[socket.socket, socket.socket]
) -> None:
    watcher.meanwhile = lambda: ends[1].send(b"x")
    watcher.selector.look_once()
    # A minute, should it go to sleep after all.
    began = time.monotonic()
    assert len(watcher.selector.select(60)) == 1
    assert time.monotonic() - began < 30
    assert watcher.gave_way == 1


def test_it_looks_for_a_moment_then_sleeps_and_looks_no_more_for_a_while(watcher: Watcher) -> None:
    watcher.selector.look_once()
    began = time.monotonic()
    assert watcher.selector.is_awake
    assert watcher.selector.select(0.05) == []
    assert time.monotonic() - began >= 0.05 > AWAKE_S
    assert not watcher.selector.is_awake
    looks = watcher.gave_way
    assert looks > 0
    for _ in range(ASLEEP_LOOKS):
        watcher.selector.look_once()
        assert watcher.selector.select(0.001) == []
    assert watcher.gave_way == looks
    watcher.selector.look_once()
    assert watcher.selector.select(0) == []
    assert watcher.gave_way == looks, "it never looks where it must not wait"
    assert watcher.selector.select(0.001) == []
    assert watcher.gave_way > looks


def test_it_looks_only_when_it_is_told_to_and_once(
    watcher: Watcher, ends: tuple[socket.socket, socket.socket]
) -> None:
    assert watcher.selector.select(0.001) == []
    assert watcher.gave_way == 0
    watcher.selector.look_once()
    ends[1].send(b"x")
    assert len(watcher.selector.select(1)) == 1
    ends[0].recv(1)
    assert watcher.selector.select(0.001) == []
    assert watcher.gave_way == 0


def test_a_loop_runs_with_it(ends: tuple[socket.socket, socket.socket]) -> None:
    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, ends[1].send, b"late")
        ends[0].setblocking(False)
        return await loop.sock_recv(ends[0], 10)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(AwakeSelector())) as runner:
        assert runner.run(run()) == b"late"
