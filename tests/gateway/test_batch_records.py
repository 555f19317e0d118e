"""The records of a batch are those of its messages one by one, with the kernel and without it."""

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keelog.client.send.record_batch import BatchReceipt
from keelog.client.send.sender import SEND_BYTES_MAX
from keelog.gateway.connection import Reply, Request
from keelog.gateway.sending import sends
from keelog.gateway.sending.sends import Sends
from keelog.gateway.sending.stored_properties import SPECIAL_NAMES, DelayRules
from node.runtime.settings import Settings
from protocol.errors import IllegalMessage, MessageTooLarge, MqError
from protocol.ids import Host
from protocol.kernel import loader
from protocol.record.waiting import RealPlace
from protocol.remoting.codes import BadCommand, ResponseCode
from protocol.remoting.header_fields import SendMessageHeader
from tests.support.kernel import using

BODY_MAX = 60
KEY = b"UNIQ_KEY\x01AC1100010000000000000000A1B2\x02"
HOSTS = (Host(bytes([10, 0, 0, 5]), 7), Host(bytes(range(16)), 9))
LONG, LONG_BYTES = b"<long>", 32_720
"""Stands for so many bytes: hypothesis shows what it tries."""
PIECES = (
    *(
        KEY,
        KEY[:-1],
        b"UNIQ_KEY\x01\x02",
        b"XUNIQ_KEY\x01a\x02",
        b"\xff\x01a\x02",
        b"\x01",
        b"\x02",
    ),
    *(b"KEYS\x01a b\x02", b"TAGS\x01\xc3\xa9\x02", b"a\x01", b"a\x01b\x02", b"a\x01b\x01c\x02"),
    *(name.encode() + b"\x01true\x02" for name in SPECIAL_NAMES),
    b"x\x01" + LONG + b"\x02",
)
plain_properties = st.lists(st.sampled_from(PIECES[7:11:3]), max_size=3).map(
    lambda pieces: b"".join([*pieces, KEY])
)
odd_properties = st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join)
bodies = st.binary(max_size=BODY_MAX + 1)
flags = st.integers(-(2**31), 2**31 - 1)


Item = tuple[int, bytes, bytes]
"""Flag, body and properties of one message."""


def encoded(flag: int, body: bytes, properties: bytes) -> bytes:
    """MessageDecoder#encodeMessage."""
    properties = properties.replace(LONG, b"y" * LONG_BYTES, 1)[: 2**15 - 1]
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def batches(properties: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Item]]:
    return st.lists(st.tuples(flags, bodies, properties), max_size=5)


def sends_with(crc: bool) -> Sends:
    link = SimpleNamespace(body_bytes_max=BODY_MAX, crc=crc)
    delays = DelayRules(18, 1000, "b")
    made = Sends(*cast(Any, (link, None, None, "c", delays, Settings(), None)))
    made._keys = cast(Any, SimpleNamespace(next=lambda: "OURS"))
    return made


def outcome(crc: bool, batch: bytes, host: Host, topic: str) -> Any:
    """The records, sizes, checksum and keys, or what was refused and why."""
    wanted = cast(
        SendMessageHeader, SimpleNamespace(born_timestamp=5, sys_flag=0, reconsume_times=1)
    )
    request = cast(Request, SimpleNamespace(connection=SimpleNamespace(peer=host)))
    try:
        found = sends_with(crc)._columns(request, wanted, RealPlace(topic, 3), memoryview(batch))
    except MqError as error:
        return type(error), error.reason
    of = found.encoded
    return of.records.tobytes(), of.sizes.tolist(), of.crc, list(found.unique_keys)


@given(
    st.one_of(batches(plain_properties), batches(odd_properties), st.binary(max_size=99)),
    st.booleans(),
    st.sampled_from(HOSTS),
    st.sampled_from(["orders", "t" * 127, "t" * 200]),
)
@example(encoded(1, b"b", KEY[:-1]), True, HOSTS[0], "orders")
@example(encoded(1, b"b", KEY) + b"\0", True, HOSTS[0], "orders")
@example(b"", True, HOSTS[0], "orders")
def test_a_batch_has_the_records_of_its_messages(
    sent: list[Item] | bytes, crc: bool, host: Host, topic: str
) -> None:
    batch = sent if isinstance(sent, bytes) else b"".join(encoded(*item) for item in sent)
    with_kernel = outcome(crc, batch, host, topic)
    with using(None):
        assert outcome(crc, batch, host, topic) == with_kernel


@pytest.mark.parametrize("name", SPECIAL_NAMES)
def test_a_property_that_is_not_stored_as_it_is_leaves_the_kernel_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sends, "batch_items", lambda _: pytest.fail("the plain way"))
    plain = encoded(0, b"b", KEY)
    if loader.kernel is not None:
        assert outcome(True, plain, HOSTS[0], "t")[3] == ["AC1100010000000000000000A1B2"]
    with pytest.raises(pytest.fail.Exception):
        outcome(True, plain + encoded(0, b"b", KEY + f"{name}\x011\x02".encode()), HOSTS[0], "t")


def test_the_first_bad_message_of_a_batch_is_named(way: str) -> None:
    good = encoded(0, b"good", KEY)
    for bad, error, text in (
        (encoded(0, bytes(BODY_MAX + 1), KEY), MessageTooLarge, "61 bytes"),
        (encoded(0, b"", KEY + b"DELAY\x013\x02"), IllegalMessage, "a delay in a batch"),
        (encoded(0, b"", KEY + b"TRAN_MSG\x01true\x02"), IllegalMessage, "a transaction in"),
        (good[:-1], BadCommand, "message 1 of the batch"),
    ):
        kind, reason = outcome(True, good + bad, HOSTS[0], "t")
        assert kind is error
        assert text in reason


def test_a_large_batch_goes_to_the_writer_in_parts_that_hold_all_of_it(way: str) -> None:
    whole = sends_with(True)
    whole._link.body_bytes_max = 200_000
    batch = b"".join(encoded(number, bytes(number * 40), KEY) for number in range(300))
    wanted = cast(Any, SimpleNamespace(born_timestamp=5, sys_flag=0, reconsume_times=1))
    request = cast(Any, SimpleNamespace(connection=SimpleNamespace(peer=HOSTS[0])))
    columns = whole._columns(request, wanted, RealPlace("t", 3), memoryview(batch))
    parts = list(sends._parts(columns))
    assert len(parts) > 5
    assert all(len(part.encoded.records) <= SEND_BYTES_MAX for part in parts)
    assert b"".join(part.encoded.records.tobytes() for part in parts) == bytes(
        columns.encoded.records
    )
    assert [size for part in parts for size in part.encoded.sizes.tolist()] == list(
        columns.encoded.sizes
    )
    assert [key for part in parts for key in part.unique_keys] == list(columns.unique_keys)


def test_a_batch_of_which_one_part_is_not_flushed_in_time_is_said_to_be_so() -> None:
    replies: list[Reply] = []
    request = cast(Any, SimpleNamespace(answer=replies.append))
    done = sends._batch_done(request, 3, 5)
    place = {"flushed": True, "store_timestamp": 1, "store_host": "127.0.0.1:7851"}
    for number, status in enumerate(("PUT_OK", "FLUSH_DISK_TIMEOUT", "PUT_OK")):
        answer = {**place, "status": status, "physical_offset": 100 * number}
        answer["queues"] = [["t", 5, 2 * number, 2]]
        assert replies == []
        done(BatchReceipt("t", [40, 60], ["A", "B"], answer))
    (reply,) = replies
    assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert [int(one[-16:], 16) for one in reply.ext["msgId"].split(",")] == [
        0, 40, 100, 140, 200, 240,
    ]  # fmt: skip
    assert (reply.ext["queueId"], reply.ext["queueOffset"]) == ("5", "0")
