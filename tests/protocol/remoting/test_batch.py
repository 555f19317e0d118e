"""The body of a batch: items as RocketMQ's client writes them, or one typed error."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.remoting.batch import BATCH_ITEMS_MAX, batch_items
from protocol.remoting.codes import BadCommand

int32 = st.integers(-(2**31), 2**31 - 1)
items = st.tuples(int32, st.binary(max_size=50), st.binary(max_size=50))


def encoded(flag: int, body: bytes, properties: bytes) -> bytes:
    """MessageDecoder#encodeMessage."""
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


@given(st.lists(items, min_size=1, max_size=8))
def test_items_come_back(sent: list[tuple[int, bytes, bytes]]) -> None:
    batch = b"".join(encoded(*item) for item in sent)
    found = batch_items(memoryview(batch))
    assert [(one.flag, bytes(one.body), bytes(one.properties)) for one in found] == sent


@given(st.lists(items, min_size=1, max_size=3), st.data())
def test_a_batch_that_is_cut_is_refused(
    sent: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    last = encoded(*sent[-1])
    batch = b"".join(encoded(*item) for item in sent)
    end = data.draw(st.integers(len(batch) - len(last) + 1, len(batch) - 1))
    with pytest.raises(BadCommand, match=f"message {len(sent) - 1} of the batch"):
        batch_items(memoryview(batch)[:end])


@given(st.binary(max_size=120))
def test_any_bytes_are_a_batch_or_a_typed_error(data: bytes) -> None:
    try:
        found = batch_items(memoryview(data))
    except BadCommand:
        return
    assert sum(22 + len(one.body) + len(one.properties) for one in found) == len(data)


@pytest.mark.parametrize("length", [-1, -22, -(2**31), 2**31 - 1])
def test_a_length_that_leads_out_of_the_batch_is_refused(length: int) -> None:
    data = bytearray(encoded(0, b"one", b"") * 2)
    data[16:20] = struct.pack(">i", length)
    with pytest.raises(BadCommand, match="message 0"):
        batch_items(memoryview(data))


def test_an_empty_batch_and_one_of_too_many_messages_are_refused() -> None:
    with pytest.raises(BadCommand, match="body is missing"):
        batch_items(memoryview(b""))
    item = encoded(0, b"", b"")
    assert len(batch_items(memoryview(item * BATCH_ITEMS_MAX))) == BATCH_ITEMS_MAX
    with pytest.raises(BadCommand, match="65535"):
        batch_items(memoryview(item * (BATCH_ITEMS_MAX + 1)))
