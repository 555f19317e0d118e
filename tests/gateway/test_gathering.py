"""What requests and answers give to send goes at their end, once, and whatever else fails."""

import asyncio
from collections.abc import Callable

import pytest

from keelog.gateway.connection import Gathering
from tests.gateway.test_bad_citizens import Handler, connected, frame, receive


def test_the_replies_of_a_read_go_out_with_it_in_one_write() -> None:
    async def run() -> None:
        connection, transport = await connected(Handler())
        receive(connection, frame(1) + frame(2) + frame(3))
        assert len(transport.written) == 1
        await asyncio.sleep(0)
        assert len(transport.written) == 1

    asyncio.run(run())


def appends(to: list[str], text: str) -> Callable[[], None]:
    return lambda: to.append(text)


def test_what_is_sent_outside_goes_at_the_end_of_the_turn() -> None:
    async def run() -> list[str]:
        gathering, sent = Gathering(), list[str]()
        gathering.at_end(appends(sent, "first"))
        gathering.at_end(appends(sent, "second"))
        assert sent == []
        await asyncio.sleep(0)
        return sent

    assert asyncio.run(run()) == ["first", "second"]


def test_what_a_send_brings_goes_with_it() -> None:
    gathering, sent = Gathering(), list[str]()

    def answered() -> None:
        sent.append("request")
        with gathering:
            gathering.at_end(appends(sent, "reply"))

    with gathering:
        gathering.at_end(answered)
        gathering.at_end(appends(sent, "other"))
        assert sent == []
    assert sent == ["request", "other", "reply"]


def test_what_nobody_waits_for_is_done_after_all_that_is_sent() -> None:
    gathering, done = Gathering(), list[str]()

    def turn() -> None:
        done.append("turn")
        gathering.at_end(appends(done, "what it brings"))

    with gathering:
        gathering.at_end(turn, is_last=True)
        gathering.at_end(appends(done, "first"))
        gathering.at_end(lambda: gathering.at_end(appends(done, "second")))
    assert done == ["first", "second", "turn", "what it brings"]


def test_what_nobody_waits_for_is_done_where_nothing_is_sent() -> None:
    async def run() -> list[str]:
        gathering, done = Gathering(), list[str]()
        gathering.at_end(appends(done, "turn"), is_last=True)
        assert done == []
        await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["turn"]


def test_a_send_that_fails_keeps_no_other_back() -> None:
    async def run() -> list[str]:
        gathering, sent = Gathering(), list[str]()

        def fail() -> None:
            raise RuntimeError("not this one")

        with pytest.raises(RuntimeError, match="not this one"), gathering:
            gathering.at_end(fail)
            gathering.at_end(appends(sent, "other"))
        assert sent == []
        await asyncio.sleep(0)
        return sent

    assert asyncio.run(run()) == ["other"]
