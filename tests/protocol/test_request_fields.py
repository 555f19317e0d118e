"""A declared field refuses what it is not, by name, and keeps its default when it is absent."""

import math
from typing import Annotated, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest
from protocol.request_fields import Field, RequestLayout
from protocol.wire.frames import Header, unpack


class Needed(NamedTuple):
    number: Annotated[int, Field("", low=3, high=2**40)]


class Optional(NamedTuple):
    number: Annotated[int, Field("")] = 7
    text: Annotated[str, Field("", choices=("x", "y"))] = "default"
    data: Annotated[bytes | None, Field("")] = None
    flag: Annotated[bool, Field("")] = True
    some: Annotated[list[str] | None, Field("", wire="several")] = None
    properties: Annotated[dict[str, str] | None, Field("")] = None


NEEDED = RequestLayout(Needed)
OPTIONAL = RequestLayout(Optional)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("number", 5, [True, 5.0, "5", b"5", [], {}, math.nan]),
        ("text", "x", [5, b"x", [], True]),
        ("data", b"x", [5, "x", [], False]),
        ("flag", False, [0, 1, "", b""]),
        ("several", [1], [{}, "x", 1]),
        ("properties", {"a": 1}, [[], "x", True]),
    ],
)
def test_a_field_has_its_type_and_no_other(name: str, good: object, bad: list[object]) -> None:
    attribute = "some" if name == "several" else name
    assert getattr(OPTIONAL.parse({name: good}), attribute) == good
    for value in bad:
        with pytest.raises(BadRequest, match=rf"field {name} is \w+, not "):
            OPTIONAL.parse({name: value})


def test_a_field_that_is_absent_or_nil_has_its_default() -> None:
    assert OPTIONAL.parse({}) == Optional()
    assert OPTIONAL.parse(dict.fromkeys(OPTIONAL.fields)) == Optional()
    for header in ({}, {"number": None}):
        with pytest.raises(BadRequest, match="field number is missing"):
            NEEDED.parse(header)


HEADERS: st.SearchStrategy[Header] = st.fixed_dictionaries(
    {},
    optional={
        "number": st.one_of(st.integers(-(2**64), 2**64), st.text(max_size=2), st.none()),
        "text": st.one_of(st.sampled_from(["x", "y", "z"]), st.integers(), st.none()),
        "data": st.one_of(st.binary(max_size=2), st.text(max_size=2), st.none()),
        "flag": st.one_of(st.booleans(), st.integers(0, 1), st.none()),
        "several": st.one_of(st.lists(st.text(max_size=1), max_size=2), st.none()),
        "properties": st.one_of(st.just({}), st.integers(), st.none()),
    },
)


@given(HEADERS)
def test_the_compiled_parser_returns_and_refuses_as_the_plain_loop(header: Header) -> None:
    for layout in (OPTIONAL, NEEDED):
        results: list[object] = []
        for parse in (layout.values, layout.values_plainly):
            try:
                results.append(parse(header))
            except BadRequest as error:
                results.append((error.reason, error.hint))
        assert results[0] == results[1]


def test_an_empty_extension_is_not_a_value_of_any_type() -> None:
    for name in OPTIONAL.fields:
        header = unpack(bytes([0x81, 0xA0 + len(name)]) + name.encode() + b"\xc7\x00\x05")
        with pytest.raises(BadRequest, match=f"field {name} is ExtType"):
            OPTIONAL.parse(header)


def test_one_of_several_texts_is_asked_for_by_name() -> None:
    with pytest.raises(BadRequest, match="field text is 'z'") as caught:
        OPTIONAL.parse({"text": "z"})
    assert caught.value.hint == "use x or y"


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_lies_within_its_bounds(value: int) -> None:
    if 3 <= value <= 2**40:
        assert NEEDED.parse({"number": value}) == Needed(value)
    else:
        with pytest.raises(BadRequest, match="outside"):
            NEEDED.parse({"number": value})
