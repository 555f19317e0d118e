"""A request's fields, declared once: parser, defaults and table derive from a NamedTuple.

A field is `Annotated[int, RequestField("int", "what it means", low=1, high=9)]`. It may be absent
when the NamedTuple gives it a default. `wire` names it where the attribute is called otherwise.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, get_type_hints

from protocol.errors import BadRequest
from protocol.wire.frames import Header

Row = TypeVar("Row", bound=tuple[Any, ...])
Check = Callable[[str, Any], Any]
"""Takes the field's name and value, returns the value to use. Raises BadRequest."""

_KINDS: dict[str, type] = {
    "int": int,
    "str": str,
    "bin": bytes,
    "bool": bool,
    "list of str": list,
    "map of str to str": dict,
}
_NAMES: dict[type, str] = {int: "an integer", str: "a string", bytes: "bytes", bool: "a boolean"}
_REQUIRED = object()


class RequestField(NamedTuple):
    """One field of a request: its msgpack type, its meaning for people, and its limits."""

    type: str
    """One of the words of docs/protocol.md. Of any other text the type is left to `check`."""
    meaning: str
    low: int | None = None
    high: int | None = None
    check: Check | None = None
    choices: tuple[str, ...] = ()
    wire: str = ""
    """The name on the wire, where it is not the attribute's."""
    range: str = ""
    """The limits for people, where `low`, `high` and `choices` do not say them."""
    absent: str = ""
    """What holds when the field is absent, where it is not the default."""


class RequestLayout(Generic[Row]):
    """The parser of the fields that `row` declares. Others in a header are ignored."""

    def __init__(self, row: type[Row]) -> None:
        self.row = row
        self.fields: dict[str, RequestField] = {}
        """By their names on the wire, in order."""
        self._defaults: dict[str, Any] = {}
        defaults: dict[str, Any] = getattr(row, "_field_defaults", {})
        for attribute, hint in get_type_hints(row, include_extras=True).items():
            field = next(note for note in hint.__metadata__ if isinstance(note, RequestField))
            if field.choices:
                field = field._replace(check=_one_of(field.choices))
            name = field.wire or attribute
            self.fields[name], self._defaults[name] = field, defaults.get(attribute, _REQUIRED)
        self.parse = self._parser()
        """The fields of a header; one that is nil counts as absent.

        Raises BadRequest for the first field that is not as declared.
        """

    def _parser(self) -> Callable[[Header], Row]:
        """A function with a line or two for each field, as `dataclasses` makes them.

        A loop over the fields takes three times as long, and every append and pull waits for it.
        """
        known: dict[str, Any] = {"new": tuple.__new__, "row": self.row, "refuse": _refuse}
        lines = ["def parse(header):", " get = header.get"]
        for number, (name, field) in enumerate(self.fields.items()):
            value, default = f"v{number}", self._defaults[name]
            known |= {f"d{number}": default, f"f{number}": field, f"check{number}": field.check}
            lines.append(f" {value} = get({name!r})")
            if default is _REQUIRED:
                lines.append(" if True:")
            else:
                lines += [f" if {value} is None:", f"  {value} = d{number}", " else:"]
            lines += [
                f"  if {_wrong(value, field)}:",
                f"   refuse({name!r}, f{number}, {value})",
            ]
            if field.check is not None:
                lines.append(f"  {value} = check{number}({name!r}, {value})")
        values = "".join(f"v{number}, " for number in range(len(self.fields)))
        lines.append(f" return new(row, ({values}))")
        exec("\n".join(lines), known)
        made: Callable[[Header], Row] = known["parse"]
        return made

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


def _wrong(value: str, field: RequestField) -> str:
    """The condition, as Python, under which a value is refused for its type or size."""
    kind = _KINDS.get(field.type)
    if kind is None:
        return f"{value} is None"
    is_other = f"type({value}) is not {kind.__name__}"
    if field.low is None:
        return is_other
    return f"{is_other} or not {field.low} <= {value} <= {field.high}"


def _refuse(name: str, field: RequestField, value: Any) -> NoReturn:
    """Raises the BadRequest that says what is wrong with a field."""
    kind = _KINDS.get(field.type)
    if value is None:
        raise BadRequest(f"field {name} is missing")
    if kind is not None and type(value) is not kind:
        expected = _NAMES.get(kind, f"a {kind.__name__}")
        raise BadRequest(f"field {name} is {type(value).__name__}, not {expected}")
    assert field.low is not None and field.high is not None
    raise out_of_range(name, value, field.low, field.high)


def out_of_range(name: str, value: int, low: int, high: int) -> BadRequest:
    """The refusal of a number."""
    return BadRequest(f"field {name} is {value}, outside [{low}, {high}]")


def _one_of(choices: tuple[str, ...]) -> Check:
    def check(name: str, value: str) -> str:
        if value not in choices:
            raise BadRequest(f"field {name} is {value[:40]!a}", f"use {_either(choices)}")
        return value

    return check


def _either(choices: tuple[str, ...]) -> str:
    return " or ".join(choices) if len(choices) == 2 else ", ".join(choices)


def _line(name: str, field: RequestField, absent: str) -> str:
    cells = (f"`{name}`", field.type, _range(field), absent, field.meaning)
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _range(field: RequestField) -> str:
    if field.range or field.low is None or field.high is None:
        return field.range or " ".join(f"`{choice}`" for choice in field.choices)
    if field.low == field.high:
        return f"{field.low}"
    if field.high == 2**63 - 1:
        return "" if field.low < 0 else f"from {field.low}"
    return f"{field.low:,} to {field.high:,}"


def _absent(field: RequestField, default: Any) -> str:
    if field.absent or default is _REQUIRED:
        return field.absent or "refused"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:,}" if isinstance(default, int) else ""
