"""Opens a node's HTTP server if `--http` is set."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.runtime.event_log import fields
from node.supervisor.bind import parse_http
from node.supervisor.status import NodeView
from protocol.errors import RefusedError

log = logging.getLogger("keelog.supervisor")


@contextmanager
def http_end(
    address: str, view: Callable[[], NodeView], turned_at: Callable[[], float]
) -> Iterator[str]:
    """Serves the pages at `--http` within the context, and yields their URL, which is empty without
    `--http`. Raises RefusedError for a port that is taken."""
    place = parse_http(address)
    if place is None:
        yield ""
        return
    # Only here: http.server takes longer to import than all else of a supervisor.
    from node.supervisor.monitoring.health_pages import PATHS, HealthPages
    from node.supervisor.monitoring.http_server import HttpServer

    try:
        end = HttpServer(place.host, place.port, HealthPages(view, turned_at))
    except OSError as error:
        raise RefusedError(
            f"cannot listen at {place.host}:{place.port}, for --http: {error.strerror or error}",
            "stop the process that listens there, or name another port",
        ) from None
    log.info("health and metrics are served", extra=fields(url=end.url, paths=" ".join(PATHS)))
    if not place.is_loopback:
        log.warning("metrics can be read from other hosts", extra=fields(url=end.url))
    try:
        yield end.url
    finally:
        end.close()
