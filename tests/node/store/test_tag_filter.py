"""What a choice of tags may be: names between `||`, and no condition in SQL."""

import pytest

from node.store.query.filters import parse_tags
from protocol.errors import BadRequest


@pytest.mark.parametrize(
    "expression",
    [
        "a > 5 AND b = 'x'", "a>5", "price <= 10", "a = 'x'", "a='x'", 'a = "x"', "a IS NOT NULL",
        "a IS NULL", "a BETWEEN 1 AND 2", "a IN ('x', 'y')", "a <> b", "TAGS OR b",
    ],
)  # fmt: skip
def test_a_condition_in_sql_is_refused_and_finds_not_just_nothing(expression: str) -> None:
    with pytest.raises(BadRequest, match="looks like SQL") as caught:
        parse_tags(expression)
    assert "'A || B'" in caught.value.hint


@pytest.mark.parametrize(
    "tag",
    [
        "paid",
        "key=value",
        "a->b",
        "bread and butter",
        "size=5",
        "ORDER",
        "AND",
        "a.b-c_d",
        "it's",
        "<x>",
    ],
)
def test_a_tag_may_hold_a_sign(tag: str) -> None:
    found = parse_tags(f"{tag} || other")
    assert found is not None
    assert found.tags == {tag, "other"}
