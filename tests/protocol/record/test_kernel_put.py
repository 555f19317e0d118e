"""A message encoded and sealed by one call of the kernel, against the plain way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import Host
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.codec import BORN_HOST_V6, STORE_HOST_V6
from protocol.record.encode import FORBIDDEN_SYS_FLAGS, NewMessage, check_message, encode_message
from protocol.record.kernel_append import Put, PutKernel
from protocol.record.patch import AppendRules, PlainRow, patch_plain
from protocol.record.properties import PROPERTIES_BYTES_MAX
from tests.protocol.record.test_encode import messages
from tests.protocol.record.test_patch import RULES, STAMP

OFFSETS = st.integers(0, 2**62)


@pytest.fixture(scope="module")
def compiled() -> Kernel:
    found = loader.active()
    if found is None:
        pytest.skip("this installation has no compiled kernel")
    return found


def draft(message: NewMessage, rules: AppendRules) -> Put:
    return Put(
        message.topic,
        message.body,
        message.queue_id,
        check_message(message, rules.crc, rules.max_message_bytes),
        message.born_timestamp,
        message.born_host,
        message.flag,
        message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        message.reconsume_times,
    )


@given(messages(), st.booleans(), st.integers(0, 65_535), OFFSETS, OFFSETS)
def test_it_makes_the_bytes_that_the_plain_way_does(
    compiled: Kernel, message: NewMessage, crc: bool, queue_id: int, offset: int, base: int
) -> None:
    rules = RULES._replace(crc=crc)
    expected = bytearray(encode_message(message, crc))
    row = PlainRow(0, len(expected), message.topic, queue_id, 0)
    is_common = not message.born_host.is_v6 and len(message.topic) <= SHORT_TOPIC_CHARS_MAX
    puts = PutKernel(compiled, rules, STAMP.store_host)
    put, topic = draft(message, rules), message.topic.encode()
    made = puts.record(put, topic, queue_id, offset, base, STAMP.store_timestamp)
    if not is_common:
        assert made is None
        return
    patch_plain(expected, row, offset, base, STAMP, crc)
    assert made is not None and bytes(made) == expected


@pytest.mark.parametrize(
    "put",
    [
        Put("t", bytes(RULES.max_message_bytes + 2 * PROPERTIES_BYTES_MAX), 0),
        Put("t", b"", 0, bytes(PROPERTIES_BYTES_MAX - 10)),
        Put("t" * 128, b"", 0),
        Put("", b"", 0),
        Put("t", b"", 0, born_host=Host(bytes(16), 1)),
        Put("t", b"", 0, born_host=Host(bytes(4), 2**31)),
        Put("t", b"", 0, flag=2**31),
        Put("t", b"", 0, born_timestamp=2**63),
        *(
            Put("t", b"", 0, sys_flag=1 << bit)
            for bit in range(8)
            if FORBIDDEN_SYS_FLAGS >> bit & 1
        ),
        Put("t", b"", 0, sys_flag=BORN_HOST_V6),
    ],
    ids=lambda put: (
        f"{put.topic[:3]}-{put.flag}-{put.sys_flag}-{put.born_host.port}-{len(put.body)}"
    ),
)
def test_what_fits_no_common_record_is_left_to_others(compiled: Kernel, put: Put) -> None:
    puts = PutKernel(compiled, RULES, STAMP.store_host)
    assert puts.record(put, put.topic.encode(), 0, 0, 0, 0) is None
    assert puts.record(Put("t", b"x", 0), b"t", 0, 0, 0, 0) is not None
