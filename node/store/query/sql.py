"""The language of RocketMQ's SQL92 filters, and its parser.

Each part of an expression becomes a function: it returns the part's value for one message's
properties. Truth has three values, None is the third. An operand that cannot be compared raises
UndecidedError.

`parse_sql` makes the function of a whole expression (SelectorParser). From weak to strong: OR, AND,
then `=` `<>` IS, then all other comparisons, then NOT, `+` and `-`: `NOT a = 1` is `(NOT a) = 1`. A
broker stops reading, without a word, at the first sign that cannot go on; here that is refused.
"""

import re
from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt
from typing import NamedTuple

from node.store.query.filters import INT64_MAX, Value, compared, is_equal
from protocol.errors import BadRequest

Properties = Mapping[str, str]
Evaluation = Callable[[Properties], Value]
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


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _SqlPart(NamedTuple):
    """A part of the expression while it is parsed, with its depth.

    `is_truth`: it may be used as a truth value. `name`: of a property. `literal`: what was written.
    `chain`: the operands of AND, or of OR, which is True.
    """

    value: Evaluation
    depth: int
    start: int
    is_truth: bool = True
    name: str = ""
    literal: tuple[Value] | None = None
    chain: tuple[bool, tuple[Evaluation, ...]] | None = None


def parse_sql(expression: str) -> Evaluation:
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

    def whole(self) -> Evaluation:
        """The value of the whole text."""
        found = self._as_truth(self._expression(_OR, 0))
        if self._next.kind != _END:
            raise self._unexpected("AND, OR or the end")
        return found.value

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

    def _expression(self, weakest: int, depth: int) -> _SqlPart:
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

    def _operand(self, depth: int) -> _SqlPart:
        token = self._next
        self._count(token.start)
        self._check_depth(depth, token.start)
        if token.kind == _WORD:
            return self._operand_of_word(depth)
        if token.kind == _TEXT:
            return _literal(_unquoted(self._take().text), token.start)
        if token.kind == _NAME:
            name = self._take().text
            return _SqlPart(lambda properties: properties.get(name), 0, token.start, False, name)
        if token.kind in (_NUMBER, _DECIMAL):
            return _literal(self._number(self._take()), token.start)
        raise self._unexpected(_OPERAND)

    def _operand_of_word(self, depth: int) -> _SqlPart:
        start = self._next.start
        if self._next.text in _CONSTANTS:
            return _literal(_CONSTANTS[self._take().text], start)
        if self._takes("("):
            inner = self._expression(_OR, depth + 1)
            self._need(")")
            return inner
        if self._takes("NOT"):
            return self._negated(self._as_truth(self._operand(depth + 1)), start)
        if self._takes("-"):
            number = self._operand(depth + 1)
            return self._grown(lambda found: _minus(number.value(found)), start, number)._replace(
                is_truth=False
            )
        if self._takes("+"):
            return self._operand(depth + 1)
        raise self._unexpected(_OPERAND)

    def _negated(self, truth: _SqlPart, start: int) -> _SqlPart:
        def value(properties: Properties) -> Value:
            found = truth.value(properties)
            return None if found is None else not found

        return self._grown(value, start, truth)

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

    def _several(self, left: _SqlPart, right: _SqlPart, is_or: bool) -> _SqlPart:
        """AND or OR. A chain of the same operator is one part: 1,000 of them need no depth."""
        operands: tuple[Evaluation, ...] = (left.value, right.value)
        depth = 1 + max(left.depth, right.depth)
        if left.chain is not None and left.chain[0] is is_or:
            operands, depth = (*left.chain[1], right.value), max(left.depth, right.depth + 1)
        self._check_depth(depth, left.start)

        def value(properties: Properties) -> Value:
            """From left to right: TRUE decides OR, FALSE decides AND, and ends the look."""
            is_known = True
            for operand in operands:
                found = operand(properties)
                if found is is_or:
                    return is_or
                is_known = is_known and found is not None
            return not is_or if is_known else None

        return _SqlPart(value, depth, left.start, chain=(is_or, operands))

    def _equality(self, left: _SqlPart, sign: str, depth: int) -> _SqlPart:
        """`=`, `<>`, and IS NULL, which is `=` with NULL on the right."""
        if sign == "IS":
            is_not = self._takes("NOT")
            self._need("NULL")
            right = _literal(None, left.start)
        else:
            is_not = sign == "<>"
            right = self._expression(_COMPARISON, depth)
            self._check_equal(left, right)
        sides = left.value, right.value
        equal = self._grown(
            lambda found: is_equal(sides[0](found), sides[1](found)), left.start, left, right
        )
        return self._negated(equal, left.start) if is_not else equal

    def _comparison(self, left: _SqlPart, word: str, depth: int) -> _SqlPart:
        if word in ORDERS:
            return self._order(left, word, self._operand(depth))
        is_not = word == "NOT"
        if is_not:
            word = self._take().text if self._next.kind == _WORD else ""
        if word in TEXT_TESTS:
            return self._text_test(left, word, self._text(), is_not)
        if word == "IN":
            return self._in(left, is_not)
        if word == "BETWEEN":
            return self._between(left, is_not, depth)
        raise self._unexpected("IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")

    def _order(self, left: _SqlPart, sign: str, right: _SqlPart) -> _SqlPart:
        self._check_ordered(sign, left, right)
        fits = ORDERS[sign]

        def value(properties: Properties) -> Value:
            order = _order_of(left.value(properties), right.value, properties)
            return None if order is None else fits(order, 0)

        return self._grown(value, left.start, left, right)

    def _text_test(self, left: _SqlPart, word: str, text: str, is_not: bool) -> _SqlPart:
        """FALSE for what is not a text, and for an empty text to look for: the NOT forms too."""
        fits = TEXT_TESTS[word]

        def value(properties: Properties) -> Value:
            if not text:
                return False  # a broker does not look at the left side then, which may fail
            found = left.value(properties)
            return isinstance(found, str) and fits(found, text) is not is_not

        return self._grown(value, left.start, left)

    def _in(self, left: _SqlPart, is_not: bool) -> _SqlPart:
        if not left.name:
            raise self._bad("IN needs a property on its left", left.start, "write a IN ('x', 'y')")
        self._need("(")
        texts = {self._text()}
        while self._takes(","):
            texts.add(self._text())
        self._need(")")

        def value(properties: Properties) -> Value:
            found = properties.get(left.name)
            return None if found is None else (found in texts) is not is_not

        return _SqlPart(value, 1, left.start)

    def _between(self, left: _SqlPart, is_not: bool, depth: int) -> _SqlPart:
        """`left >= low AND left <= high`, or with NOT `left < low OR left > high`.

        One part, not two of `left`: those in each other would be looked at 2, 4, 8 times.
        """
        low = self._operand(depth)
        self._need("AND")
        high = self._operand(depth)
        self._check_ordered("BETWEEN", left, low, high)
        if not is_not:
            self._check_range(low, high)

        def value(properties: Properties) -> Value:
            found = left.value(properties)
            below = _order_of(found, low.value, properties)
            if below is not None and below < 0:
                return is_not
            above = _order_of(found, high.value, properties)
            if above is not None and above > 0:
                return is_not
            return None if below is None or above is None else not is_not

        return self._grown(value, left.start, left, low, high)

    # Checks

    def _check_ordered(self, sign: str, *sides: _SqlPart) -> None:
        for side in sides:
            is_other = side.literal is not None and not isinstance(side.literal[0], int | float)
            if side.is_truth or is_other:
                raise self._bad(
                    f"{sign} compares numbers, and this is none",
                    side.start,
                    "write a number or a property; texts have = and <>",
                )

    def _check_equal(self, left: _SqlPart, right: _SqlPart) -> None:
        for side in (left, right):
            if side.literal == (None,):
                raise self._bad(
                    "NULL cannot be compared", side.start, "write IS NULL or IS NOT NULL"
                )
        if left.literal and right.literal and left.is_truth and not right.is_truth:
            raise self._bad(
                "a truth value cannot be compared with this literal",
                right.start,
                "compare it with TRUE or FALSE",
            )

    def _check_range(self, low: _SqlPart, high: _SqlPart) -> None:
        if low.literal and high.literal:
            order = compared(low.literal[0], high.literal[0])
            if order is not None and order > 0:
                raise self._bad(
                    "BETWEEN begins above its end", low.start, "write the smaller number first"
                )

    def _as_truth(self, found: _SqlPart) -> _SqlPart:
        """A property where a truth value is needed is FALSE, even with the text `true`, or NULL."""
        if found.name:
            value = found.value
            return self._grown(
                lambda properties: None if value(properties) is None else False, found.start, found
            )
        if not found.is_truth:
            raise self._bad(
                "this is not true or false", found.start, "compare it: a = 'x', a > 5, a IS NULL"
            )
        return found

    def _grown(self, value: Evaluation, start: int, *parts: _SqlPart) -> _SqlPart:
        depth = 1 + max(part.depth for part in parts)
        self._check_depth(depth, start)
        return _SqlPart(value, depth, start)

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


def _literal(constant: Value, start: int) -> _SqlPart:
    is_truth = constant is None or isinstance(constant, bool)
    return _SqlPart(lambda _: constant, 0, start, is_truth, literal=(constant,))


def _minus(found: Value) -> Value:
    """The negative of a number; NULL for all else, a text too."""
    return None if isinstance(found, bool | str) or found is None else -found


def _order_of(left: Value, right: Evaluation, properties: Properties) -> int | None:
    """As `compared`; a broker does not look at the right side beside NULL, which may fail."""
    return None if left is None else compared(left, right(properties))


def _kind(found: re.Match[str]) -> str:
    kind = str(found.lastgroup)
    if kind == "sign" or (kind == _NAME and found[0].upper() in _KEYWORDS):
        return _WORD
    return _DECIMAL if found["exponent"] else kind


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
