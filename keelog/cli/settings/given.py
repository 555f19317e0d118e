"""Settings as given: in a TOML file, as variables, with -X; and what is wrong with a file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.errors import BadRequest

if TYPE_CHECKING:
    from node.runtime.settings import Settings
    from node.supervisor.options import NodeSettings, ServeSettings

STORE, SERVE, NODE = "store", "serve", "node"
TABLES = (SERVE, NODE, STORE)
"""Those of a settings file; the words before a name with -X."""
SHORT_VARIABLES = {"KEELOG_HTTP": f"{SERVE}.http"}
"""The long one of the same setting wins."""
_VARIABLE = re.compile(rf"KEELOG_({'|'.join(TABLES).upper()})__(.+)")
_KINDS = {bool: "true or false", int: "a whole number", str: "text in quotes"}


class Given(NamedTuple):
    """One setting as it was given: its table, name and value in `pair`, and where."""

    pair: str
    origin: str
    """file, environment or -X."""
    where: str
    """The file, the variable, or nothing."""

    @property
    def table(self) -> str:
        """`store` for a pair that names none."""
        named = self.pair.strip().partition(".")[0]
        return named if named in TABLES else STORE

    @property
    def name(self) -> str:
        """The setting's own name, in snake case."""
        from node.runtime.settings import snake_case

        return snake_case(self.pair.partition("=")[0].strip().removeprefix(f"{self.table}."))


class SettingProblem(NamedTuple):
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


def store_pairs(given: Sequence[Given]) -> tuple[str, ...]:
    """For `load_settings`: what was given for a store. Files and variables may speak of more."""
    return tuple(one.pair for one in given if one.table == STORE)


def serve_settings(given: Sequence[Given]) -> "ServeSettings":
    """What was given for `keelog serve`. Raises BadRequest."""
    from node.runtime.settings import changed
    from node.supervisor.options import ServeSettings

    return changed(ServeSettings(), (one.pair for one in given if one.table == SERVE), SERVE)


def node_settings(given: Sequence[Given]) -> "NodeSettings":
    """What was given for the processes of a node. Raises BadRequest."""
    from node.runtime.settings import changed
    from node.supervisor.options import NodeSettings

    return changed(NodeSettings(), (one.pair for one in given if one.table == NODE), NODE)


def from_environment(environment: Mapping[str, str]) -> list[Given]:
    """`KEELOG_STORE__FLUSH_DISK_TYPE=x` as `store.flush_disk_type=x`. Raises BadRequest, with the
    variable's name, for one that is no setting or has no value of it."""
    short = [
        Given(_checked(name, f"{setting}={environment[name]}"), "environment", name)
        for name, setting in SHORT_VARIABLES.items()
        if name in environment
    ]
    return short + [
        Given(_checked(name, f"{found[1]}.{found[2]}".lower() + f"={value}"), "environment", name)
        for name, value in sorted(environment.items())
        if (found := _VARIABLE.fullmatch(name))
    ]


def _checked(variable: str, pair: str) -> str:
    """The pair that a variable says."""
    try:
        _try([pair])
    except BadRequest as error:
        raise BadRequest(f"the variable {variable}: {error.reason}", error.hint) from None
    return pair


def _try(pairs: Sequence[str]) -> None:
    """Raises BadRequest for pairs that are no settings."""
    # Imported here: most command lines have neither file nor variable.
    from node.runtime.settings import load_settings

    given = [Given(pair, "", "") for pair in pairs]
    load_settings(store_pairs(given))
    if any(one.table == SERVE for one in given):
        serve_settings(given)
    if any(one.table == NODE for one in given):
        node_settings(given)


def kind_of(table: str) -> "type[Settings | ServeSettings | NodeSettings]":
    """Names and defaults of a table."""
    from node.runtime.settings import Settings
    from node.supervisor.options import NodeSettings, ServeSettings

    kinds: dict[str, type[Settings | ServeSettings | NodeSettings]] = {
        SERVE: ServeSettings,
        NODE: NodeSettings,
        STORE: Settings,
    }
    return kinds[table]


def from_file(path: Path) -> list[Given]:
    """The tables of a TOML file. Raises BadRequest for the first thing that is wrong."""
    found, problems = read_file(path)
    for wrong in problems:
        place = f"{path}, line {wrong.line}" if wrong.line else str(path)
        raise BadRequest(f"{place}: {wrong.problem}", wrong.hint)
    return [Given(f"{name}={_text(value)}", "file", str(path)) for name, value in found]


def read_file(path: Path) -> tuple[list[tuple[str, Any]], list[SettingProblem]]:
    """The settings of a TOML file as (`table.name`, value), and all that is wrong with it.

    Raises OSError.
    """
    # Imported here: what needs no file does without.
    import tomllib

    text = path.read_bytes()
    try:
        data = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else None
        return [], [
            SettingProblem("", line, f"it is no TOML: {error}", "keelog config init  shows one")
        ]
    problems = list(_strangers(data, text.decode()))
    found: list[tuple[str, Any]] = []
    for name in TABLES:
        table = data.get(name, {})
        if isinstance(table, dict):
            problems += _faults_of(name, table, text.decode())
            found += [(f"{name}.{key}", value) for key, value in table.items()]
        else:
            line, hint = _line_of(text.decode(), name), f"write [{name}] above the settings"
            problems.append(SettingProblem(name, line, f"{name} is no table", hint))
    return found, problems


def _faults_of(table: str, values: Mapping[str, Any], text: str) -> Iterator[SettingProblem]:
    for name, value in values.items():
        fault = _fault_of(table, name, value)
        if fault is not None:
            yield SettingProblem(name, _line_of(text, name), fault.reason, fault.hint)


def _strangers(data: Mapping[str, Any], text: str) -> Iterator[SettingProblem]:
    """What stands outside the tables."""
    import difflib

    from node.runtime.settings import snake_case

    names = ", ".join(f"[{table}]" for table in TABLES)
    for name, value in data.items():
        if name in TABLES:
            continue
        home = [one for one in TABLES if snake_case(name) in kind_of(one).__dataclass_fields__]
        if isinstance(value, dict):
            near = difflib.get_close_matches(name, TABLES, 1)
            hint = f"did you mean [{near[0]}]?" if near else f"the tables are {names}"
            yield SettingProblem(name, _line_of(text, name), f"there is no table [{name}]", hint)
        elif home:
            hint = f"put it below a line [{home[0]}]"
            yield SettingProblem(name, _line_of(text, name), f"{name} stands in no table", hint)
        else:
            hint = f"put settings into a table: {names}"
            yield SettingProblem(name, _line_of(text, name), f"there is no {name!r}", hint)


def _fault_of(table: str, name: str, value: object) -> BadRequest | None:
    """What is wrong with one setting of a file: its name, its kind, or its value."""
    from node.runtime.settings import snake_case, unknown_setting

    field = kind_of(table).__dataclass_fields__.get(snake_case(name))
    if field is None:
        return unknown_setting(snake_case(name), kind_of(table))
    kind = type(field.default)
    if type(value) is not kind:
        return BadRequest(f"{name} is {_toml(value)}", f"write {_KINDS[kind]}")
    try:
        _try([f"{table}.{name}={_text(value)}"])
    except BadRequest as error:
        return error
    return None


def _line_of(text: str, name: str) -> int | None:
    """The first line that sets `name`, or heads its table; None when it is written otherwise."""
    word = re.escape(name)
    pattern = rf"""^\s*(?:\[\s*|(?:{"|".join(TABLES)})\s*\.\s*)?["']?{word}["']?\s*[\]=.]"""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        return None
    return text.count("\n", 0, found.end()) + 1


def _toml(value: object) -> str:
    return _text(value) if isinstance(value, bool | int | float) else repr(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
