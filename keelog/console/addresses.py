"""The addresses of the console: each page, filter and message has one that can be pasted.

Names of topics and groups have only `% | a-z A-Z 0-9 _ -`. In a path `%` is written `~` and `|` is
`!`, so that no proxy or chat decodes `%25` twice. All links of all pages are made here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlencode

NAME_PATTERN = "[~!a-zA-Z0-9_-]{1,255}"
"""A topic or group in a path."""
_IN_PATH, _AS_IT_IS = str.maketrans("%|", "~!"), str.maketrans("~!", "%|")
_WRITABLE = re.compile(r"[%|a-zA-Z0-9_-]+")
Value = str | int | None
NOTHING: Mapping[str, Value] = MappingProxyType({})


def name_in_path(name: str) -> str:
    """A topic or group as a path has it."""
    return name.translate(_IN_PATH)


def name_of_path(part: str) -> str:
    """The topic or group that a path has."""
    return part.translate(_AS_IT_IS)


def has_address(name: str) -> bool:
    """Whether a name can be a part of an address: cursors and old groups may hold anything."""
    return _WRITABLE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Links:
    """Makes all links of a console that is asked for below `base`, as `/keelog`, or nothing."""

    base: str = ""
    assets: str = "/assets/0"
    """The folder of the files beside pages; its name has their digest."""

    def page(self, path: str, query: Mapping[str, Value] = NOTHING, /, **fields: Value) -> str:
        """A path of the console with a query, without its fields that are None or empty."""
        found = {
            name: value
            for name, value in {**query, **fields}.items()
            if value is not None and value != ""
        }
        tail = f"?{urlencode(found)}" if found else ""
        return f"{self.base}{path}{tail}"

    def asset(self, name: str) -> str:
        """A file beside the pages."""
        return f"{self.base}{self.assets}/{name}"

    def topic(self, topic: str, part: str = "", **fields: Value) -> str:
        """A topic, or one of its tabs."""
        return self.page(f"/topics/{name_in_path(topic)}{part and f'/{part}'}", fields)

    def message(self, topic: str, queue_id: int, queue_offset: int, **fields: Value) -> str:
        """One message, by its place: the address to paste."""
        return self.page(f"/topics/{name_in_path(topic)}/{queue_id}/{queue_offset}", fields)

    def group(self, group: str) -> str:
        """A group; the list that has it, where its name cannot be part of an address."""
        if not has_address(group):
            return self.page("/groups", q=group)
        return self.page(f"/groups/{name_in_path(group)}")

    def dead(self, group: str) -> str:
        """The dead letters of a group."""
        return self.page(f"/dead/{name_in_path(group)}")
