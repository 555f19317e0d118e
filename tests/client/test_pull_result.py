"""What a pull answers: bytes, columns and messages of the same records."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.client.messages import Message
from keelog.client.results import PullResult, pull_result
from keelog.client.transport.exchange import NodeAnswer
from protocol.errors import BadRequest, StoreDamaged
from tests.protocol.records import Draft, drafts, pack_draft

pytestmark = pytest.mark.usefixtures("way")

FIELDS = [
    name for name in dir(Message) if isinstance(getattr(Message, name), property) and name != "body"
]  # every field that a message has; any bytes at all cannot be unpacked


def answer(items: list[Draft], first: int = 7) -> NodeAnswer:
    records = [
        pack_draft(replace(item, queue_offset=first + number), 1000 * number)
        for number, item in enumerate(items)
    ]
    sizes = np.array([len(record) for record in records], "<u4").tobytes()
    header = {"status": "FOUND", "min_offset": 0, "max_offset": 99, "sizes": sizes}
    return NodeAnswer(
        {**header, "next_begin_offset": first + len(items)}, memoryview(b"".join(records))
    )


def result(items: list[Draft]) -> PullResult:
    return pull_result(answer(items), "orders", 3)


@given(st.lists(drafts(), max_size=12))
def test_messages_and_columns_say_what_each_record_says(items: list[Draft]) -> None:
    found = result(items)
    columns = found.columns(verify=True)
    assert (found.count, len(found.messages), len(columns)) == (len(items),) * 3
    start = 0
    for row, message in enumerate(found.messages):
        alone = Message(bytes(found.payload[start : start + int(found.sizes[row])]))
        start += int(found.sizes[row])
        assert message == alone
        for name in FIELDS:
            assert getattr(message, name) == getattr(alone, name), name
        assert columns.record(row).raw == message.raw
        assert columns.piece(columns.body_start, columns.body_length, row) == message.raw_body


@given(st.lists(drafts(crc=True), min_size=1, max_size=12), st.data())
def test_a_damaged_record_is_told_by_its_own_message_alone(
    items: list[Draft], data: st.DataObject
) -> None:
    good = answer(items)
    row = data.draw(st.integers(0, len(items) - 1))
    sizes = np.frombuffer(good.header["sizes"], "<u4")
    # Not its length: then nothing behind it could be found, with or without a kernel.
    place = int(sizes[:row].sum()) + data.draw(st.integers(8, int(sizes[row]) - 1))
    raw = bytearray(good.payload)
    raw[place] ^= data.draw(st.integers(1, 255))
    found = pull_result(replace(good, payload=bytes(raw)), "orders", 3)
    for number, message in enumerate(found.messages):
        if number == row:
            with pytest.raises(StoreDamaged):
                _ = message.raw_body
        else:
            assert message.raw_body == items[number].body
    with pytest.raises(StoreDamaged):
        found.columns(verify=True)


@given(st.lists(drafts(), max_size=8), st.integers(0, 20))
def test_what_stands_at_and_behind_an_offset_can_be_left_out(
    items: list[Draft], offset: int
) -> None:
    found = result(items)
    expected = [message for message in found.messages if message.queue_offset < offset]
    less = found.below(offset)
    assert less.messages == expected
    assert less.payload == b"".join(message.raw for message in expected)


@pytest.mark.parametrize(
    ("sizes", "payload"),
    [(b"\1\0\0", b"x"), (b"\2\0\0\0", b"x"), (b"\1\0\0\0", b"x"), (b"", b"x"), (b"\0" * 4, b"")],
)
def test_sizes_that_cannot_be_are_refused(sizes: bytes, payload: bytes) -> None:
    header = {**answer([]).header, "sizes": sizes}
    with pytest.raises(BadRequest):
        pull_result(NodeAnswer(header, payload), "orders", 3)


@given(st.binary(min_size=91, max_size=400))
def test_any_bytes_at_all_are_messages_that_say_they_are_damaged(data: bytes) -> None:
    header = {**answer([]).header, "sizes": np.array([len(data)], "<u4").tobytes()}
    found = pull_result(NodeAnswer(header, data), "orders", 3)
    with pytest.raises(StoreDamaged):
        found.columns()
    with pytest.raises(StoreDamaged):
        _ = found.messages[0].body
