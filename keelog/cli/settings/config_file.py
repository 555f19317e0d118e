"""A settings file as text: all settings with what each does, or some of them."""

import dataclasses
import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from keelog.cli.settings.given import TABLES, kind_of

_WIDTH = 96
_LINK = re.compile(r" ?\(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)")
_HEAD = """\
# Settings of a Keelog node: keelog serve DIR --config FILE
# Times are in ms, sizes in bytes. KEELOG_STORE__NAME and -X store.name=value go before this file,
# KEELOG_SERVE__NAME, -X serve.name=value and options of keelog serve likewise; so do those of the
# tables network, broker and node, as KEELOG_NODE__NAME and -X node.name=value.
"""


def whole_file(commented: bool) -> str:
    """A TOML file of all settings with their defaults; `commented`: none of them is in force."""
    lines = [_HEAD]
    for table in TABLES:
        lines += [f"[{table}]", ""]
        for field in dataclasses.fields(kind_of(table)):
            text = plain_meaning(field)
            lines += [
                textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# "),
                f"{'# ' if commented else ''}{line_of(field.name, field.default)}",
                "",
            ]
    return "\n".join(lines)


def plain_meaning(field: "dataclasses.Field[Any]") -> str:
    """The meaning of a setting, without Markdown."""
    return _LINK.sub(r"\1", field.metadata["meaning"]).replace("`", "")


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
