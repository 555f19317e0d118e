"""Java's hash and Java's text, one by one and as columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.file_layouts import fold_hash, key_hash
from protocol.record.java_hash import hash_pieces, java_hash, java_text, powers_of_31, tags_code

pytestmark = pytest.mark.usefixtures("way")

VECTORS = [
    ("", 0),
    ("A", 65),
    ("TagA", 2_598_919),
    ("TAG1", 2_567_159),
    ("中文", 646_394),
    ("\U0001f600x", 54_959_989),
    ("polygenelubricants", -2_147_483_648),
    ("FooBar#k1", -78_142_500),
]


@pytest.mark.parametrize(("text", "value"), VECTORS)
def test_hashes_are_javas(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert tags_code(text) == value


@given(st.text(max_size=300))
def test_a_hash_is_the_polynomial_over_utf_16_units(text: str) -> None:
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    value = sum(unit * 31**power for power, unit in enumerate(reversed(units))) % 2**32
    assert java_hash(text) == (value - 2**32 if value >= 2**31 else value)


def test_long_texts_are_not_kept() -> None:
    assert java_hash("x" * 100_000) == java_hash("x" * 100_000)


# What Java 17 makes of bytes that are no UTF-8: how many U+FFFD, and what else.
JAVA_TEXTS = [
    ("ff", "\ufffd"),
    ("c3", "\ufffd"),
    ("c341", "\ufffdA"),
    ("e282", "\ufffd"),
    ("e28241", "\ufffdA"),
    ("c0af", "\ufffd\ufffd"),
    ("e080af", "\ufffd\ufffd\ufffd"),
    ("f09f98", "\ufffd"),
    ("f09f9841", "\ufffdA"),
    ("f4908080", "\ufffd\ufffd\ufffd\ufffd"),
    ("eda080", "\ufffd"),
    ("eda080edb080", "\ufffd\ufffd"),
    ("eda0", "\ufffd"),
    ("edbf41", "\ufffdA"),
    ("edbfc3a9", "\ufffdé"),
    ("ed9fbf", "\ud7ff"),
    ("ed", "\ufffd"),
]


@pytest.mark.parametrize(("data", "text"), JAVA_TEXTS)
def test_bytes_that_are_no_utf_8_read_as_in_java(data: str, text: str) -> None:
    assert java_text(bytes.fromhex(data)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_reads_as_itself(text: str) -> None:
    assert java_text(text.encode()) == text


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=12),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.encode),
            st.sampled_from([b"", b"\xed\xa0\x80", b"a" * 500]),
        ),
        max_size=12,
    ),
    st.data(),
)
def test_hashes_of_columns_are_those_of_the_single_texts(
    pieces: list[bytes], data: st.DataObject
) -> None:
    flat = np.frombuffer(b"".join(pieces) + b"rest", np.uint8)
    length = np.array([len(piece) for piece in pieces], np.int64)
    start = np.cumsum(length) - length
    rows = np.array(data.draw(st.permutations(range(len(pieces)))), np.int64)
    hashes = hash_pieces(flat, start[rows], length[rows])
    assert hashes.tolist() == [java_hash(java_text(pieces[row])) for row in rows]


@given(st.integers(0, 200))
def test_powers_are_those_of_31(count: int) -> None:
    assert powers_of_31(count).tolist() == [31**i % 2**32 for i in range(max(count, 1))]


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [("FooBar", "k1", 78_142_500), ("FooBar", "Hello", 101_609_924)],
)
def test_key_hashes_are_those_of_an_index_file(topic: str, key: str, value: int) -> None:
    assert key_hash(topic, key) == value


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_folded_hash_is_never_negative(value: int) -> None:
    assert fold_hash(value) == (0 if value == -(2**31) else abs(value))
