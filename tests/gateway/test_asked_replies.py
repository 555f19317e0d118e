"""Who waits for a reply, and for how long."""

import pytest

from keelog.gateway import asked_replies
from keelog.gateway.asked_replies import CHARS_MAX, WAIT_S, WAIT_S_MAX, AskedReplies
from protocol.remoting.header_fields import SendMessageHeader


def sent(topic: str, **pairs: str) -> SendMessageHeader:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    return SendMessageHeader("p", topic, "", 0, 0, 0, 0, 0, text)


def request(number: str, client: str = "c", **more: str) -> SendMessageHeader:
    return sent("calls", REPLY_TO_CLIENT=client, CORRELATION_ID=number, **more)


def known(asked: AskedReplies, numbers: str, user: str = "alice", now: float = 0.0) -> str:
    return "".join(one for one in numbers if asked.topic_of(user, ("c", one), now) == "calls")


@pytest.mark.parametrize(
    ("ttl", "wait_s"),
    [("5000", 5.0), ("", WAIT_S), ("soon", WAIT_S), ("-1", WAIT_S), ("0", WAIT_S),
     ("9" * 9, WAIT_S_MAX), ("9" * 30, WAIT_S)],
)  # fmt: skip
def test_a_request_is_remembered_as_long_as_its_sender_waits(ttl: str, wait_s: float) -> None:
    asked = AskedReplies()
    asked.note("alice", request("1", TTL=ttl), now=10.0)
    assert known(asked, "1", now=10.0 + wait_s - 0.01)
    assert not known(asked, "1", now=10.0 + wait_s)


def test_it_is_its_users_for_that_client_and_that_number_alone() -> None:
    asked = AskedReplies()
    asked.note("alice", request("1"), now=0.0)
    asked.note("bob", request("2"), now=0.0)
    assert (known(asked, "12"), known(asked, "12", "bob")) == ("1", "2")
    assert asked.topic_of("alice", ("d", "1"), 0.0) is None
    assert asked.topic_of("eve", ("c", "1"), 0.0) is None


def test_messages_that_ask_for_no_reply_are_not_remembered() -> None:
    asked = AskedReplies()
    for one in (
        sent("t", KEYS="REPLY_TO_CLIENT"),
        sent("t", REPLY_TO_CLIENT="c"),
        sent("t", REPLY_TO_CLIENT="", CORRELATION_ID="1"),
        request("1" * CHARS_MAX),
    ):
        asked.note("alice", one, now=0.0)
    assert asked._count == 0


def test_one_user_too_many_requests_costs_its_own_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_replies, "REQUESTS_OF_USER_MAX", 3)
    asked = AskedReplies()
    asked.note("bob", request("1"), now=0.0)
    for number in "12134":
        asked.note("alice", request(number), now=0.0)
    assert known(asked, "1234") == "134", "one that was asked again is the newest"
    assert known(asked, "1", "bob")


def test_of_all_no_more_are_remembered_until_some_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_replies, "REQUESTS_MAX", 3)
    asked = AskedReplies()
    asked.note("alice", request("1", TTL="60000"), now=0.0)
    asked.note("alice", request("2"), now=0.0)
    asked.note("bob", request("3"), now=0.0)
    asked.note("eve", request("4"), now=0.5)
    assert not known(asked, "4", "eve", 0.5)
    asked.note("eve", request("5"), now=WAIT_S + 1)
    assert known(asked, "5", "eve", WAIT_S + 1)
    assert known(asked, "12", now=WAIT_S + 1) == "1"
    assert asked._count == 2
