"""Properties: back as written, and Java's rules for what was written by others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IllegalMessage, PropertiesTooLarge
from protocol.record.java_hash import java_text
from protocol.record.properties import (
    PROPERTIES_BYTES_MAX,
    crc_property,
    decode_properties,
    decode_raw_properties,
    encode_properties,
    split_keys,
)

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\1\2"), min_size=1, max_size=20
)


@given(st.dictionaries(TEXT, TEXT, max_size=8))
def test_properties_come_back_as_written_and_in_order(pairs: dict[str, str]) -> None:
    encoded = encode_properties(pairs)
    assert list(decode_properties(encoded).items()) == list(pairs.items())
    assert not encoded or encoded.endswith(b"\2")
    assert encode_properties(list(pairs.items())) == encoded


@pytest.mark.parametrize(
    ("data", "pairs"),
    [
        (b"", {}),
        (b"a\1b\2", {"a": "b"}),
        (b"a\1b", {"a": "b"}),
        (b"\2\2a\1b\2\2", {"a": "b"}),
        (b"a\1\2c\1d\2", {"c": "d"}),
        (b"\1b\2", {}),
        (b"ab\2", {}),
        (b"a\1b\1c\2", {"a": "b\1c"}),
        (b"a\1b\2a\1c\2", {"a": "c"}),
        (b"a\1b\2a\1\2", {"a": "b"}),
        (b"\1\1\1\2", {}),
        (b"a\0\1\0\2", {"a\0": "\0"}),
        (b"a\1\xff\xed\xa0\x80\2", {"a": "��"}),
    ],
)
def test_strange_properties_read_as_in_java(data: bytes, pairs: dict[str, str]) -> None:
    assert decode_properties(data) == pairs


def javas_pairs(data: bytes) -> dict[str, str]:
    """Java's loop as it stands there: a text, and positions of separators in it."""
    text = java_text(data)
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        end = text.find("\2", index)
        end = len(text) if end < 0 else end
        if end - index >= 3:
            middle = text.find("\1", index)
            if index < middle < end - 1:
                found[text[index:middle]] = text[middle + 1 : end]
        index = end + 1
    return found


@given(st.lists(st.sampled_from([b"\1", b"\2", b"a", b"KEYS", b"\xc3", b"\xa9", b"\xed\xa0"])))
def test_any_bytes_read_as_in_java(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert decode_properties(data) == javas_pairs(data)
    assert len(decode_raw_properties(data)) >= len(decode_properties(data))


@pytest.mark.parametrize(
    "pairs",
    [
        {"": "v"},
        {"a\1": "v"},
        {"a\2": "v"},
        {"a": "\1"},
        {"a": "v\2"},
        {"a": "\ud800"},
        {"\udfff": "v"},
    ],
)
def test_what_cannot_be_stored_is_refused_with_a_reason_and_a_hint(pairs: dict[str, str]) -> None:
    with pytest.raises(IllegalMessage) as caught:
        encode_properties(pairs)
    assert type(caught.value) is IllegalMessage
    assert caught.value.reason
    assert caught.value.hint
    caught.value.reason.encode()


def test_properties_may_have_32767_bytes_and_no_more() -> None:
    room = PROPERTIES_BYTES_MAX - len("a\1\2")
    assert len(encode_properties({"a": "v" * room})) == 32_767
    with pytest.raises(PropertiesTooLarge, match="32768 bytes"):
        encode_properties({"a": "v" * (room + 1)})
    with pytest.raises(PropertiesTooLarge):
        encode_properties({"a": "é" * (room // 2 + 1)})


@given(st.text(st.sampled_from(" ab\t"), max_size=12))
def test_keys_are_parted_by_single_spaces_and_empty_ones_do_not_count(keys: str) -> None:
    assert split_keys(keys) == [key for key in keys.split(" ") if key]


@given(st.integers(0, 2**32 - 1))
def test_the_checksum_property_has_ten_digits_of_31_bits(crc: int) -> None:
    prop = crc_property(crc)
    assert len(prop) == 20
    assert int(prop[9:19][::-1]) == crc & 0x7FFFFFFF
    assert decode_properties(prop) == {"__CRC32#": prop[9:19].decode()}
