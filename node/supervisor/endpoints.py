"""Where a supervisor replies: its control socket (routes, status, health), pages at `--http`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from node.runtime.event_log import fields
from node.serving.request_server import Received, Server, serve_waiting
from node.store.run_files import read_members
from node.supervisor.bind import BindAddress, parse_http
from node.supervisor.status import NodeView, health, routes, status
from protocol.errors import BadRequest, RefusedError, ServiceNotAvailable, UnknownOperation
from protocol.status import as_json
from protocol.wire import frames

log = logging.getLogger("keelog.supervisor")

CONTROL_FRAME_BYTES_MAX = 64 * 1024

_ANSWERS_AT_ONCE = 100


def bind(context: "zmq.Context[zmq.Socket[bytes]]", place: BindAddress) -> Server:
    """Opens the socket. Raises RefusedError for a taken address: waiting will not free it."""
    name = "" if place.bound == place.endpoint else place.endpoint
    try:
        return Server(context, place.bound, CONTROL_FRAME_BYTES_MAX, name=name)
    except ServiceNotAvailable as error:
        raise RefusedError(error.reason, error.hint) from None


def answer_clients(server: Server, view: Callable[[], NodeView]) -> None:
    """Replies to requests that wait, up to a number that does not delay the supervisor's work."""

    def reply(operation: str, header: frames.Header, received: Received) -> frames.Header:
        if received.payload is not None:
            raise BadRequest(f"{operation[:40]!a} is one frame, two came")
        number = frames.request_id(header)
        match operation:
            case "routes":
                return frames.answer(number, **routes(view()))
            case "status":
                return frames.answer(number, **as_json(status(view())))
            case "health":
                return frames.answer(number, **as_json(health(view())))
            case "members":
                return frames.answer(number, groups=read_members(view().root))
            case "ping":
                return frames.answer(number)
        raise UnknownOperation(
            f"the supervisor knows no operation {operation[:40]!a}",
            "ask routes where the writer and the readers are",
        )

    serve_waiting(server, _ANSWERS_AT_ONCE, "the supervisor", reply, CONTROL_FRAME_BYTES_MAX)


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
    from node.supervisor.monitoring.http_server import PATHS, HealthPages, HttpServer

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
