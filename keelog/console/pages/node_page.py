"""The node: its processes, requests, settings, copies; and the tail of its log."""

import os
from pathlib import Path

from keelog.console.ask import Answer, Ask, ShownPage
from keelog.console.node_link import whole
from keelog.diag import redacted
from protocol.errors import NotConnected

REFRESH_S = 2.0
LOG_BYTES_MAX = 1024 * 1024
LOG_LINES_MAX = 500
LEVELS = ("all", "warning", "error")
_LOUD = {
    "warning": ("WARNING", "ERROR", "CRITICAL", "warning", "error", "critical"),
    "error": ("ERROR", "CRITICAL", "error", "critical"),
}


def node(ask: Ask) -> Answer:
    """`/node`"""
    state = ask.state()
    if state.look is None:
        raise state.trouble or NotConnected(f"{ask.node.address} does not answer")
    raw = whole(state.look.status.raw)
    shown = state.figures or {}
    origins = {one["setting"]: one for one in raw.get("origins", ())}
    values = {
        "raw": raw,
        "processes": shown.get("processes") or raw.get("processes", []),
        "operations": sorted(
            shown.get("operations", ()), key=lambda one: (-one["per_s"], one["op"])
        ),
        "settings": [redacted(one) for one in raw.get("settings", ())],
        "origins": origins,
        "checks": state.look.health.checks,
        "address": ask.node.shown,
    }
    return ShownPage("node.html", values, REFRESH_S)


def log_tail(ask: Ask) -> Answer:
    """`/node/log?level=&q=`: the last lines, without passwords and keys."""
    look = ask.state().look
    file = None if look is None else look.status.raw.get("log_file")
    level, wanted = ask.text("level") or "all", ask.text("q")
    lines: list[str] = []
    if file and ask.root is not None:
        lines = [
            one
            for one in _tail(Path(file))
            if (level == "all" or any(word in one for word in _LOUD.get(level, ())))
            and wanted.lower() in one.lower()
        ]
    values = {
        "file": file or "",
        "is_here": ask.root is not None,
        "lines": lines[-LOG_LINES_MAX:],
        "left_out": max(0, len(lines) - LOG_LINES_MAX),
        "level": level,
        "levels": LEVELS,
        "wanted": wanted,
    }
    return ShownPage("node_log.html", values, REFRESH_S)


def _tail(path: Path) -> list[str]:
    """The last lines of a file, cleaned. Nothing for one that cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES_MAX))
            data = file.read(LOG_BYTES_MAX)
    except OSError:
        return []
    text = redacted(data.decode("utf-8", "replace"))
    lines = text.splitlines()
    return lines[1:] if size > LOG_BYTES_MAX else lines
