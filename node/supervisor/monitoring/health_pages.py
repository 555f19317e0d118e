"""The pages of a node's HTTP server: liveness, readiness, a summary, and metrics."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from node.supervisor.monitoring.http_server import Page
from node.supervisor.status import (
    Fields,
    NodeView,
    disk,
    disk_text,
    health,
    process_rows,
    read_log,
)

if TYPE_CHECKING:
    from node.supervisor.monitoring.metrics import Exporter

LOOP_S_MAX = 10.0
"""A supervisor whose loop turns less often is not alive. It turns each second."""
PATHS = ("/livez", "/readyz", "/healthz", "/metrics")


class HealthPages:
    """Makes the pages, in the threads of the HTTP server; changes nothing of the node."""

    def __init__(self, view: Callable[[], NodeView], turned_at: Callable[[], float]) -> None:
        self._view = view
        self._turned_at = turned_at
        self._lock = threading.Lock()
        self._exporter: Exporter | None = None

    def __call__(self, path: str, query: Mapping[str, str]) -> Page:
        """The page at a path."""
        match path:
            case "/livez":
                return self._live()
            case "/readyz":
                return self._ready(query)
            case "/healthz":
                return self._summary()
            case "/metrics":
                return self._metrics()
        return Page(HTTPStatus.NOT_FOUND, f"there is {', '.join(PATHS)}\n")

    def _live(self) -> Page:
        """Does not ask for the writer: a node that recovers for an hour is alive."""
        age_s = time.monotonic() - self._turned_at()
        if age_s > LOOP_S_MAX:
            text = f"the supervisor's loop has not turned for {age_s:.0f} s\n"
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return Page(HTTPStatus.OK, "ok\n")

    def _ready(self, query: Mapping[str, str]) -> Page:
        found = health(self._view())
        if query.get("format") == "json":
            return Page(_status(found), json.dumps(found) + "\n", "application/json")
        if query.get("verbose", "0") not in ("0", "false"):
            return Page(_status(found), "".join(_check_lines(found)) + _verdict(found))
        failing = [line for line in _check_lines(found) if line.startswith("[-]")]
        return Page(_status(found), "".join(failing) + _verdict(found))

    def _summary(self) -> Page:
        view = self._view()
        found, log, space = health(view), read_log(view.root), disk(view)
        unflushed = log.appended - log.flushed
        lines = [
            f"{view.store}: {_verdict(found)}",
            f"log: {log.appended - log.min_offset} bytes, up to {log.appended}, "
            f"{unflushed} of them not flushed yet\n",
            f"disk: {disk_text(space)}\n",
            *(_process_line(row) for row in process_rows(view)),
            *_check_lines(found),
        ]
        return Page(_status(found), "".join(lines))

    def _metrics(self) -> Page:
        with self._lock:
            if self._exporter is None:
                # Only here: a node that is never scraped needs neither prometheus_client nor numpy.
                from node.supervisor.monitoring.metrics import Exporter

                self._exporter = Exporter(self._view)
            return Page(HTTPStatus.OK, self._exporter.text(), self._exporter.content_type)


def _status(found: Fields) -> HTTPStatus:
    return HTTPStatus.OK if found["ready"] else HTTPStatus.SERVICE_UNAVAILABLE


def _verdict(found: Fields) -> str:
    return "ready\n" if found["ready"] else "not ready\n"


def _check_lines(found: Fields) -> list[str]:
    """As Kubernetes writes them: `[+] writer: 1 of 1 running`, `[-]` for those that fail."""
    return [
        f"[{'+' if check['ok'] else '-'}] {check['name']}: {check['detail']}"
        f"{'' if check['needed'] else ' (not needed to be ready)'}\n"
        for check in found["checks"]
    ]


def _process_line(row: Fields) -> str:
    return (
        f"{row['role']} {row['index']}: {row['state']}, pid {row['pid']}, "
        f"{row['restarts']} restarts, {row['lag_bytes']} bytes behind"
        f"{'' if row['cause'] is None else ', ' + row['cause']}\n"
    )
