"""What a terminal and a log line may get of foreign text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.human_text import count_text, number_text, one_line, printable

TEXT = st.text(st.one_of(st.characters(max_codepoint=0xFF), st.characters(exclude_categories=[])))
CONTROLS = [*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]


@pytest.mark.parametrize("code", CONTROLS)
def test_no_control_character_is_left_but_newline_and_tab(code: int) -> None:
    assert one_line(f"a{chr(code)}b") == f"a\\u{code:04x}b"
    kept = chr(code) if chr(code) in "\n\t" else f"\\u{code:04x}"
    assert printable(f"a{chr(code)}b") == f"a{kept}b"


@given(TEXT)
def test_all_other_text_stays_as_it_is(text: str) -> None:
    rest = "".join(sign for sign in text if ord(sign) not in CONTROLS)
    assert one_line(rest) == printable(rest) == rest


@given(st.dictionaries(TEXT, TEXT))
def test_json_says_the_same_with_its_controls_escaped(value: dict[str, str]) -> None:
    line = printable(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert not {ord(sign) for sign in line} & set(CONTROLS)


@given(st.floats(min_value=0.001, max_value=1e15))
def test_no_number_has_an_exponent(value: float) -> None:
    """`1e+03` for a thousand is what `%g` makes of it."""
    assert "e" not in number_text(value) + count_text(value)


def test_numbers_keep_three_digits() -> None:
    assert [number_text(value) for value in (0.1234, 999.4, 999.6, 1_000, 54_321)] == [
        *("0.123", "999", "1,000", "1,000", "54,321"),
    ]
    assert [count_text(value) for value in (1_000, 999_600, 1_234_567)] == ["1k", "1M", "1.23M"]
