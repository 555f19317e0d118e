"""JSON as RocketMQ's Java writes it, in bodies and in configuration files, and classes of Java.

Integer keys have no quotes, and a map whose keys are objects has the objects themselves as keys:
`{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:7}}`.

Classes are declared as data: reading and writing their JSON derives from a NamedTuple. The name on
the wire is the attribute's in camel case, or the text in `Annotated[str, "clientID"]`. `Int32` is
Java's `int`, and `int` its `long`. A field without a default is mandatory; one that is absent or
null has its default. The fields of a request's header are declared in the same way.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from protocol.remoting.codes import BadCommand

JSON_BODY_BYTES_MAX = 1024 * 1024
"""While it is read, a body of empty lists costs 30 times its bytes."""
NESTING_MAX = 32
"""Depth of what a declaration passes on as it is."""
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
Int32 = Annotated[int, 32]
Row = TypeVar("Row", bound=tuple[Any, ...])
Read = Callable[[Any], Any]
"""Takes a value of JSON and returns the one to use. Raises TypeError, ValueError, BadCommand."""

# The quote at the end may be missing: what begins a string is never read again as something else.
_STRING = r'"(?:[^"\\]++|\\.)*+"?'
_STRING_OR_ODD_KEY = re.compile(
    rf'({_STRING})|(?<=[{{,])(\s*+)(?:(-?[0-9]++)|(\{{(?:[^{{}}"]++|{_STRING})*+\}}))(\s*+):',
    re.DOTALL,
)
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_REQUIRED = object()
_CLASSES: dict[type, Any] = {}
"""All that were declared and used."""


def parse_java_json(text: str) -> Any:
    """Parses JSON as Java writes it. A key that is an integer or an object becomes its text.

    Raises ValueError, RecursionError.
    """
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_STRING_OR_ODD_KEY.sub(_quoted, text))


def _quoted(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    key = f'"{found[3]}"' if found[3] else json.dumps(found[4])
    return f"{found[2]}{key}{found[5]}:"


def sound_text(text: str) -> str:
    """Returns a text that can be UTF-8: half a surrogate pair becomes `?`, as in Java."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class JavaField(NamedTuple):
    """One field of a class: its name on the wire, and how its value is read."""

    attribute: str
    name: str
    read: Read
    default: Any


class JavaClass(Generic[Row]):
    """The class that a NamedTuple declares. `names` are other names on the wire, in order."""

    def __init__(self, row: type[Row], names: Iterable[str] = ()) -> None:
        self.row = row
        hints = get_type_hints(row, include_extras=True)
        defaults: dict[str, Any] = getattr(row, "_field_defaults", {})
        on_wire = tuple(names) or [_wire_name(name, hint) for name, hint in hints.items()]
        self.fields = tuple(
            JavaField(attribute, name, _reader(hint), defaults.get(attribute, _REQUIRED))
            for (attribute, hint), name in zip(hints.items(), on_wire, strict=True)
        )
        self.sorted = sorted((field.name, field.attribute) for field in self.fields)
        """Name and attribute of each field, in the order in which Java writes them."""

    def read(self, found: Any) -> Row:
        """Returns the fields that a map holds: a parsed body, or the `ext` of a header.

        Raises BadCommand for the first one that is missing or not as declared.
        """
        if not isinstance(found, Mapping):
            raise BadCommand(f"{self.row.__name__} is {type(found).__name__}, not a map")
        values = [_value(field, found.get(field.name)) for field in self.fields]
        return tuple.__new__(self.row, values)

    @cached_property
    def read_ext(self) -> Callable[[Mapping[str, str]], Row]:
        """As `read`, for the `ext` of a header, in a quarter of the time: every send waits for it.

        A function with a line or two for each field, as `dataclasses` makes them; for classes of
        numbers, booleans and texts. It leaves what it does not take to `read`, the oracle for it.
        """
        known: dict[str, Any] = {"plainly": self.read, "row": self.row, "new": tuple.__new__}
        lines = ["def read_ext(ext):", " try:"]
        for number, field in enumerate(self.fields):
            value, text = f"v{number}", f"ext[{field.name!r}]"
            taken = [f"{value} = {_TAKEN[field.read].format(text)}"]
            if field.read in _BOUNDS:
                low, high = _BOUNDS[field.read]
                taken.append(f"if not {low} <= {value} <= {high}: return plainly(ext)")
            if field.default is not _REQUIRED:
                known[f"d{number}"] = field.default
                taken = [f"{value} = d{number}", f"if {field.name!r} in ext:"] + [
                    f" {line}" for line in taken
                ]
            lines += (f"  {line}" for line in taken)
        values = "".join(f"v{number}, " for number in range(len(self.fields)))
        lines += [" except (KeyError, ValueError):", "  return plainly(ext)"]
        lines.append(f" return new(row, ({values}))")
        exec("\n".join(lines), known)
        compiled: Callable[[Mapping[str, str]], Row] = known["read_ext"]
        return compiled


def _value(field: JavaField, value: Any) -> Any:
    if value is None:
        if field.default is _REQUIRED:
            raise BadCommand(f"field {field.name} is missing")
        return field.default
    try:
        return field.read(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        shown = ascii(value[:40]) if isinstance(value, str) else type(value).__name__
        raise BadCommand(f"field {field.name} is {shown}, which is not as declared") from None


def _wire_name(attribute: str, hint: Any) -> str:
    first, *others = attribute.split("_")
    camel = first + "".join(map(str.capitalize, others))
    return next(
        (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, str)), camel
    )


def java_class(row: type[Row]) -> JavaClass[Row]:
    """Returns the class that a NamedTuple declares."""
    known: JavaClass[Row] | None = _CLASSES.get(row)
    if known is None:
        known = _CLASSES[row] = JavaClass(row)
    return known


def _reader(hint: Any) -> Read:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _int32 if 32 in args else _reader(args[0])
    if origin in (Union, UnionType):
        return _reader(args[0])
    if origin is tuple:
        return partial(_list, _reader(args[0]))
    if origin is not None:
        return partial(_map, _reader(args[0]), _reader(args[1]))
    return _SCALARS.get(hint) or partial(_nested, hint)


def _list(read: Read, found: Any) -> tuple[Any, ...]:
    if not isinstance(found, list):
        raise TypeError
    return tuple(map(read, found))


def _map(read_key: Read, read: Read, found: Any) -> dict[Any, Any]:
    if not isinstance(found, dict):
        raise TypeError
    return {read_key(key): read(value) for key, value in found.items()}


def _nested(row: type[Any], found: Any) -> Any:
    # A text is the key of a map, which was an object.
    return java_class(row).read(parse_java_json(found) if isinstance(found, str) else found)


def _int64(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    if not INT64_MIN <= (number := int(value)) <= INT64_MAX:
        raise ValueError
    return number


def _int32(value: Any) -> int:
    if not INT32_MIN <= (number := _int64(value)) <= INT32_MAX:
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() == "true"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return sound_text(value)
    if not isinstance(value, int | float):
        raise TypeError
    return json.dumps(value)


def _as_it_is(value: Any, depth: int = 0) -> Any:
    """Returns a value that is not declared further. Writing it must not need a deep stack."""
    if depth > NESTING_MAX:
        raise ValueError
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _as_it_is(item, depth + 1)
    return value


_SCALARS: dict[Any, Read] = {int: _int64, bool: _boolean, str: _text, float: float, Any: _as_it_is}
_TAKEN: dict[Read, str] = {
    _int64: "int({})",
    _int32: "int({})",
    _boolean: "{}.lower() == 'true'",
    _text: "{}",
}
"""What each of them does with a text, as Python."""
_BOUNDS: dict[Read, tuple[int, int]] = {
    _int64: (INT64_MIN, INT64_MAX),
    _int32: (INT32_MIN, INT32_MAX),
}


def read_body(row: type[Row], body: bytes | bytearray | memoryview) -> Row:
    """Returns the body of a request or answer. Raises BadCommand."""
    if not body:
        raise BadCommand(f"the body is missing, {row.__name__} was expected")
    if len(body) > JSON_BODY_BYTES_MAX:
        raise BadCommand(f"a body of {len(body)} bytes", f"send up to {JSON_BODY_BYTES_MAX}")
    try:
        found = parse_java_json(str(body, "utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadCommand(f"the body is not JSON: {error}") from None
    return java_class(row).read(found)


def write_body(value: Any, *, standard: bool) -> bytes:
    """Returns the JSON of declared classes, maps, lists, texts and numbers; null is left out.

    `standard` puts integer keys in quotes. Java refuses quotes around a key that is an object.
    """
    # Half a surrogate pair becomes a question mark, as in Java.
    return _written(value, standard).encode("utf-8", "replace")


def _written(value: Any, standard: bool) -> str:
    if value is None or isinstance(value, str | bool | float):
        return _ENCODE(value)
    if isinstance(value, int):
        return str(value)
    pairs: Iterable[tuple[str, Any]]
    if hasattr(value, "_fields"):
        pairs = ((_ENCODE(name), getattr(value, a)) for name, a in java_class(type(value)).sorted)
    elif isinstance(value, Mapping):
        pairs = ((_key(key, standard), item) for key, item in value.items())
    else:
        return f"[{','.join([_written(item, standard) for item in value])}]"
    written = [f"{key}:{_written(item, standard)}" for key, item in pairs if item is not None]
    return f"{{{','.join(written)}}}"


def _key(key: Any, standard: bool) -> str:
    return f'"{key}"' if isinstance(key, int) and standard else _written(key, standard)


def write_ext(fields: Any) -> dict[str, str]:
    """Returns the fields of a request's header, a declared class, as its `ext`, without nulls."""
    pairs = ((name, getattr(fields, a)) for name, a in java_class(type(fields)).sorted)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in pairs
        if value is not None
    }
