"""The command of `keelog` that a page shows: the same question, for a terminal."""

import shlex

from keelog.console.ask import Ask
from protocol.addresses import DEFAULT_NODE


def command(ask: Ask, *words: str | int) -> str:
    """`keelog WORDS`, quoted for a shell, with the node where it is not the usual one."""
    place = ask.node.shown
    tail = () if place in ("", DEFAULT_NODE) else ("--node", place)
    return " ".join(shlex.quote(str(word)) for word in ("keelog", *words, *tail))
