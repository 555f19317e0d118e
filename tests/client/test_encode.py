"""The short way of encoding makes the same records as the general one, or leaves them to it."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keelog.client.messages import OutgoingMessage
from keelog.client.send.encode import Encoder, UniqueKeys
from keelog.client.send.record_batch import EncodedMessage
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.routes import Routes
from protocol.errors import BadRequest, MqError
from protocol.ids import parse_host
from protocol.record.codec import SHORT_HEAD

BORN = slice(SHORT_HEAD.offsets["born_timestamp"], SHORT_HEAD.offsets["born_ip"])


class OneKey(UniqueKeys):
    """Gives the same key again and again."""

    def __init__(self, ip: bytes) -> None:
        super().__init__(ip)
        self.numbers = count(1, 0)

    def start(self, now: float, prefix: str | None = None) -> str:
        return "7F0000010A2B18B4AAC200000000"


class FakeIo(IoThread):
    """Routes, and nothing else."""

    def __init__(self, crc: bool) -> None:
        self.routes = Routes("w", ("r",), crc, 1000, 1, "fake")


def encoder(crc: bool) -> Encoder:
    return Encoder(FakeIo(crc), OneKey(b"\x7f\x00\x00\x01"), parse_host("10.0.0.1:0"))


def both(crc: bool, topic: str, body: bytes, options: dict[str, Any]) -> Iterator[object]:
    """What each way makes of it: an entry without its time, or the class of the error."""
    for message, beside in ((body, options), (OutgoingMessage(body, **options), {})):
        try:
            entry = encoder(crc).entry(topic, message, beside, None)  # type: ignore[arg-type]
        except MqError as error:
            yield type(error), str(error)
        else:
            record = bytearray(entry.record)
            record[BORN] = bytes(8)
            yield entry._replace(record=bytes(record))


text = st.text(max_size=12) | st.sampled_from(["", "a b", "\x01", "\x02", "ü", "\ud800"])


@example(crc=True, topic="t", body=b"", options={"keys": ""})
@given(
    crc=st.booleans(),
    topic=st.from_regex(r"[%|a-zA-Z0-9_-]{1,20}", fullmatch=True) | text | st.just("t" * 130),
    body=st.binary(max_size=300) | st.just(bytes(1001)),
    options=st.fixed_dictionaries(
        {},
        optional={
            "tags": text,
            "keys": text | st.lists(text, max_size=4) | st.just(["k" * 40_000]),
            "queue_id": st.integers(-3, 70_000) | st.none(),
            "order_by": st.none() | st.just("o-17"),
            "unique_key": st.none() | st.just("MINE"),
        },
    ),
)
def test_both_ways_make_the_same_record_or_the_same_error(
    crc: bool, topic: str, body: bytes, options: dict[str, Any]
) -> None:
    short, general = both(crc, topic, body, options)
    assert short == general


def test_a_plain_message_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def general(*_: object) -> None:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr("keelog.client.send.encode.outgoing", general)
    entry = encoder(True).entry("orders", b"x", {"tags": "paid", "keys": ["a", "b"]}, 5)
    assert isinstance(entry, EncodedMessage)
    assert (entry.topic, entry.queue_id, entry.slot) == ("orders", -1, 5)


@pytest.mark.parametrize(
    "options",
    [{"tags": 1}, {"tags": ["a"]}, {"keys": [1]}, {"keys": 5}, {"queue_id": "1"}, {"order_by": 3}],
)
def test_values_of_other_types_are_refused_with_a_reason(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        encoder(True).entry("orders", b"x", options, None)  # type: ignore[arg-type]
