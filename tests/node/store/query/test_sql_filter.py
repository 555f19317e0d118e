"""What expressions in SQL92 take, by a table, and by a plain oracle that knows no Java."""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.opening import StoppedStore, open_store
from node.store.query import pull
from node.store.query.filters import SqlFilter, sql_filter
from node.store.query.pull import PullRequest, PullStatus, TransferLimits, get_message
from protocol.record.codec import Record, decode
from tests.support.golden import GetStore

ONE = {
    "a": "5", "b": "x", "t": "TRUE", "neg": "-3", "big": "3000000000", "dec": "5.5",
    "q": "it's", "TAGS": "red", "A": "upper", "nan": "NaN", "zero": "-0.0", "wide": " 7 ",
}  # fmt: skip
TAKEN = [
    "a = 5", "a = 5L", "a = 5.0", "a = '5'", "a <> 6", "a > 4", "a >= 5", "a < 6", "a <= 5",
    "5 = a", "4 < a", "a = +5", "a = - -5", "neg = -3", "neg < 0", "neg > -3.5", "1 = 1.0",
    "a BETWEEN 5 AND 5", "a NOT BETWEEN 6 AND 9", "neg BETWEEN -5 AND -1", "a NOT BETWEEN 9 AND 6",
    "b IN ('x')", "b IN ('y', 'x')", "b NOT IN ('y')", "a IN ('5')",
    "none IS NULL", "a IS NOT NULL", "NOT a IS NULL AND a = 5 OR TRUE",
    "q CONTAINS '''s'", "q = 'it''s'", "b NOT CONTAINS 'y'", "TAGS STARTSWITH 're'",
    "TAGS NOT STARTSWITH 'x'", "TAGS ENDSWITH 'ed'", "TAGS NOT ENDSWITH 'x'", "'abc' CONTAINS 'b'",
    "t = TRUE", "b = FALSE", "TRUE", "NOT FALSE", "t <> FALSE", "TRUE = TRUE", "(a = 5) = TRUE",
    "a > 4 AND b = 'x'", "a > 9 OR b = 'x'", "a > 9 AND none > 1 OR b = 'x'",
    "none > 1 OR a = 5", "NOT (none = 1 AND a = 6)", "none = none", "a > neg", "dec > a",
    "big > 2999999999", "big = 3000000000", "dec = 5.5", "dec > 5.0", "a > 4.9", "a = 50e-1",
    "wide = 7.0", "nan = nan", "nan > 1.0", "zero < 0.0", "zero <> 0.0",
    "a/**/=/* x * y **/5", "a = 5 -- and more", "-- first\na = 5", "a = 5\t\r\n\f",
    "A = 'upper'", "a is not null And b In ('x')", "a = 5 or b > 1",
    "NOT b", "NOT t", "none IS NULL IS NOT NULL",
]  # fmt: skip
REFUSED = [
    "a = 6", "a <> 5", "a > 5", "a = '6'", "a BETWEEN 6 AND 7", "a NOT BETWEEN 5 AND 5",
    "b IN ('y')", "b NOT IN ('x')", "none IN ('x')", "none NOT IN ('x')", "NOT none IN ('x')"[4:],
    "none = 5", "none <> 5", "none > 5", "NOT (none = 5)", "a = none", "none IS NOT NULL",
    "none CONTAINS 'x'", "none NOT CONTAINS 'x'", "b CONTAINS ''", "b NOT CONTAINS ''",
    "5 CONTAINS '5'", "5 NOT CONTAINS '5'", "TRUE NOT STARTSWITH 'x'", "b NOT CONTAINS 'x'",
    "NULL", "FALSE", "a", "t", "none", "NOT none", "-a = -5", "-a < 0", "- 'x' = 5",
    "b > 5", "b = 5", "NOT (b = 5)", "b = 5 OR a = 5", "a = 5 AND b = 5", "b > a", "q = 5.0",
    "big > 5", "dec > 5", "wide = 7", "TRUE = t", "TRUE = b", "a = TRUE", "a <> TRUE AND FALSE",
    "NOT a = 5", "nan < 1.0", "nan = 1.0", "A = 5", "none > 1 AND a = 5", "none > 1 OR a = 6",
    "FALSE AND b > 5", "a = 6 -- OR a = 5",
]  # fmt: skip


@pytest.mark.parametrize("expression", TAKEN)
def test_an_expression_that_is_true_takes_the_message(expression: str) -> None:
    assert sql_filter(expression).takes(ONE)


@pytest.mark.parametrize("expression", REFUSED)
def test_false_null_and_an_error_all_refuse_the_message(expression: str) -> None:
    assert not sql_filter(expression).takes(ONE)


def test_what_decides_first_keeps_an_error_from_being_met() -> None:
    assert sql_filter("a = 5 OR b > 5").takes(ONE)
    assert not sql_filter("b > 5 OR a = 5").takes(ONE)
    assert sql_filter("NOT (a = 6 AND b > 5)").takes(ONE)
    assert sql_filter("(b = 5) CONTAINS '' OR TRUE").takes(ONE)
    assert not sql_filter("(b = 5) CONTAINS 'x' OR TRUE").takes(ONE)


def test_a_side_beside_null_is_not_looked_at_where_a_broker_does_not() -> None:
    for beside in ("none > -(b = 5)", "none BETWEEN -(b = 5) AND 3", "none NOT BETWEEN 1 AND b"):
        assert sql_filter(f"{beside} OR a = 5").takes(ONE)


@pytest.mark.parametrize("word", ["BETWEEN", "NOT BETWEEN"])
def test_each_part_is_looked_at_once_however_deep_it_is(word: str) -> None:
    looks = 0

    class Counted(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            nonlocal looks
            looks += 1
            return super().get(name, default)

    expression = f"a {word} 6 AND 9"
    for _ in range(45):
        expression = f"-({expression}) {word} 1 AND 2"
    sql_filter(expression).takes(Counted(ONE))
    assert looks == 1


# Random trees: printed, parsed, and compared with the oracle.

NAMES, ABSENT = ["a", "b", "c", "d", "e"], "none"
PROPERTIES = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from(["1", "5", "-3", "5.5", "x", "true", "FALSE", "3000000000", "it's", "xx"]),
)
NUMBERS = st.one_of(st.integers(-6, 6), st.sampled_from([3_000_000_000, 0.5, 5.5, -2.5]))
TEXTS = st.sampled_from(["x", "5", "it's", "", "true", "--", "/*"])
NAMED = st.sampled_from([*NAMES, ABSENT]).map(lambda name: ("name", name))
NUMERIC = st.one_of(NAMED, NUMBERS.map(lambda number: ("number", number)))
OPERAND = st.one_of(NUMERIC, TEXTS.map(lambda text: ("text", text)))
ORDERS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
LEAVES = st.one_of(
    st.tuples(st.sampled_from(sorted(ORDERS)), NUMERIC, NUMERIC),
    st.tuples(st.sampled_from(["=", "<>"]), OPERAND, OPERAND),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), OPERAND),
    st.tuples(st.sampled_from(["IN", "NOT IN"]), NAMED, st.lists(TEXTS, min_size=1)),
    st.tuples(
        st.sampled_from(["CONTAINS", "NOT STARTSWITH", "ENDSWITH", "NOT CONTAINS"]), OPERAND, TEXTS
    ),
    st.tuples(st.just("BETWEEN"), NUMERIC, NUMERIC, NUMERIC).filter(lambda tree: is_range(tree)),
    st.tuples(st.just("NOT BETWEEN"), NUMERIC, NUMERIC, NUMERIC),
    st.sampled_from([("constant", True), ("constant", False), ("constant", None)]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner), st.tuples(st.just("NOT"), inner)
    ),
    max_leaves=20,
)
Tree = Any


def is_range(tree: Tree) -> bool:
    _, _, low, high = tree
    both = low[0] == high[0] == "number"
    return not both or min(low[1], high[1]) < 0 or low[1] <= high[1]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def printed(tree: Tree) -> str:
    kind, *parts = tree
    if kind in ("name", "number"):
        return str(parts[0])
    if kind == "text":
        return quoted(parts[0])
    if kind == "constant":
        return {True: "TRUE", False: "FALSE", None: "NULL"}[parts[0]]
    if kind in ("IN", "NOT IN"):
        return f"({printed(parts[0])} {kind} ({', '.join(map(quoted, parts[1]))}))"
    if kind.split()[-1] in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        return f"({printed(parts[0])} {kind} {quoted(parts[1])})"
    if kind == "NOT":
        return f"(NOT {printed(parts[0])})"
    if kind.startswith("IS"):
        return f"({printed(parts[0])} {kind})"
    words = [kind, "AND"] if kind.endswith("BETWEEN") else [kind]
    rest = "".join(f" {word} {printed(x)}" for word, x in zip(words, parts[1:], strict=True))
    return f"({printed(parts[0])}{rest})"


def number_like(value: Any, other: Any) -> Any:
    """A text as a number of the other's kind. Raises ValueError."""
    if not isinstance(value, str):
        return value
    if isinstance(other, int):
        bits = 31 if abs(other) < 2**31 else 63
        number = int(value)
        if not -(2**bits) <= number < 2**bits:
            raise ValueError
        return number
    return float(value)


def equal(left: Any, right: Any) -> bool | None:
    if left is None and right is None:
        return True
    if left is None:
        return None
    if right is None:
        return False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return bool(number_like(left, right) == number_like(right, left))


def ordered(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    return bool(ORDERS[sign](number_like(left, right), number_like(right, left)))


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def truth_of(tree: Tree, properties: Mapping[str, str]) -> bool | None:
    found: bool | None = answer(tree, properties)
    return found


def joined(left: Tree, right: Tree, decider: bool, properties: Mapping[str, str]) -> bool | None:
    first = truth_of(left, properties)
    if first is decider:
        return decider
    second = truth_of(right, properties)
    if second is decider:
        return decider
    return None if first is None or second is None else not decider


def answer(tree: Tree, properties: Mapping[str, str]) -> Any:
    """The oracle: a value, or ValueError."""
    kind, *parts = tree
    if kind == "name":
        return properties.get(parts[0])
    if kind in ("number", "text", "constant"):
        return parts[0]
    if kind in ("AND", "OR"):
        return joined(parts[0], parts[1], kind == "OR", properties)
    first = answer(parts[0], properties)
    if kind == "NOT":
        return opposite(first)
    if kind.startswith("IS"):
        return (first is None) is (kind == "IS NULL")
    if kind.endswith("IN"):
        return None if first is None else (first in parts[1]) is (kind == "IN")
    if kind.endswith("BETWEEN"):
        signs = ("<", ">") if kind.startswith("NOT") else (">=", "<=")
        sides = [(sign, parts[0], side) for sign, side in zip(signs, parts[1:], strict=True)]
        return joined(sides[0], sides[1], kind.startswith("NOT"), properties)
    if kind in ORDERS:
        return ordered(kind, first, answer(parts[1], properties))
    if kind in ("=", "<>"):
        same = equal(first, answer(parts[1], properties))
        return same if kind == "=" else opposite(same)
    return text_fits(kind, first, parts[1])


def text_fits(kind: str, found: Any, text: str) -> bool:
    if not isinstance(found, str) or not text:
        return False
    at = {"CONTAINS": text in found, "STARTSWITH": found[: len(text)] == text}
    fits = at.get(kind.split()[-1], found[-len(text) :] == text)
    return fits is not kind.startswith("NOT")


@given(tree=TREES, properties=PROPERTIES)
def test_a_printed_tree_takes_what_the_oracle_takes(tree: Tree, properties: dict[str, str]) -> None:
    try:
        expected = answer(tree, properties) is True
    except ValueError:
        expected = False
    assert sql_filter(printed(tree)).takes(properties) is expected, printed(tree)


@given(tree=TREES, properties=st.dictionaries(st.sampled_from(NAMES), st.text()))
def test_no_value_of_a_property_raises(tree: Tree, properties: dict[str, str]) -> None:
    assert sql_filter(printed(tree)).takes(properties) in (True, False)


# Pulls

SMALL = TransferLimits(count_max=7)


@pytest.fixture(scope="module")
def store(golden: GetStore) -> Iterator[StoppedStore]:
    with open_store(golden("mixed-kinds")) as opened:
        yield opened


def pulled(store: StoppedStore, wanted: SqlFilter, filter_bytes_max: int = 16_000) -> list[int]:
    """The log offsets of all matches of all queues, pull by pull."""
    request = PullRequest(tags=wanted, exact=True, limits=SMALL, filter_bytes_max=filter_bytes_max)
    found: list[int] = []
    for name in store.queues():
        queue = store.queue(*name)
        assert queue is not None
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = get_message(store.log, queue, offset, request)
            assert result.next_begin_offset > offset
            assert (result.status is PullStatus.FOUND) is bool(result.count)
            offset = result.next_begin_offset
            found += result.physical_offsets.tolist()
    return sorted(found)


@pytest.mark.parametrize(
    "expression",
    ["TAGS IS NULL", "TAGS IS NOT NULL", "KEYS CONTAINS '1'", "UNIQ_KEY ENDSWITH '7'", "TRUE"],
)
@pytest.mark.parametrize("filter_bytes_max", [16_000, 1])
def test_pulls_find_every_match_and_move_on(
    store: StoppedStore, expression: str, filter_bytes_max: int
) -> None:
    wanted = sql_filter(expression)
    every = pulled(store, sql_filter("TRUE"))
    expected = [place for place in every if wanted.takes(store.log.record_at(place).properties)]
    assert expected
    assert pulled(store, wanted, filter_bytes_max) == expected


def test_one_pull_reads_a_limited_number_of_bytes(
    store: StoppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = pulled(store, sql_filter("TRUE"))
    monkeypatch.setattr(pull, "FILTERED_BYTES_MAX", 1)
    queue = store.queue(*store.queues()[0])
    assert queue is not None
    assert queue.max_offset > 1
    request = PullRequest(tags=sql_filter("FALSE"), exact=True)
    found = get_message(store.log, queue, 0, request)
    assert (found.status, found.next_begin_offset) == (PullStatus.NO_MATCHED_MESSAGE, 1)
    assert pulled(store, sql_filter("TRUE")) == every


def test_a_damaged_record_is_not_passed_over_in_silence(store: StoppedStore) -> None:
    raw = bytes(store.log.record_at(0).raw)
    nothing = sql_filter("FALSE")
    assert not nothing.takes_record(raw)
    for place in range(0, len(raw), 7):
        damaged = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        assert nothing.takes_record(damaged) is is_noticed(damaged)


def is_noticed(raw: bytes) -> bool:
    return not isinstance(decode(raw, 0), Record)
