"""Bodies that producers compressed: plain again, within a bound, or an error with a name."""

import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BodyUnreadable, CodecMissing
from protocol.record import bodies
from protocol.record.codec import Record, decode
from protocol.record.columns import scan
from tests.protocol.records import Draft, pack_draft

PLAIN = b"a body that repeats itself, " * 400


def zstd_without_size(body: bytes) -> bytes:
    """As Java's ZstdOutputStream writes it: the head does not state how long the body is."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


CODECS: dict[int, Callable[[bytes], bytes]] = {
    0x001: zlib.compress,
    0x301: zlib.compress,
    0x101: lz4.frame.compress,
    0x201: zstd_without_size,
}
every_codec = pytest.mark.parametrize("sys_flag", CODECS)


def stored(body: bytes, sys_flag: int) -> Record:
    """The record of a message of topic `orders` with these stored bytes."""
    raw = pack_draft(
        Draft(topic=b"orders", body=body, sys_flag=sys_flag, queue_id=3, queue_offset=17)
    )
    found = decode(raw, 0)
    assert isinstance(found, Record)
    return found


@every_codec
@given(body=st.binary(max_size=2000))
def test_what_a_producer_compressed_is_plain_again(sys_flag: int, body: bytes) -> None:
    packed = CODECS[sys_flag](body)
    record = stored(packed, sys_flag)
    assert (record.body, record.raw_body) == (body, packed)


def test_zstd_with_its_size_in_the_head_is_plain_too() -> None:
    assert stored(zstandard.compress(PLAIN), 0x201).body == PLAIN


def test_a_body_without_the_flag_is_as_it_is_stored() -> None:
    packed = zlib.compress(PLAIN)
    assert stored(packed, 0x300).body == packed


@every_codec
def test_columns_give_a_row_its_plain_body(sys_flag: int) -> None:
    drafts = [Draft(body=b"small"), Draft(body=CODECS[sys_flag](PLAIN), sys_flag=sys_flag)]
    columns = scan(b"".join(map(pack_draft, drafts)), None).columns
    assert [columns.body(row) for row in range(2)] == [b"small", PLAIN]


@every_codec
@pytest.mark.parametrize("damage", ["cut", "other bytes", "empty"])
def test_a_broken_stream_is_an_error_that_names_the_message(sys_flag: int, damage: str) -> None:
    packed = CODECS[sys_flag](PLAIN)
    broken = {"cut": packed[:-9], "other bytes": b"no stream at all", "empty": b""}[damage]
    record = stored(broken, sys_flag)
    with pytest.raises(BodyUnreadable, match="message 17 of orders/3") as raised:
        _ = record.body
    assert raised.value.offset == record.physical_offset
    assert "raw_body" in raised.value.hint
    assert record.raw_body == broken


@every_codec
def test_few_bytes_never_become_more_than_the_bound(
    sys_flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PLAIN_BODY_BYTES_MAX", 100_000)
    assert len(stored(CODECS[sys_flag](bytes(100_000)), sys_flag).body) == 100_000
    for size in (100_001, 5_000_000):
        with pytest.raises(BodyUnreadable, match="becomes larger than 100000 bytes"):
            _ = stored(CODECS[sys_flag](bytes(size)), sys_flag).body


def test_a_head_that_states_a_huge_size_takes_no_memory() -> None:
    """Such a size is taken for what to allocate, if it is believed."""
    head = zstandard.FRAME_HEADER + bytes([0xE0]) + (1 << 62).to_bytes(8, "little")
    with pytest.raises(BodyUnreadable, match="becomes larger"):
        _ = stored(head + bytes(20), 0x201).body


@pytest.mark.parametrize(("sys_flag", "package"), [(0x101, "lz4"), (0x201, "zstandard")])
def test_a_library_that_is_missing_is_named(
    sys_flag: int, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = stored(CODECS[sys_flag](PLAIN), sys_flag)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.frame", None)
    with pytest.raises(CodecMissing, match=f"message 17 of orders/3.* {package} ") as raised:
        _ = record.body
    assert raised.value.hint.startswith(f"pip install {package}")


def test_a_codec_that_nobody_knows_is_named() -> None:
    with pytest.raises(CodecMissing, match="type 5, is not known"):
        _ = stored(b"?", 0x501).body
