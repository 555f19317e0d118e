"""A message for a group: its body, its topic, and that it is settled once."""

import zlib

import lz4.frame
import pytest
import zstandard

from keelog.client.consumer.queues import GroupMessage
from protocol.errors import BadRequest, BodyUnreadable
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_message


class Settled:
    def __init__(self) -> None:
        self.calls: list[int | None] = []

    def settle(self, message: GroupMessage, delay_level: int | None) -> None:
        self.calls.append(delay_level)


def made(
    settled: Settled, body: bytes = b"x", sys_flag: int = 0, topic: str = "t", **properties: str
) -> GroupMessage:
    raw = encode_message(
        NewMessage(topic, body, 0, sys_flag=sys_flag, properties=properties), crc=False
    )
    record = decode(raw, 0, sealed=False)
    assert isinstance(record, Record)
    return GroupMessage(raw, record, settled.settle, None)


def test_a_message_is_settled_once() -> None:
    settled = Settled()
    message = made(settled)
    message.ack()
    message.ack()
    assert settled.calls == [None]
    with pytest.raises(BadRequest, match="settled already"):
        message.retry()
    other = made(settled)
    other.retry(3)
    other.ack()
    assert settled.calls == [None, 3]


@pytest.mark.parametrize("level", [-2, 1.5, "3", True])
def test_what_is_not_a_delay_level_is_refused(level: int) -> None:
    with pytest.raises(BadRequest):
        made(Settled()).retry(level)


def test_a_message_that_comes_again_has_the_topic_of_its_producer() -> None:
    message = made(Settled(), topic="%RETRY%g", RETRY_TOPIC="orders")
    assert (message.topic, message.record.topic) == ("orders", "%RETRY%g")


@pytest.mark.parametrize(
    ("sys_flag", "stored"),
    [(0x301, zlib.compress(b"apples")), (0x1, zlib.compress(b"apples")),
     (0x101, lz4.frame.compress(b"apples")), (0x201, zstandard.compress(b"apples"))],
)  # fmt: skip
def test_a_body_that_java_has_compressed_is_plain(sys_flag: int, stored: bytes) -> None:
    message = made(Settled(), stored, sys_flag)
    assert (message.body, message.raw_body, message.sys_flag) == (b"apples", stored, sys_flag)
    assert f"compressed, {stored!r}" in repr(message)


def test_a_compressed_body_that_is_broken_is_an_error_and_can_be_shown() -> None:
    message = made(Settled(), b"no zlib", 0x301)
    with pytest.raises(BodyUnreadable):
        _ = message.body
    assert "no zlib" in repr(message)
