"""The store: its log, what goes next, what is damaged, and the commands that check and keep it."""

from pathlib import Path
from typing import Any

from keelog.console.ask import Answer, Ask, ShownPage
from keelog.console.commands import command
from keelog.console.node_link import whole
from protocol.errors import NotConnected
from protocol.names import KEELOG_DIR

QUARANTINED_SHOWN_MAX = 50
REFRESH_S = 5.0


def store(ask: Ask) -> Answer:
    """`/store`"""
    state = ask.state()
    if state.look is None:
        raise state.trouble or NotConnected(f"{ask.node.address} does not answer")
    raw = whole(state.look.status.raw)
    place = str(raw.get("store", ""))
    layout = {} if ask.root is None else _files(ask.root)
    values = {
        "raw": raw,
        "place": place,
        "files": layout,
        "is_here": ask.root is not None,
        "quarantine": [] if ask.root is None else _quarantine(ask.root),
        "commands": [
            ("check every checksum", _local(ask, "store", "verify", place, "--deep")),
            ("copy it, also while it runs", _local(ask, "store", "backup", place, "OUT")),
            ("mend it, with the node stopped", _local(ask, "store", "repair", place)),
            ("make a new one of a copy", _local(ask, "store", "restore", "OUT", "DIR")),
        ],
    }
    return ShownPage("store.html", values, REFRESH_S)


def _local(ask: Ask, *words: str) -> str:
    """A command for the node's own machine."""
    return command(ask, *words).partition(" --node ")[0]


def _files(root: Path) -> dict[str, Any]:
    """How many files the store has, by their folders."""
    return {
        "segments": _count(root / "commitlog"),
        "queues": sum(1 for one in (root / "consumequeue").glob("*/*") if one.is_dir()),
        "index": _count(root / "index"),
    }


def _count(folder: Path) -> int:
    try:
        return sum(1 for one in folder.iterdir() if one.name[:1].isdigit())
    except OSError:
        return 0


def _quarantine(root: Path) -> list[str]:
    try:
        found = sorted(one.name for one in (root / KEELOG_DIR / "quarantine").iterdir())
    except OSError:
        return []
    return found[:QUARANTINED_SHOWN_MAX]
