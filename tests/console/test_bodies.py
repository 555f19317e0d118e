"""Bodies: which form they are shown in, that nothing makes a page huge, and nothing is hidden."""

import json
import os
import zlib

import lz4.frame
import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from keelog.console.bodies.json_text import json_pieces
from keelog.console.bodies.unpack import UNPACKED_BYTES_MAX, Unpacked, unpacked
from keelog.console.bodies.view import (
    HEX,
    HEX_PAGE_BYTES,
    JSON,
    MSGPACK,
    NODES_MAX,
    PAGE_CHARS_MAX,
    PIECES_MAX,
    PLAIN,
    preview,
    shown,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES) | st.lists(VALUES), st.sampled_from([None, 2]))
def test_json_laid_out_is_the_same_json(value: object, indent: int | None) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    pieces = json_pieces(data)
    if pieces is None:
        return  # surrogates alone are not UTF-8
    assert json.loads("".join(one.text for one in pieces)) == value


def test_numbers_and_repeated_keys_stay_as_they_were_written() -> None:
    pieces = json_pieces(b'{"a":1.0,"a":1e5,"b":10000000000000000000000000.10}')
    assert pieces is not None
    text = "".join(one.text for one in pieces)
    assert '"a": 1.0' in text
    assert '"a": 1e5' in text
    assert "10000000000000000000000000.10" in text


@pytest.mark.parametrize(
    "data",
    [b"", b"1", b'"x"', b"{", b'{"a":}', b"[" * 101 + b"]" * 101, b"[" * 100_000, b"{}x", b"\xff{"],
)
def test_what_is_no_object_or_list_of_json_is_not_laid_out(data: bytes) -> None:
    assert json_pieces(data) is None


@given(st.binary(max_size=3_000), st.sampled_from(["", JSON, PLAIN, MSGPACK, HEX]))
def test_any_bytes_have_a_page_in_any_form(data: bytes, form: str) -> None:
    found = shown(Unpacked(data, ""), form, 1)
    assert found.pages >= found.page >= 1
    text = "".join(one.text for one in found.pieces)
    assert not any(ord(one) < 32 and one not in "\n\t" for one in text)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b'{"a": 1}', JSON),
        (b"[1, 2]", JSON),
        (b"plain text", PLAIN),
        ("Grüße".encode(), PLAIN),
        (msgpack.packb({"a": [1, b"\x00"]}), MSGPACK),
        (b"\x00\x01\x02\x03", HEX),
        (bytes(range(256)), HEX),
        (b"\x1b\x00" * 50, HEX),
    ],
)
def test_the_first_form_that_fits_is_shown(data: bytes, form: str) -> None:
    assert shown(Unpacked(data, ""), "", 1).form == form


def test_a_form_that_does_not_fit_is_said_and_bytes_are_shown() -> None:
    found = shown(Unpacked(b"\xff\x00", ""), JSON, 1)
    assert found.form == HEX
    assert found.is_fallback


def test_a_page_is_bounded_whatever_the_body_is() -> None:
    large = json.dumps([{"id": n, "text": "x" * 40} for n in range(4_000)]).encode()
    bodies = (large, b"y" * (1 << 20), os.urandom(1 << 20), "ü".encode() * 300_000)
    for data in bodies:
        found = shown(Unpacked(data, ""), "", 1)
        assert found.pages > 1
        assert sum(len(one.text) for one in found.pieces) <= PAGE_CHARS_MAX
        assert len(found.pieces) <= PIECES_MAX
        assert shown(Unpacked(data, ""), "", 10**9).page == found.pages


def test_all_pages_together_are_the_body() -> None:
    data = ("0123456789" * 20_000).encode()
    first = shown(Unpacked(data, ""), PLAIN, 1)
    parts = [
        shown(Unpacked(data, ""), PLAIN, one).pieces[0].text for one in range(1, first.pages + 1)
    ]
    assert "".join(parts) == data.decode()
    assert shown(Unpacked(b"x" * (3 * HEX_PAGE_BYTES), ""), HEX, 3).pages == 3


def test_msgpack_shows_so_many_values_and_no_more() -> None:
    found = shown(Unpacked(msgpack.packb(list(range(50_000))), ""), "", 1)
    assert found.form == MSGPACK
    assert "".join(one.text for one in found.pieces).count("\n") <= NODES_MAX


def test_control_characters_and_turned_text_are_visible() -> None:
    body = "a\u202eb\x1b[31mc\x9bd".encode()
    text = "".join(one.text for one in shown(Unpacked(body, ""), PLAIN, 1).pieces)
    assert text == "a\\u202eb\\u001b[31mc\\u009bd"


PLAIN_BODY = json.dumps({"packed": list(range(300))}).encode()


@pytest.mark.parametrize(
    ("stored", "flag", "codec"),
    [
        (zlib.compress(PLAIN_BODY), 0x1, "zlib"),
        (zlib.compress(PLAIN_BODY), 0x301, "zlib"),
        (lz4.frame.compress(PLAIN_BODY), 0x101, "LZ4"),
        (zstandard.compress(PLAIN_BODY), 0x201, "ZSTD"),
        (PLAIN_BODY, 0, ""),
    ],
)
def test_packed_bodies_are_unpacked(stored: bytes, flag: int, codec: str) -> None:
    assert unpacked(stored, flag) == Unpacked(PLAIN_BODY, codec)


@pytest.mark.parametrize(
    ("pack", "flag"),
    [(zlib.compress, 0x1), (lz4.frame.compress, 0x101), (zstandard.compress, 0x201)],
)
def test_a_bomb_is_unpacked_up_to_the_bound(pack, flag: int) -> None:  # type: ignore[no-untyped-def]
    found = unpacked(pack(b"\0" * (32 << 20)), flag)
    assert found.is_cut
    assert len(found.data) <= UNPACKED_BYTES_MAX
    assert "only the first" in shown(found, "", 1).note


@pytest.mark.parametrize("flag", [0x1, 0x101, 0x201])
def test_what_cannot_be_unpacked_is_shown_as_stored_and_says_so(flag: int) -> None:
    found = unpacked(b"\x01\x02\x03", flag)
    assert found.data == b"\x01\x02\x03"
    assert "broken" in shown(found, "", 1).note


@given(st.binary(max_size=400))
def test_a_preview_is_one_short_line(data: bytes) -> None:
    line = preview(Unpacked(data, ""))
    assert "\n" not in line
    assert len(line) <= 170
