"""The language of RocketMQ's SQL92 filters: the tree of an expression, and its parser.

A node's `value` is that of its part for one message's properties. Truth has three values, None is
the third. An operand that cannot be compared raises UndecidedError.

`parse_sql` makes the tree (SelectorParser). From weak to strong: OR, AND, then `=` `<>` IS, then
all other comparisons, then NOT, `+` and `-`: `NOT a = 1` is `(NOT a) = 1`. A broker stops reading,
without a word, at the first sign that cannot go on; here that is refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import NamedTuple

from node.store.query.filters import INT64_MAX, Value, compared, is_equal
from protocol.errors import BadRequest

Properties = Mapping[str, str]
ORDERS: Mapping[str, Callable[[int, int], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le, "=": eq}
TEXT_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
EXPRESSION_CHARS_MAX = 64 * 1024
DEPTH_MAX = 100
"""Parentheses, NOT and signs within each other, and comparisons of comparisons."""
NODES_MAX = 1_000
"""Names, literals, the texts of IN, and operators."""

_INT64_DIGITS = 19
_SHOWN_CHARS = 40
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)
    |(?P<decimal>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<number>[0-9]+(?:(?P<exponent>[eE][+-]?[0-9]+)|[lL])?)
    |(?P<text>'(?:''|[^'])*')
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<sign><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"}).union(
    TEXT_TESTS
)
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_OR, _AND, _EQUALITY, _COMPARISON = 1, 2, 3, 4
_STRENGTHS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys((">", ">=", "<", "<=", "BETWEEN", "IN", "NOT", *TEXT_TESTS), _COMPARISON),
}
_TEXT, _NAME, _NUMBER, _DECIMAL = "text", "name", "number", "decimal"
_BLANK, _WORD, _END = "blank", "word", "end"
"""Kinds of tokens; words are keywords, in capitals, and signs."""
_OPERAND = "a property, a literal, NOT or ("


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, a number, TRUE, FALSE or NULL."""

    constant: Value

    @property
    def is_truth(self) -> bool:
        """Whether it may be used as a truth value."""
        return self.constant is None or isinstance(self.constant, bool)

    def value(self, properties: Properties) -> Value:
        """What was written."""
        return self.constant


@dataclass(frozen=True, slots=True)
class Name:
    """A property."""

    name: str
    is_truth = False

    def value(self, properties: Properties) -> Value:
        """The stored text."""
        return properties.get(self.name)


@dataclass(frozen=True, slots=True)
class Minus:
    """The negative of a number; NULL for all else, a text too."""

    operand: "Node"
    is_truth = False

    def value(self, properties: Properties) -> Value:
        """The number."""
        found = self.operand.value(properties)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        return -found


@dataclass(frozen=True, slots=True)
class Truth:
    """A property where a truth value is needed: its text is FALSE, even the text `true`."""

    operand: Name
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """FALSE, or NULL without the property."""
        return None if self.operand.value(properties) is None else False


@dataclass(frozen=True, slots=True)
class Not:
    """NOT of a truth value."""

    operand: "Node"
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """The opposite; of NULL it is NULL."""
        found = self.operand.value(properties)
        return None if found is None else not found


@dataclass(frozen=True, slots=True)
class Several:
    """AND or OR of truth values, from left to right: `decider` among them ends the look."""

    operands: tuple["Node", ...]
    decider: bool
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """The decider if it is there, else NULL if that is there."""
        is_known = True
        for operand in self.operands:
            found = operand.value(properties)
            if found is self.decider:
                return self.decider
            is_known = is_known and found is not None
        return not self.decider if is_known else None


@dataclass(frozen=True, slots=True)
class Equal:
    """`=`, and IS NULL, which is `=` with NULL on the right."""

    left: "Node"
    right: "Node"
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """NULL if only the left one is NULL."""
        return is_equal(self.left.value(properties), self.right.value(properties))


@dataclass(frozen=True, slots=True)
class Order:
    """One of `>`, `>=`, `<`, `<=`, of numbers."""

    left: "Node"
    sign: str
    right: "Node"
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """NULL beside NULL."""
        order = _order_of(self.left.value(properties), self.right, properties)
        return None if order is None else ORDERS[self.sign](order, 0)


@dataclass(frozen=True, slots=True)
class Between:
    """`left >= low AND left <= high`, or with NOT `left < low OR left > high`.

    One node, not two of `left`: those in each other would be looked at 2, 4, 8 times.
    """

    left: "Node"
    low: "Node"
    high: "Node"
    is_not: bool
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """NULL beside NULL, unless the other bound decides."""
        found = self.left.value(properties)
        below = _order_of(found, self.low, properties)
        if below is not None and below < 0:
            return self.is_not
        above = _order_of(found, self.high, properties)
        if above is not None and above > 0:
            return self.is_not
        return None if below is None or above is None else not self.is_not


def _order_of(left: Value, right: "Node", properties: Properties) -> int | None:
    """As `compared`; a broker does not look at the right side beside NULL, which may fail."""
    return None if left is None else compared(left, right.value(properties))


@dataclass(frozen=True, slots=True)
class In:
    """IN, and NOT IN, of texts."""

    left: Name
    texts: frozenset[str]
    is_not: bool
    is_truth = True

    def value(self, properties: Properties) -> bool | None:
        """NULL without the property."""
        found = self.left.value(properties)
        return None if found is None else (found in self.texts) is not self.is_not


@dataclass(frozen=True, slots=True)
class TextTest:
    """CONTAINS, STARTSWITH, ENDSWITH, and their NOT forms."""

    left: "Node"
    test: str
    text: str
    is_not: bool
    is_truth = True

    def value(self, properties: Properties) -> bool:
        """FALSE for what is not a text, and for an empty text to look for: the NOT forms too."""
        if not self.text:
            return False  # a broker does not look at the left side then, which may fail
        found = self.left.value(properties)
        if not isinstance(found, str):
            return False
        return TEXT_TESTS[self.test](found, self.text) is not self.is_not


Node = Literal | Name | Minus | Truth | Not | Several | Equal | Order | Between | In | TextTest


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Branch(NamedTuple):
    """A node while it is parsed, with its depth."""

    node: Node
    depth: int
    start: int


def parse_sql(expression: str) -> Node:
    """Parses an expression. Raises BadRequest, with the place, for what a broker refuses, for what
    follows an expression, and beyond the limits."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise BadRequest(
            f"the SQL92 expression has {len(expression)} characters",
            f"write it with up to {EXPRESSION_CHARS_MAX}",
        )
    return _Parser(expression).whole()


class _Parser:
    """One expression, read from left to right with one token of foresight."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes = 0
        self._at = 0
        self._next = self._read()

    def whole(self) -> Node:
        """The tree of the whole text."""
        found = self._as_truth(self._expression(_OR, 0))
        if self._next.kind != _END:
            raise self._unexpected("AND, OR or the end")
        return found.node

    # Tokens

    def _read(self) -> _Token:
        while True:
            start = self._at
            if start == len(self._source):
                return _Token(_END, "", start)
            found = _TOKEN.match(self._source, start)
            if found is None:
                text = self._source[start:]
                hint = "close the quote with '" if text[0] == "'" else "see the SQL92 syntax"
                raise self._bad(f"{text[:_SHOWN_CHARS]!a} cannot be read", start, hint)
            self._at = found.end()
            kind, text = _kind(found), found[0]
            if kind == _WORD:
                return _Token(kind, text.upper(), start)
            if kind != _BLANK:
                return _Token(kind, text, start)

    def _take(self) -> _Token:
        taken, self._next = self._next, self._read()
        return taken

    def _takes(self, word: str) -> bool:
        """Takes a keyword or sign if it comes next."""
        if self._next.kind != _WORD or self._next.text != word:
            return False
        self._take()
        return True

    def _need(self, word: str) -> None:
        if not self._takes(word):
            raise self._unexpected(word)

    def _text(self) -> str:
        if self._next.kind != _TEXT:
            raise self._unexpected("a text in single quotes")
        self._count(self._next.start)
        return _unquoted(self._take().text)

    # Expressions

    def _expression(self, weakest: int, depth: int) -> _Branch:
        """Operands with all operators of this strength or more."""
        left, strongest = self._operand(depth), _COMPARISON
        while self._next.kind == _WORD:
            strength = _STRENGTHS.get(self._next.text, 0)
            if not weakest <= strength <= strongest:
                break
            strongest = strength
            operator = self._take()
            self._count(operator.start)
            if strength == _COMPARISON:
                left = self._comparison(left, operator.text, depth)
            elif strength == _EQUALITY:
                left = self._equality(left, operator.text, depth)
            else:
                right = self._as_truth(self._expression(strength + 1, depth))
                left = self._several(self._as_truth(left), right, operator.text == "OR")
        return left

    def _operand(self, depth: int) -> _Branch:
        token = self._next
        self._count(token.start)
        self._check_depth(depth, token.start)
        if token.kind == _WORD:
            return self._operand_of_word(depth)
        if token.kind == _TEXT:
            return _Branch(Literal(_unquoted(self._take().text)), 0, token.start)
        if token.kind == _NAME:
            return _Branch(Name(self._take().text), 0, token.start)
        if token.kind in (_NUMBER, _DECIMAL):
            return _Branch(Literal(self._number(self._take())), 0, token.start)
        raise self._unexpected(_OPERAND)

    def _operand_of_word(self, depth: int) -> _Branch:
        start = self._next.start
        if self._next.text in _CONSTANTS:
            return _Branch(Literal(_CONSTANTS[self._take().text]), 0, start)
        if self._takes("("):
            inner = self._expression(_OR, depth + 1)
            self._need(")")
            return inner
        if self._takes("NOT"):
            truth = self._as_truth(self._operand(depth + 1))
            return self._grown(Not(truth.node), start, truth)
        if self._takes("-"):
            number = self._operand(depth + 1)
            return self._grown(Minus(number.node), start, number)
        if self._takes("+"):
            return self._operand(depth + 1)
        raise self._unexpected(_OPERAND)

    def _number(self, token: _Token) -> int | float:
        digits = token.text.rstrip("lL")
        if token.kind == _DECIMAL:
            number = float(digits)
            if number == float("inf"):
                raise self._bad("a decimal is too large", token.start, "write a smaller one")
            return number
        if len(digits) > 1 and digits[0] == "0":
            raise self._bad(
                f"{digits[:_SHOWN_CHARS]} begins with 0", token.start, "leave the zeros out"
            )
        if len(digits) > _INT64_DIGITS or int(digits) > INT64_MAX:
            raise self._bad("an integer is too large", token.start, f"write up to {INT64_MAX}")
        return int(digits)

    def _several(self, left: _Branch, right: _Branch, is_or: bool) -> _Branch:
        """A chain of the same operator is one node: 1,000 of them need no depth."""
        if isinstance(left.node, Several) and left.node.decider is is_or:
            node = Several((*left.node.operands, right.node), is_or)
            depth = max(left.depth, right.depth + 1)
            self._check_depth(depth, left.start)
            return _Branch(node, depth, left.start)
        return self._grown(Several((left.node, right.node), is_or), left.start, left, right)

    def _equality(self, left: _Branch, sign: str, depth: int) -> _Branch:
        if sign == "IS":
            is_not = self._takes("NOT")
            self._need("NULL")
            right = _Branch(Literal(None), 0, left.start)
        else:
            is_not = sign == "<>"
            right = self._expression(_COMPARISON, depth)
            self._check_equal(left, right)
        equal = self._grown(Equal(left.node, right.node), left.start, left, right)
        return self._grown(Not(equal.node), left.start, equal) if is_not else equal

    def _comparison(self, left: _Branch, word: str, depth: int) -> _Branch:
        if word in ORDERS:
            return self._order(left, word, self._operand(depth))
        is_not = word == "NOT"
        if is_not:
            word = self._take().text if self._next.kind == _WORD else ""
        if word in TEXT_TESTS:
            return self._grown(TextTest(left.node, word, self._text(), is_not), left.start, left)
        if word == "IN":
            return self._in(left, is_not)
        if word == "BETWEEN":
            return self._between(left, is_not, depth)
        raise self._unexpected("IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")

    def _in(self, left: _Branch, is_not: bool) -> _Branch:
        if not isinstance(left.node, Name):
            raise self._bad("IN needs a property on its left", left.start, "write a IN ('x', 'y')")
        self._need("(")
        texts = [self._text()]
        while self._takes(","):
            texts.append(self._text())
        self._need(")")
        return _Branch(In(left.node, frozenset(texts), is_not), 1, left.start)

    def _between(self, left: _Branch, is_not: bool, depth: int) -> _Branch:
        low = self._operand(depth)
        self._need("AND")
        high = self._operand(depth)
        self._check_ordered("BETWEEN", left, low, high)
        if not is_not:
            self._check_range(low, high)
        node = Between(left.node, low.node, high.node, is_not)
        return self._grown(node, left.start, left, low, high)

    def _order(self, left: _Branch, sign: str, right: _Branch) -> _Branch:
        self._check_ordered(sign, left, right)
        return self._grown(Order(left.node, sign, right.node), left.start, left, right)

    # Checks

    def _check_ordered(self, sign: str, *sides: _Branch) -> None:
        for side in sides:
            node = side.node
            is_other = isinstance(node, Literal) and not isinstance(node.constant, int | float)
            if node.is_truth or is_other:
                raise self._bad(
                    f"{sign} compares numbers, and this is none",
                    side.start,
                    "write a number or a property; texts have = and <>",
                )

    def _check_equal(self, left: _Branch, right: _Branch) -> None:
        for side in (left, right):
            if isinstance(side.node, Literal) and side.node.constant is None:
                raise self._bad(
                    "NULL cannot be compared", side.start, "write IS NULL or IS NOT NULL"
                )
        both = isinstance(left.node, Literal) and isinstance(right.node, Literal)
        if both and left.node.is_truth and not right.node.is_truth:
            raise self._bad(
                "a truth value cannot be compared with this literal",
                right.start,
                "compare it with TRUE or FALSE",
            )

    def _check_range(self, low: _Branch, high: _Branch) -> None:
        if isinstance(low.node, Literal) and isinstance(high.node, Literal):
            order = compared(low.node.constant, high.node.constant)
            if order is not None and order > 0:
                raise self._bad(
                    "BETWEEN begins above its end", low.start, "write the smaller number first"
                )

    def _as_truth(self, found: _Branch) -> _Branch:
        node = found.node
        if isinstance(node, Name):
            return self._grown(Truth(node), found.start, found)
        if not node.is_truth:
            raise self._bad(
                "this is not true or false", found.start, "compare it: a = 'x', a > 5, a IS NULL"
            )
        return found

    def _grown(self, node: Node, start: int, *parts: _Branch) -> _Branch:
        depth = 1 + max(part.depth for part in parts)
        self._check_depth(depth, start)
        return _Branch(node, depth, start)

    def _check_depth(self, depth: int, at: int) -> None:
        if depth > DEPTH_MAX:
            raise self._bad(
                f"the expression is more than {DEPTH_MAX} levels deep", at, "use fewer parentheses"
            )

    def _count(self, at: int) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._bad(
                f"more than {NODES_MAX} names, literals and operators",
                at,
                "filter by fewer conditions, or by tags",
            )

    def _unexpected(self, wanted: str) -> BadRequest:
        token = self._next
        shown = ascii(token.text[:_SHOWN_CHARS]) if token.kind != _END else "the end"
        return self._bad(
            f"{shown} comes where {wanted} is expected", token.start, f"put {wanted} there"
        )

    def _bad(self, what: str, at: int, hint: str) -> BadRequest:
        return BadRequest(f"SQL92 expression, character {at + 1}: {what}", hint)


def _kind(found: re.Match[str]) -> str:
    kind = str(found.lastgroup)
    if kind == "sign" or (kind == _NAME and found[0].upper() in _KEYWORDS):
        return _WORD
    return _DECIMAL if found["exponent"] else kind


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
