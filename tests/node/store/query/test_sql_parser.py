"""What an expression in SQL92 may be, what is refused, and where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.query.sql import DEPTH_MAX, EXPRESSION_CHARS_MAX, NODES_MAX, parse_sql
from protocol.errors import BadRequest

KEYWORDS = "NOT not AND Or BETWEEN in IS NULL TRUE false CONTAINS startswith EndsWith"
PIECES = "a b _c $d ( ) , = <> > >= < <= + - -- /* */ ; . 'x' 'it''s' '' ' 1 0 1L 1.5 .5 5. 1e3 007"
WORDS = st.sampled_from([*KEYWORDS.split(), *PIECES.split(), "\n", "\u00e9", "'\u00fc'"])
TEXTS = st.one_of(st.text(), st.lists(WORDS, max_size=30).map(" ".join))


@given(expression=TEXTS)
def test_any_text_is_parsed_or_refused_with_a_hint(expression: str) -> None:
    try:
        parse_sql(expression)
    except BadRequest as error:
        assert error.hint
        assert "SQL92" in error.reason


@pytest.mark.parametrize(
    ("expression", "place", "words"),
    [
        ("", 1, "the end"),
        ("*", 1, "cannot be read"),
        ("a >", 4, "the end"),
        ("a > 5 b", 7, "'b' comes where AND, OR or the end"),
        ("a > 5 AND", 10, "the end"),
        ("(a > 5", 7, r"where \) is"),
        ("a = 'x", 5, "cannot be read"),
        ("a.b = 5", 2, "cannot be read"),
        ("a != 5", 3, "cannot be read"),
        ("a == 5", 4, "comes where"),
        ("a and between 2 and 10", 7, "BETWEEN"),
        ("a BETWEEN 10 AND 0", 11, "begins above its end"),
        ("a BETWEEN 'a' AND 'b'", 11, "compares numbers"),
        ("a BETWEEN NULL AND 1", 11, "compares numbers"),
        ("a > 'x'", 5, "compares numbers"),
        ("a > TRUE", 5, "compares numbers"),
        ("NOT a > 5", 1, "compares numbers"),
        ("a > 5 > 3", 1, "compares numbers"),
        ("a = NULL", 5, "NULL cannot be compared"),
        ("NULL <> a", 1, "NULL cannot be compared"),
        ("TRUE = 5", 8, "truth value"),
        ("5", 1, "not true or false"),
        ("a > 5 OR 'x'", 10, "not true or false"),
        ("NOT 5", 5, "not true or false"),
        ("a IN (5)", 7, "a text in single quotes"),
        ("a IN ()", 7, "a text in single quotes"),
        ("a IN ('x' 'y')", 11, r"where \) is"),
        ("'a' IN ('x')", 1, "needs a property"),
        ("a CONTAINS b", 12, "a text in single quotes"),
        ("a NOT 5", 7, "IN, BETWEEN, CONTAINS"),
        ("a IS 5", 6, "NULL"),
        ("a IS NULL > 5", 11, "AND, OR or the end"),
        ("a > 007", 5, "begins with 0"),
        ("a > 9223372036854775808", 5, "too large"),
        ("a > 1" + "0" * 60_000, 5, "too large"),
        ("a > 1e999", 5, "too large"),
        ("a > 1 /* b", 7, "cannot be read"),
        ("IN = 5", 1, "comes where a property"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(
    expression: str, place: int, words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        parse_sql(expression)
    assert f"character {place}:" in caught.value.reason


def test_an_expression_has_limits_and_reaches_them() -> None:
    levels = DEPTH_MAX - 2
    parse_sql("(" * levels + "a = 1" + ")" * levels)
    parse_sql("NOT " * levels + "TRUE")
    # Each of these parentheses is three levels, and as deep in Python's stack as one can be.
    worst = "(TRUE OR TRUE AND TRUE = "
    parse_sql(worst * (levels // 3) + "TRUE" + ")" * (levels // 3))
    with pytest.raises(BadRequest, match="levels deep"):
        parse_sql(worst * levels + "TRUE" + ")" * levels)
    chain = " OR ".join(["a = 1"] * (NODES_MAX // 4))
    parse_sql(chain)
    parse_sql("a = 1".ljust(EXPRESSION_CHARS_MAX))
    for deep in ("(" * 60_000, "NOT " * 16_000, "a IS NULL" + " IS NULL" * 200, "- " * 30_000):
        with pytest.raises(BadRequest, match="levels deep"):
            parse_sql(deep)
    with pytest.raises(BadRequest, match="more than 1000"):
        parse_sql(chain + " OR a = 1")
    with pytest.raises(BadRequest, match="more than 1000"):
        parse_sql("a IN (" + ",".join(["'x'"] * NODES_MAX) + ")")
    with pytest.raises(BadRequest, match="65537 characters"):
        parse_sql("a = 1".ljust(EXPRESSION_CHARS_MAX + 1))
