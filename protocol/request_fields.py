"""A request's fields, declared once: parser, defaults and table derive from a NamedTuple.

A field is `Annotated[int, RequestField("what it means", low=1, high=9)]`. It may be absent when
the NamedTuple gives it a default. `wire` names it where the attribute is called otherwise.
"""

from collections.abc import Callable
from functools import cached_property
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from protocol.errors import BadRequest
from protocol.wire.frames import Header

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
INT32 = (-(2**31), INT32_MAX)

Row = TypeVar("Row", bound=tuple[Any, ...])
Check = Callable[[str, Any], Any]
"""Takes the field's name and value, returns the value to use. Raises BadRequest."""

_TYPES: dict[type, str] = {
    int: "int",
    str: "str",
    bytes: "bin",
    bool: "bool",
    list: "list of str",
    dict: "map of str to str",
}
"""The words of docs/protocol.md for the types of an attribute."""
_KINDS = {word: kind for kind, word in _TYPES.items()}
_NAMES: dict[type, str] = {int: "an integer", str: "a string", bytes: "bytes", bool: "a boolean"}
_REQUIRED = object()


class RequestField(NamedTuple):
    """One field of a request: its meaning for people, and its limits."""

    meaning: str
    low: int = INT64_MIN
    high: int = INT64_MAX
    check: Check | None = None
    choices: tuple[str, ...] = ()
    wire: str = ""
    """The name on the wire, where it is not the attribute's."""
    range: str = ""
    """The limits for people, where `low`, `high` and `choices` do not say them."""
    absent: str = ""
    """What holds when the field is absent, where it is not the default."""
    type: str = ""
    """Its type for people, where that is not the attribute's. `check` takes any other word's."""

    def checked(self, name: str, value: Any) -> Any:
        """The value to use. Raises BadRequest for one that is not as declared."""
        kind = _KINDS.get(self.type)
        if value is None:
            raise BadRequest(f"field {name} is missing")
        if kind is not None and type(value) is not kind:
            expected = _NAMES.get(kind, f"a {kind.__name__}")
            raise BadRequest(f"field {name} is {type(value).__name__}, not {expected}")
        if kind is int and not self.low <= value <= self.high:
            raise out_of_range(name, value, self.low, self.high)
        if self.choices and value not in self.choices:
            either = (" or " if len(self.choices) == 2 else ", ").join(self.choices)
            raise BadRequest(f"field {name} is {value[:40]!a}", f"use {either}")
        return value if self.check is None else self.check(name, value)

    def fault(self, value: str, choices: str) -> str:
        """The condition, as Python, under which `checked` has to look at a value.

        `value` and `choices` are the names of two variables.
        """
        kind = _KINDS.get(self.type)
        if kind is None:
            return f"{value} is None"
        fault = f"type({value}) is not {kind.__name__}"
        if kind is int:
            fault += f" or not {self.low} <= {value} <= {self.high}"
        return f"{fault} or {value} not in {choices}" if self.choices else fault


class RequestLayout(Generic[Row]):
    """The parser of the fields that `row` declares. Others in a header are ignored."""

    def __init__(self, row: type[Row]) -> None:
        """Reads `row` when somebody asks: every process has all layouts, and uses a few."""
        self.row = row

    @cached_property
    def fields(self) -> dict[str, RequestField]:
        """By their names on the wire, in order."""
        found: dict[str, RequestField] = {}
        for attribute, hint in get_type_hints(self.row, include_extras=True).items():
            field = next(note for note in hint.__metadata__ if isinstance(note, RequestField))
            word = field.type or _word(hint.__origin__)
            found[field.wire or attribute] = field._replace(type=word)
        return found

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = getattr(self.row, "_field_defaults", {})
        names = zip(self.fields, self.row.__annotations__, strict=True)
        return {name: defaults.get(attribute, _REQUIRED) for name, attribute in names}

    @cached_property
    def values(self) -> Callable[[Header], Row]:
        """As `parse`, but a plain tuple, for callers that unpack it: 0.15 us less for an append."""
        return self._compiled()

    def parse(self, header: Header) -> Row:
        """The fields of a header; one that is nil counts as absent.

        Raises BadRequest for the first field that is not as declared.
        """
        return tuple.__new__(self.row, self.values(header))

    def values_plainly(self, header: Header) -> tuple[Any, ...]:
        """As `values`, in a loop, which takes three times as long. The oracle for it."""
        values = []
        for name, field in self.fields.items():
            value, default = header.get(name), self._defaults[name]
            is_absent = value is None and default is not _REQUIRED
            values.append(default if is_absent else field.checked(name, value))
        return tuple(values)

    def _compiled(self) -> Callable[[Header], Row]:
        """A function with a line or two for each field, as `dataclasses` makes them.

        Every append and pull waits for it. It leaves what it does not accept to
        `values_plainly`, which names the fault.
        """
        known: dict[str, Any] = {"plainly": self.values_plainly}
        lines = ["def values(header):", " try:"]
        for number, (name, field) in enumerate(self.fields.items()):
            value, default = f"v{number}", self._defaults[name]
            known |= {f"d{number}": default, f"check{number}": field.check}
            known[f"choices{number}"] = field.choices
            taken = [
                f"{value} = header[{name!r}]",
                f"if {field.fault(value, f'choices{number}')}: return plainly(header)",
            ]
            if field.check is not None:
                taken.append(f"{value} = check{number}({name!r}, {value})")
            if default is _REQUIRED:
                lines += (f"  {line}" for line in taken)
            else:
                lines += [f"  {value} = d{number}", f"  if {name!r} in header:"]
                lines += (f"   {line}" for line in taken)
        values = "".join(f"v{number}, " for number in range(len(self.fields)))
        lines += [f"  return ({values})", " except KeyError:", "  return plainly(header)"]
        exec("\n".join(lines), known)
        compiled: Callable[[Header], Row] = known["values"]
        return compiled

    def lines(self, is_one_of_several: bool = False) -> list[str]:
        """A row of docs/protocol.md's table for each field."""
        return [
            _line(name, field, "" if is_one_of_several else _absent(field, self._defaults[name]))
            for name, field in self.fields.items()
        ]


class RequestForms(NamedTuple):
    """The fields of an operation: those of every request, and groups of which it has one."""

    always: RequestLayout[Any] | None
    one_of: tuple[RequestLayout[Any], ...] = ()

    def table(self) -> str:
        """All fields as a Markdown table, for docs/protocol.md."""
        lines = [] if self.always is None else self.always.lines()
        for group in self.one_of:
            lines += (line for line in group.lines(is_one_of_several=True) if line not in lines)
        head = "| request field | type | range | absent | meaning |"
        return "\n".join((head, "|---|---|---|---|---|", *lines))


def out_of_range(name: str, value: int, low: int, high: int) -> BadRequest:
    """The refusal of a number."""
    return BadRequest(f"field {name} is {value}, outside [{low}, {high}]")


def _word(annotation: Any) -> str:
    """The word for the type of an attribute; `int | None` is an int."""
    kind = get_args(annotation)[0] if isinstance(annotation, UnionType) else annotation
    return _TYPES[get_origin(kind) or kind]


def _line(name: str, field: RequestField, absent: str) -> str:
    cells = (f"`{name}`", field.type, _range(field), absent, field.meaning)
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _range(field: RequestField) -> str:
    low, high = field.low, field.high
    if field.range or field.choices:
        return field.range or " ".join(f"`{choice}`" for choice in field.choices)
    if (low, high) == INT32:
        return "32 bits"
    if low == high:
        return f"{low}"
    if high == INT64_MAX:
        return "" if low < 0 else f"from {low}"
    return f"{low:,} to {high:,}"


def _absent(field: RequestField, default: Any) -> str:
    if field.absent or default is _REQUIRED:
        return field.absent or "refused"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:,}" if isinstance(default, int) else ""
