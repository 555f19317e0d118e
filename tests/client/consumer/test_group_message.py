"""A message for a group: its body, its topic, and that it is settled once."""

import zlib

import pytest

from client.consumer.group_message import GroupMessage
from protocol.errors import BadRequest, StoreDamaged
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
    return GroupMessage(raw, record, settled, None)


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


@pytest.mark.parametrize("sys_flag", [0x301, 0x1])
def test_a_body_that_java_has_compressed_is_plain(sys_flag: int) -> None:
    body = b"apples " * 1000
    stored = zlib.compress(body)
    message = made(Settled(), stored, sys_flag)
    assert message.body == body
    assert message.record.body == stored


def test_a_body_in_another_compression_stays_as_it_is() -> None:
    assert made(Settled(), b"lz4 or zstd", 0x101).body == b"lz4 or zstd"


@pytest.mark.parametrize("stored", [b"no zlib", zlib.compress(b"apples" * 99)[:-6]])
def test_a_compressed_body_that_is_broken_is_damage(stored: bytes) -> None:
    with pytest.raises(StoreDamaged):
        _ = made(Settled(), stored, 0x301).body
