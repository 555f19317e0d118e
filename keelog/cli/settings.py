"""Settings as people give them: in a TOML file, as variables, with -X; and such a file as text.

A file is checked here too. A file that is written holds all settings, each with what it does, or
some of them.
"""

import dataclasses
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protocol.errors import BadRequest

STORE, SERVE, NETWORK, BROKER, NODE = "store", "serve", "network", "broker", "node"
OF_NODE = (SERVE, NETWORK, BROKER, NODE)
TABLES = (*OF_NODE, STORE)
"""Those of a settings file; the words before a name with -X."""
SHORT_VARIABLES = {"KEELOG_HTTP": f"{SERVE}.http"}
"""The long one of the same setting wins."""
_VARIABLE = re.compile(rf"KEELOG_({'|'.join(TABLES).upper()})__(.+)")
_KINDS = {bool: "true or false", int: "a whole number", str: "text in quotes"}
_FILE_WIDTH = 96
_MARKDOWN_LINK = re.compile(r" ?\(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)")
_HEAD_OF_FILE = """\
# Settings of a Keelog node: keelog serve DIR --config FILE
# Times are in ms, sizes in bytes. KEELOG_STORE__NAME and -X store.name=value go before this file,
# KEELOG_SERVE__NAME, -X serve.name=value and options of keelog serve likewise; so do those of the
# tables network, broker and node, as KEELOG_NODE__NAME and -X node.name=value.
"""


class Given(NamedTuple):
    """One setting as it was given: its table, name and value in `pair`, and where."""

    pair: str
    origin: str
    """file, environment, -X or option."""
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
    """A fault in one line of a settings file, as `keelog config check` prints it."""

    setting: str
    line: int | None
    problem: str
    hint: str


def all_given(
    file: Path | None, environment: Mapping[str, str], options: Sequence[str]
) -> tuple[Given, ...]:
    """All given settings; the last of a name wins: file, variables, then -X. Raises BadRequest."""
    return (
        *(from_file(file) if file is not None else ()),
        *from_environment(environment),
        *(Given(pair, "-X", "") for pair in options),
    )


def settings_of(table: str, given: Sequence[Given]) -> Any:
    """The settings of one table, of the class `kind_of` it. Raises BadRequest."""
    # Imported here: most command lines have neither file nor variable.
    from node.runtime.settings import changed

    return changed(kind_of(table)(), (one.pair for one in given if one.table == table), table)


def kind_of(table: str) -> type[Any]:
    """The class of a table: names, defaults and meanings."""
    from node.runtime.settings import Settings
    from node.supervisor.options import BrokerSettings, NetworkSettings, NodeSettings, ServeSettings

    kinds = (ServeSettings, NetworkSettings, BrokerSettings, NodeSettings, Settings)
    return dict(zip(TABLES, kinds, strict=True))[table]


def from_environment(environment: Mapping[str, str]) -> list[Given]:
    """`KEELOG_STORE__FLUSH_DISK_TYPE=x` as `store.flush_disk_type=x`. Raises BadRequest, with the
    variable's name, for one that sets nothing or has a wrong value."""
    said = [(name, setting) for name, setting in SHORT_VARIABLES.items() if name in environment]
    said += [
        (name, f"{found[1]}.{found[2]}".lower())
        for name in sorted(environment)
        if (found := _VARIABLE.fullmatch(name))
    ]
    given = [Given(f"{setting}={environment[name]}", "environment", name) for name, setting in said]
    for one in given:
        try:
            settings_of(one.table, [one])
        except BadRequest as error:
            raise BadRequest(f"the variable {one.where}: {error.reason}", error.hint) from None
    return given


def from_file(path: Path) -> list[Given]:
    """The tables of a TOML file. Raises BadRequest for the first thing that is wrong."""
    found, problems = read_file(path)
    for wrong in problems:
        place = f"{path}, line {wrong.line}" if wrong.line else str(path)
        raise BadRequest(f"{place}: {wrong.problem}", wrong.hint)
    return [Given(f"{name}={value_text(value)}", "file", str(path)) for name, value in found]


def read_file(path: Path) -> tuple[list[tuple[str, Any]], list[SettingProblem]]:
    """The settings of a TOML file as (`table.name`, value), and all that is wrong with it. Raises
    OSError."""
    # Imported here: what needs no file does without.
    import tomllib

    text = path.read_bytes()
    try:
        data = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else None
        return [], [
            SettingProblem("", line, f"it is not TOML: {error}", "keelog config init  shows one")
        ]
    lines = _lines(text.decode())
    problems = list(_strangers(data, lines))
    found: list[tuple[str, Any]] = []
    for name in TABLES:
        table = data.get(name, {})
        if isinstance(table, dict):
            for key, value in table.items():
                found.append((f"{name}.{key}", value))
                if (fault := _fault_of(name, key, value)) is not None:
                    line = lines.get((name, key))
                    problems.append(SettingProblem(key, line, fault.reason, fault.hint))
        else:
            hint = f"write [{name}] above the settings"
            problems.append(SettingProblem(name, lines.get((name,)), f"{name} is no table", hint))
    return found, problems


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The first line of each table and setting, by its names from the outermost table inwards.

    tomllib does not report lines, so each line up to its first `=` is parsed as a document of its
    own. A setting that is not the first of its line is missing.
    """
    import tomllib

    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, _ = line.partition("=")
        try:
            inner: Any = tomllib.loads(f"{key}=0" if equals else line)
        except tomllib.TOMLDecodeError:
            continue
        names: tuple[str, ...] = ()
        while inner and isinstance(inner, dict | list):
            name, inner = next(iter(inner.items())) if isinstance(inner, dict) else ("", inner[0])
            names += (name,) if name else ()
        if isinstance(inner, dict) and names:
            table = names
            found.setdefault(names, number)
        elif names:
            found.setdefault(table + names, number)
    return found


def _strangers(
    data: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]
) -> Iterator[SettingProblem]:
    """Yields a problem for each name outside the tables."""
    import difflib

    from node.runtime.settings import snake_case

    names = ", ".join(f"[{table}]" for table in TABLES)
    for name, value in data.items():
        if name in TABLES:
            continue
        home = [one for one in TABLES if snake_case(name) in kind_of(one).__dataclass_fields__]
        if isinstance(value, dict):
            near = difflib.get_close_matches(name, TABLES, 1)
            problem = f"there is no table [{name}]"
            hint = f"did you mean [{near[0]}]?" if near else f"the tables are {names}"
        elif home:
            problem, hint = f"{name} stands in no table", f"put it below a line [{home[0]}]"
        else:
            problem, hint = f"there is no {name!r}", f"put settings into a table: {names}"
        yield SettingProblem(name, lines.get((name,)), problem, hint)


def _fault_of(table: str, name: str, value: object) -> BadRequest | None:
    """The fault of one setting of a file: in its name, its kind, or its value."""
    from node.runtime.settings import SIZE_FORMS, Size, snake_case, unknown_setting

    field = kind_of(table).__dataclass_fields__.get(snake_case(name))
    if field is None:
        return unknown_setting(snake_case(name), kind_of(table))
    kind, is_size = type(field.default), field.type == Size
    if type(value) is not kind and not (is_size and isinstance(value, str)):
        expected = f"{SIZE_FORMS} in quotes" if is_size else _KINDS[kind]
        shown = value_text(value) if isinstance(value, bool | int | float) else repr(value)
        return BadRequest(f"{name} is {shown}", f"write {expected}")
    one = Given(f"{table}.{name}={value_text(value)}", "", "")
    try:
        settings_of(one.table, [one])
    except BadRequest as error:
        return error
    return None


def value_text(value: object) -> str:
    """A setting's value as people write it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def whole_file(commented: bool) -> str:
    """A TOML file of all settings with their defaults; `commented`: none of them is in force."""
    lines = [_HEAD_OF_FILE]
    for table in TABLES:
        lines += [f"[{table}]", ""]
        for field in dataclasses.fields(kind_of(table)):
            text = plain_meaning(field)
            lines += [
                textwrap.fill(text, _FILE_WIDTH, initial_indent="# ", subsequent_indent="# "),
                f"{'# ' if commented else ''}{line_of(field.name, field.default)}",
                "",
            ]
    return "\n".join(lines)


def plain_meaning(field: "dataclasses.Field[Any]") -> str:
    """The meaning of a setting, without Markdown."""
    return _MARKDOWN_LINK.sub(r"\1", field.metadata["meaning"]).replace("`", "")


def some_lines(tables: Mapping[str, Mapping[str, object]], head: str) -> str:
    """A TOML file of these settings, by their tables, below a comment."""
    lines = [f"# {head}"]
    for table, values in tables.items():
        if values:
            lines += ["", f"[{table}]", *(line_of(name, value) for name, value in values.items())]
    return "\n".join(lines) + "\n"


def line_of(name: str, value: object) -> str:
    """`name = value` in TOML. JSON writes numbers, truth and plain text the same."""
    return f"{name} = {json.dumps(value)}"
