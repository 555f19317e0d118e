"""The tree of an SQL92 filter. A node's `value` is that of its part for one message's properties.

Truth has three values, None is the third. An operand that cannot be compared raises UndecidedError.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt

from node.store.query.sql_values import Value, compared, is_equal

Properties = Mapping[str, str]
ORDERS: Mapping[str, Callable[[int, int], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le, "=": eq}
TEXT_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


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
