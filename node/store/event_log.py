"""Logs of a node's processes: one event a line on stderr, never a word of a message.

Text for people, or a JSON object for whoever collects lines.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

VARIABLE = "KEELOG_LOG"
"""`json` in the environment makes JSON of the lines."""


class JsonLines(logging.Formatter):
    """`ts` (UTC), `level`, `role`, `pid`, `event`; `traceback` for what nobody foresaw."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "role": self._role,
            "pid": record.process,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(role: str) -> None:
    """What a process does first: from INFO on, its events are lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(role, os.environ))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def formatter(role: str, environment: Mapping[str, str]) -> logging.Formatter:
    """How the lines of a process look."""
    if environment.get(VARIABLE) == "json":
        return JsonLines(role)
    return logging.Formatter(f"%(levelname)s {role.replace('%', '%%')} %(message)s")
