"""What a header may cost: memory follows its bytes, whatever they say."""

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadRequest
from protocol.wire.frames import (
    HEADER_BYTES_MAX,
    ITEMS_MAX,
    LIST_ITEMS_MAX,
    TEXT_BYTES_MAX,
    pack,
    unpack,
)

SMALL_BYTES = 512 * 1024
"""What a header of at most ITEMS_MAX bytes may cost: each byte an empty list or map."""

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        st.binary(max_size=40),
        st.sampled_from([bytes(256), bytes(65_535), bytes(65_536)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=40), inner, max_size=5)
    ),
    max_leaves=30,
)


def count_items(value: Any) -> int:
    """The plain twin of the walk over the bytes."""
    if isinstance(value, list):
        return 1 + sum(map(count_items, value))
    if isinstance(value, dict):
        return 1 + sum(1 + count_items(inner) for inner in value.values())
    return 1


def fill_to(items: int, value: Any) -> dict[str, Any]:
    """A header of so many items that holds `value` and a body that makes it large."""
    header: dict[str, Any] = {"value": value, "body": bytes(ITEMS_MAX)}
    left = items - count_items(header)
    number = 0
    while left > 1:
        part = min(left - 2, LIST_ITEMS_MAX)
        header[f"l{number}"] = [0] * part
        left -= 2 + part
        number += 1
    if left == 1:
        header["value"] = [value]
    return header


@settings(max_examples=40)
@given(VALUES)
def test_items_of_every_kind_count_once_and_a_body_not_at_all(value: Any) -> None:
    at_limit = fill_to(ITEMS_MAX, value)
    assert count_items(at_limit) == ITEMS_MAX
    assert unpack(pack(at_limit)).keys() == at_limit.keys()
    with pytest.raises(BadRequest, match=f"more than {ITEMS_MAX} items"):
        unpack(pack(fill_to(ITEMS_MAX + 1, value)))


def test_text_is_bounded_and_bytes_are_not_text() -> None:
    for part in (10, 60_000):  # marks of one, two and four bytes of length
        texts = {f"t{part}": "x" * part}
        rest = TEXT_BYTES_MAX - sum(map(len, texts.values())) - sum(map(len, texts)) - len("rest")
        header: dict[str, Any] = {
            **texts,
            "rest": "x" * (rest - len("body")),
            "body": bytes(3_000_000),
        }
        assert unpack(pack(header)) == header
        header["rest"] = f"x{header['rest']}"
        with pytest.raises(BadRequest, match="bytes of text"):
            unpack(pack(header))


def bomb(item: bytes, size: int) -> bytes:
    """A map of one field with lists of lists of `item`, as deep and wide as its size allows."""
    inner = b"\xdc" + LIST_ITEMS_MAX.to_bytes(2, "big") + item * LIST_ITEMS_MAX
    count = (size - 10) // len(inner)
    return b"\x81\xa1v" + b"\xdd" + count.to_bytes(4, "big") + inner * count


WIDE = "\N{GRINNING FACE}" + "x" * 60_000
COSTLY: dict[str, bytes] = {
    "empty lists alone": b"\x90" * 4_000_000,
    "lists of empty lists": bomb(b"\x90", 4_000_000),
    "lists of empty maps": bomb(b"\x80", 4_000_000),
    "lists of one number": bomb(b"\x91\x01", 4_000_000),
    "lists of numbers": bomb(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 4_000_000),
    "lists of letters": bomb(b"\xa1\xe9", 4_000_000),
    "lists of no bytes": bomb(b"\xc4\x00", 4_000_000),
    "lists of small extensions": bomb(b"\xd4\x05\x00", 4_000_000),
    "maps": bomb(b"\x81\xa1k\xc0", 4_000_000),
    "nested lists": b"\x81\xa1v" + b"\x91" * 1_000_000,
    "wide text": pack({f"p{i}": WIDE for i in range(60)}),
    "one wide text": pack({"p": WIDE * 60}),
    "a body of zeros": pack({"body": bytes(4_000_000)}),
    "a body of empty lists": pack({"body": b"\x90" * 4_000_000}),
    "a small one of empty lists": b"\x81\xa1v\xdc\x03\xe8" + b"\x90" * 1_000,
    "a small one of lists": b"\x81\xa1v\x93" + (b"\xdc\x03\xe8" + b"\x90" * 1_000) * 3,
    "128 KiB of empty lists": bomb(b"\x90", 128 * 1024),
}


@pytest.mark.parametrize("frame", COSTLY.values(), ids=COSTLY.keys())
def test_a_header_costs_less_than_three_times_its_bytes(frame: bytes) -> None:
    assert len(frame) <= HEADER_BYTES_MAX
    tracemalloc.start()
    try:
        try:
            unpack(frame)
        except BadRequest as error:
            assert len(error.reason) < 500
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < max(3 * len(frame), SMALL_BYTES), f"{peak} bytes for {len(frame)}"


def test_every_mark_of_msgpack_is_walked_over_rightly() -> None:
    numbers: list[Any] = [
        None, True, False, 0, 127, 128, 255, 256, 65_536, 2**32, -1, -32, -33, -129, -(2**15) - 1,
        -(2**31) - 1, 1.5,
    ]  # fmt: skip
    values = [
        *numbers, "", "x" * 31, "x" * 32, "x" * 256, "x" * 65_536, b"", b"x" * 256,
        b"x" * 65_536, [], [0] * 16, {}, {str(i): i for i in range(16)},
    ]  # fmt: skip
    for value in values:
        unpack(pack(fill_to(ITEMS_MAX, value)))
        with pytest.raises(BadRequest, match="items"):
            unpack(pack(fill_to(ITEMS_MAX + 1, value)))
    for size in (1, 2, 4, 8, 16, 3, 300, 70_000):
        # Refused for what it is, and not for what it holds.
        frame = pack({"v": msgpack.ExtType(5, b"\x90" * size), "body": bytes(ITEMS_MAX)})
        with pytest.raises(BadRequest, match="exceeds max_ext_len"):
            unpack(frame)
