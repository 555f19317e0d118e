"""The flags of an mqadmin command line: short and long names, values, and which node is meant."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from protocol.errors import BadRequest

NODE_FLAGS = {"-n": "--namesrvAddr", "-b": "--brokerAddr"}


class Words(dict[str, str]):
    """Values by short flag; a switch that was given has the value `true`."""

    node: str | None = None


class Alias(NamedTuple):
    """An mqadmin command: which of ours it is, and what it takes, short flags with long names."""

    ours: Callable[[Words], tuple[str, ...]]
    """The words after `keelog` that do the same."""
    flags: Mapping[str, str] = {}
    required: tuple[str, ...] = ()
    switches: Mapping[str, str] = {}
    """Flags without a value."""
    ignored: Mapping[str, str] = {}
    """Flags with a value that makes no difference on one node."""
    b_is_node: bool = True
    """In some commands -b is a time or a broker's name."""


def read_words(name: str, alias: Alias, words: Sequence[str]) -> Words:
    """Reads a command line. Raises BadRequest for a flag that the command does not have, or a
    missing one."""
    nodes = NODE_FLAGS if alias.b_is_node else {"-n": NODE_FLAGS["-n"]}
    valued = {**nodes, **alias.ignored, **alias.flags}
    by_long = {long: short for short, long in (valued | dict(alias.switches)).items()}
    said = Words()
    rest = list(words)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        short = by_long.get(word, word)
        if short in alias.switches:
            said[short] = "true"
            continue
        if short not in valued:
            takes = ", ".join(sorted({**valued, **alias.switches}))
            raise BadRequest(f"{name} has no {word[:80]!a} here", f"it takes {takes}")
        if not equals:
            if not rest:
                raise BadRequest(f"{name}: {word} has no value", f"write {word} VALUE")
            value = rest.pop(0)
        said[short] = value
    missing = [flag for flag in alias.required if flag not in said]
    if missing:
        flag = missing[0]
        raise BadRequest(f"{name} needs {flag}", f"{flag} is {valued[flag].removeprefix('--')}")
    said.node = _node(said, nodes)
    return said


def _node(said: Words, nodes: Mapping[str, str]) -> str | None:
    """-n, else -b: HOST:PORT, or a URL. Of several name servers the first."""
    address = next((said[flag] for flag in nodes if flag in said), None)
    if address is None:
        return None
    first = address.replace(",", ";").split(";")[0].strip().strip("'\"")
    return first if "://" in first else f"tcp://{first}"
