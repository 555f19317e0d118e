"""Records as hypothesis makes them: packed here, field by field, not by the encoder under test."""

import struct
import zlib
from dataclasses import dataclass, field

from hypothesis import strategies as st

from protocol.ids import NO_HOST, Host
from protocol.record.codec import BORN_HOST_V6, CRC_MASK, MAGIC_V1, MAGIC_V2, STORE_HOST_V6
from protocol.record.properties import CRC_PROPERTY_BYTES, EMPTY_CRC_PROPERTY, crc_property

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

HOSTS = st.builds(
    Host, st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), I32
)
PROPERTY_NAMES = st.sampled_from(
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "DELAY",
        "WAIT",
        "tags",
        "TAG",
        "TAGSS",
        "a",
        "é",
        "名",
        "😀",
        "x\0y",
    ]
)
PROPERTY_VALUES = st.one_of(
    st.sampled_from(["", " ", "TagA", "a||b", "k1 k2", "k1  k2 ", " k", "3", "-1", "99", "𐍈 ö"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
PAIRS = st.tuples(PROPERTY_NAMES, PROPERTY_VALUES).map(
    lambda pair: f"{pair[0]}\1{pair[1]}\2".encode()
)
STRANGE_PIECES = st.one_of(
    PAIRS,
    st.sampled_from(
        [b"\1", b"\2", b"\2\2", b"TAGS", b"TAGS\1", b"KEYS\1\1\2", b"\1x\2", b"\xff", b""]
    ),
    st.binary(max_size=12),
)
PROPERTIES = st.one_of(
    st.lists(PAIRS, max_size=5).map(b"".join),
    st.lists(STRANGE_PIECES, max_size=6).map(b"".join),
    st.just(b"a\1" + b"v" * 32_700 + b"\2"),
)
TOPICS = st.one_of(
    st.sampled_from(["t", "FooBar", "SCHEDULE_TOPIC_XXXX", "%RETRY%group", "名", ""]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
BODIES = st.one_of(
    st.sampled_from(
        [b"", b"hello", b"__CRC32#\1", b"x__CRC32#", b"\0" * 300, b"\xda\xa3\x20\xa7" * 9]
    ),
    st.binary(max_size=60),
    st.just(b"large" * 20_000),
)


@dataclass(frozen=True)
class Draft:
    """All that one record says. `crc` seals it with the whole-record checksum."""

    topic: bytes = b"t"
    body: bytes = b""
    properties: bytes = b""
    v2: bool = False
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = NO_HOST
    store_timestamp: int = 0
    store_host: Host = field(default=Host(bytes([10, 0, 0, 5]), 10911))
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    crc: bool = False


def pack_draft(draft: Draft, physical_offset: int = 0, body_crc: int | None = None) -> bytes:
    """The record's bytes, sealed when the draft says so."""
    flags = draft.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    flags |= BORN_HOST_V6 if draft.born_host.is_v6 else 0
    flags |= STORE_HOST_V6 if draft.store_host.is_v6 else 0
    properties = draft.properties + (EMPTY_CRC_PROPERTY if draft.crc else b"")
    crc = zlib.crc32(draft.body) & CRC_MASK if body_crc is None else body_crc
    rest = b"".join(
        (
            struct.pack(">Iii", MAGIC_V2 if draft.v2 else MAGIC_V1, crc, draft.queue_id),
            struct.pack(">iqqi", draft.flag, draft.queue_offset, physical_offset, flags),
            struct.pack(">q", draft.born_timestamp) + draft.born_host.to_bytes(),
            struct.pack(">q", draft.store_timestamp) + draft.store_host.to_bytes(),
            struct.pack(">iq", draft.reconsume_times, draft.prepared_transaction_offset),
            struct.pack(">i", len(draft.body)) + draft.body,
            struct.pack(">h" if draft.v2 else ">b", len(draft.topic)) + draft.topic,
            struct.pack(">h", len(properties)) + properties,
        )
    )
    raw = struct.pack(">i", len(rest) + 4) + rest
    return seal(raw) if draft.crc else raw


def seal(raw: bytes) -> bytes:
    """The record with its last property's checksum made right."""
    covered = raw[:-CRC_PROPERTY_BYTES]
    return covered + crc_property(zlib.crc32(covered))


@st.composite
def drafts(draw: st.DrawFn, crc: bool | None = None) -> Draft:
    """Any valid record; `crc` None draws whether it is sealed."""
    sealed = draw(st.booleans()) if crc is None else crc
    topic = draw(TOPICS).encode()[:127]
    while topic and not _is_utf8(topic):
        topic = topic[:-1]
    v2 = draw(st.booleans())
    if v2 and draw(st.booleans()):
        topic = b"L" * draw(st.integers(128, 255))
    return Draft(
        topic=topic,
        body=draw(BODIES),
        properties=draw(PROPERTIES.filter(lambda raw: len(raw) <= 32_767 - CRC_PROPERTY_BYTES)),
        v2=v2,
        queue_id=draw(I32),
        flag=draw(I32),
        queue_offset=draw(I64),
        sys_flag=draw(I32),
        born_timestamp=draw(I64),
        born_host=draw(HOSTS),
        store_timestamp=draw(I64),
        store_host=draw(HOSTS),
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
        crc=sealed,
    )


def pack_log(items: list[Draft], base: int = 0) -> bytes:
    """The records back to back, the first at log offset `base`."""
    log = b""
    for draft in items:
        log += pack_draft(draft, base + len(log))
    return log


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
