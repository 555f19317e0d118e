"""Files of Java's properties, such as `broker.conf` and `tls.properties`, line by line."""

import re
from collections.abc import Iterator

_LINE = re.compile(r"((?:\\.|[^\\:=\s])*)\s*[:=]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SIGNS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def java_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name and value of each property, by the rules of java.util.Properties."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1] + next(lines, (0, ""))[1].lstrip()
        found = _LINE.fullmatch(logical)
        assert found is not None, "any text matches"
        yield number, _unescaped(found[1]), _unescaped(found[2])


def _unescaped(text: str) -> str:
    def sign(match: re.Match[str]) -> str:
        name = match[1]
        return chr(int(name[1:], 16)) if len(name) == 5 else _SIGNS.get(name, name)

    return _ESCAPE.sub(sign, text)
