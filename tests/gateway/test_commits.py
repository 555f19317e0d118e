"""Offsets that groups commit, until the writer has them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from keelog.client.operations import Operation
from keelog.gateway import offsets as commits
from keelog.gateway.offsets import Commits
from protocol.errors import MqError, NodeBusy, UnknownTopic

Sent = list[tuple[str, str, dict[int, int]]]
Body = Callable[[Commits, "Writer"], Coroutine[Any, Any, None]]


class Writer:
    """Stands for the writer: it notes what it is sent, or refuses it."""

    def __init__(self) -> None:
        self.sent: Sent = []
        self.refuses: MqError | None = None
        self.is_called = asyncio.Event()

    def deadline(self, _: float | None) -> float:
        return 0.0

    async def run(self, _: object, operation: Operation[None]) -> None:
        asked = next(operation).fields
        self.is_called.set()
        await asyncio.sleep(0)
        if self.refuses is not None:
            raise self.refuses
        self.sent.append((asked["topic"], asked["group"], dict(asked["offsets"])))


def in_a_loop(monkeypatch: pytest.MonkeyPatch, body: Body) -> Writer:
    async def play() -> Writer:
        writer = Writer()
        monkeypatch.setattr(commits, "run", writer.run)
        monkeypatch.setattr(commits, "COMMIT_S", 0.01)
        monkeypatch.setattr(commits, "RETRY_S", 0.01)
        await body(Commits(writer, lambda topic: 0), writer)  # type: ignore[arg-type]
        return writer

    return asyncio.run(play())


def test_the_newest_offsets_of_a_moment_go_as_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(waiting: Commits, _: Writer) -> None:
        for offset in range(100):
            waiting.note("t", "g", offset % 2, offset)
        waiting.note("t", "other", 0, 7)
        waiting.note("t", "g", 0, -1)
        assert waiting.waiting("t", "g") == {0: 98, 1: 99}
        await asyncio.sleep(0.1)
        assert waiting.waiting("t", "g") == {}

    assert in_a_loop(monkeypatch, body).sent == [("t", "g", {0: 98, 1: 99}), ("t", "other", {0: 7})]


def test_a_group_that_commits_without_a_pause_asks_the_writer_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(waiting: Commits, _: Writer) -> None:
        monkeypatch.setattr(commits, "COMMIT_S", 60.0)
        await waiting.commit("t", "g", 0, 1)
        for offset in range(2, 100):
            waiting.note("t", "g", 0, offset)
            await asyncio.sleep(0)

    assert in_a_loop(monkeypatch, body).sent == [("t", "g", {0: 1})]


def test_offsets_wait_for_a_writer_that_is_away_and_newer_ones_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(waiting: Commits, writer: Writer) -> None:
        writer.refuses = NodeBusy("it is away")
        waiting.note("t", "g", 0, 5)
        waiting.note("t", "g", 1, 6)
        await writer.is_called.wait()
        waiting.note("t", "g", 0, 9)
        assert waiting.waiting("t", "g") == {0: 9, 1: 6}
        await asyncio.sleep(0.05)
        assert writer.sent == []
        writer.refuses = None
        await asyncio.sleep(0.1)

    assert in_a_loop(monkeypatch, body).sent == [("t", "g", {0: 9, 1: 6})]


def test_offsets_that_the_writer_refuses_hold_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(waiting: Commits, writer: Writer) -> None:
        writer.refuses = UnknownTopic("no such topic")
        waiting.note("gone", "g", 0, 5)
        await writer.is_called.wait()
        await asyncio.sleep(0.05)
        assert waiting.waiting("gone", "g") == {}
        writer.refuses = None
        waiting.note("t", "g", 0, 5)
        await asyncio.sleep(0.1)

    assert in_a_loop(monkeypatch, body).sent == [("t", "g", {0: 5})]


def test_one_offset_too_many_is_refused_as_busy_until_the_writer_has_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(waiting: Commits, writer: Writer) -> None:
        monkeypatch.setattr(commits, "WAITING_MAX", 3)
        writer.refuses = NodeBusy("it is away")
        for group, queue in (("a", 0), ("b", 0), ("a", 1)):
            waiting.note("t", group, queue, 1)
        for group, queue in (("c", 0), ("a", 2)):
            with pytest.raises(NodeBusy):
                waiting.note("t", group, queue, 1)
        await asyncio.sleep(0.05)
        waiting.note("t", "a", 0, 2)
        with pytest.raises(NodeBusy):
            waiting.note("t", "a", 2, 1)
        writer.refuses = None
        await asyncio.sleep(0.1)
        for queue in range(3):
            waiting.note("t", "c", queue, 1)
        with pytest.raises(NodeBusy):
            waiting.note("t", "c", 3, 1)

    in_a_loop(monkeypatch, body)


def test_an_orderly_stop_sends_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(waiting: Commits, _: Writer) -> None:
        monkeypatch.setattr(commits, "COMMIT_S", 60.0)
        await waiting.commit("t", "g", 0, 4)
        waiting.note("t", "g", 0, 5)
        await asyncio.sleep(0)
        assert waiting.waiting("t", "g") == {0: 5}
        await waiting.close()

    assert in_a_loop(monkeypatch, body).sent == [("t", "g", {0: 4}), ("t", "g", {0: 5})]


def test_a_commit_with_a_reply_is_the_writers_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(waiting: Commits, writer: Writer) -> None:
        await waiting.commit("t", "g", 0, 5)
        assert writer.sent == [("t", "g", {0: 5})]
        writer.refuses = UnknownTopic("no such topic")
        with pytest.raises(UnknownTopic):
            await waiting.commit("gone", "g", 0, 5)
        writer.refuses = NodeBusy("it is away")
        monkeypatch.setattr(commits, "REPLY_S", 0.05)
        with pytest.raises(NodeBusy):
            await waiting.commit("t", "g", 0, 6)
        writer.refuses = None
        await asyncio.sleep(0.1)
        assert writer.sent[-1] == ("t", "g", {0: 6})

    in_a_loop(monkeypatch, body)


def test_an_unexpected_error_reaches_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException] = []

    async def body(waiting: Commits, writer: Writer) -> None:
        waiting.fail = seen.append
        monkeypatch.setattr(commits, "run", None)
        waiting.note("t", "g", 0, 5)
        await asyncio.sleep(0.1)

    in_a_loop(monkeypatch, body)
    assert [type(error) for error in seen] == [TypeError]
