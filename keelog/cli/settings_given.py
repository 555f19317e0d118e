"""Settings as given: in a TOML file, as variables, with -X; and what is wrong with a file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protocol.errors import BadRequest

ENVIRONMENT_PREFIX = "KEELOG_STORE__"
TABLE = "store"
_KINDS = {bool: "true or false", int: "a whole number", str: "text in quotes"}


class Given(NamedTuple):
    """One setting as it was given: `store.name=value`, and where."""

    pair: str
    origin: str
    """file, environment or -X."""
    where: str
    """The file, the variable, or nothing."""


class Problem(NamedTuple):
    """What is wrong with one line of a settings file, as `keelog config check` prints it."""

    setting: str
    line: int | None
    problem: str
    hint: str


def all_given(
    file: Path | None, environment: Mapping[str, str], options: Sequence[str]
) -> tuple[Given, ...]:
    """What was given, the last of a name wins: file, then variables, then -X. Raises BadRequest."""
    return (
        *(from_file(file) if file is not None else ()),
        *from_environment(environment),
        *(Given(pair, "-X", "") for pair in options),
    )


def from_environment(environment: Mapping[str, str]) -> list[Given]:
    """`KEELOG_STORE__FLUSH_DISK_TYPE=x` as `store.flush_disk_type=x`. Raises BadRequest, with the
    variable's name, for one that is no setting or has no value of it."""
    return [
        Given(_checked(name, value), "environment", name)
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def _checked(variable: str, value: str) -> str:
    """The pair that a variable says."""
    # Imported here: most command lines have no such variable.
    from node.store.settings import load_settings

    pair = f"{TABLE}.{variable.removeprefix(ENVIRONMENT_PREFIX).lower()}={value}"
    try:
        load_settings([pair])
    except BadRequest as error:
        raise BadRequest(f"the variable {variable}: {error.reason}", error.hint) from None
    return pair


def from_file(path: Path) -> list[Given]:
    """The table [store] of a TOML file. Raises BadRequest for the first thing that is wrong."""
    table, problems = read_file(path)
    for wrong in problems:
        place = f"{path}, line {wrong.line}" if wrong.line else str(path)
        raise BadRequest(f"{place}: {wrong.problem}", wrong.hint)
    return [Given(f"{TABLE}.{name}={_text(value)}", "file", str(path)) for name, value in table]


def read_file(path: Path) -> tuple[list[tuple[str, Any]], list[Problem]]:
    """The settings of a TOML file, and all that is wrong with it. Raises OSError."""
    # Imported here: what needs no file does without.
    import tomllib

    text = path.read_bytes()
    try:
        data = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else None
        return [], [Problem("", line, f"it is no TOML: {error}", "keelog config init  shows one")]
    problems = list(_strangers(data, text.decode()))
    table = data.get(TABLE, {})
    if not isinstance(table, dict):
        line = _line_of(text.decode(), TABLE)
        wrong = Problem(TABLE, line, f"{TABLE} is no table", "write [store] above the settings")
        return [], [*problems, wrong]
    for name, value in table.items():
        fault = _fault_of(name, value)
        if fault is not None:
            line = _line_of(text.decode(), name)
            problems.append(Problem(name, line, fault.reason, fault.hint))
    return list(table.items()), problems


def _strangers(data: Mapping[str, Any], text: str) -> Iterator[Problem]:
    """What stands outside the table [store]."""
    import difflib

    from node.store.settings import Settings, snake_case

    for name, value in data.items():
        if name == TABLE:
            continue
        if isinstance(value, dict):
            near = difflib.get_close_matches(name, [TABLE], 1)
            hint = f"did you mean [{TABLE}]?" if near else f"the only table is [{TABLE}]"
            yield Problem(name, _line_of(text, name), f"there is no table [{name}]", hint)
        elif snake_case(name) in Settings.__dataclass_fields__:
            hint = f"put it below a line [{TABLE}]"
            yield Problem(name, _line_of(text, name), f"{name} stands in no table", hint)
        else:
            hint = f"put settings into the table [{TABLE}]"
            yield Problem(name, _line_of(text, name), f"there is no {name!r}", hint)


def _fault_of(name: str, value: object) -> BadRequest | None:
    """What is wrong with one setting of a file: its name, its kind, or its value."""
    from node.store.settings import Settings, load_settings, snake_case, unknown_setting

    field = Settings.__dataclass_fields__.get(snake_case(name))
    if field is None:
        return unknown_setting(snake_case(name))
    kind = type(field.default)
    if type(value) is not kind:
        return BadRequest(f"{name} is {_toml(value)}", f"write {_KINDS[kind]}")
    try:
        load_settings([f"{name}={_text(value)}"])
    except BadRequest as error:
        return error
    return None


def _line_of(text: str, name: str) -> int | None:
    """The first line that sets `name`, or heads its table; None when it is written otherwise."""
    word = re.escape(name)
    pattern = rf"""^\s*(?:\[\s*|{TABLE}\s*\.\s*)?["']?{word}["']?\s*[\]=.]"""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        return None
    return text.count("\n", 0, found.end()) + 1


def _toml(value: object) -> str:
    return _text(value) if isinstance(value, bool | int | float) else repr(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
