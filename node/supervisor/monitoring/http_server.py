"""The HTTP server of a node: pages of liveness, readiness, a summary and metrics, in a thread.

Short pages for probes and scrapes, by GET and HEAD. Connections are bounded in time, bytes and
number, so that no client can hurt the node.
"""

import errno
import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from node.access.tls_settings import FIRST_BYTE, TlsMode
from node.runtime.addresses import listen_at
from node.runtime.event_log import fields
from node.supervisor import status
from node.supervisor.bind import BindAddress
from node.supervisor.monitoring.http_login import (
    BEARER,
    BOTH,
    ConnectionOver,
    HttpLogin,
    Login,
    PageRefusal,
    PageRequest,
    peer_address,
)
from protocol.status import as_json

if TYPE_CHECKING:
    from node.access.tls import ServerTls
    from node.supervisor.monitoring.metrics import Exporter

log = logging.getLogger("keelog.http")

HTTP_CONNECTIONS_MAX = 16
HTTP_REQUEST_BYTES_MAX = 8 * 1024
HTTP_REQUEST_S_MAX = 5.0
"""From the connection to the last byte of the request; the answer may take as long again."""
HTTP_BACKLOG = 64
CLOSE_S = 0.5
"""How long closing takes at most; the thread looks this often whether it shall end."""
LOOP_S_MAX = 10.0
"""A supervisor whose loop turns less often is not alive. It turns each second."""
PLAIN_TEXT = "text/plain; charset=utf-8"
PATHS = ("/livez", "/readyz", "/healthz", "/metrics")

_QUERY_FIELDS_MAX = 8
_FREED_S_MAX = 1.0


class Page(NamedTuple):
    """The answer to a request."""

    status: HTTPStatus
    body: str | bytes
    content_type: str = PLAIN_TEXT


Pages = Callable[[str, Mapping[str, str]], Page]
"""The page at a path, with the fields of its query. Called in several threads at once."""
_LIVE, _READY = "/livez", "/readyz"
"""Of these everybody may see the verdict: probes have no credentials."""


class HttpServer(socketserver.TCPServer):
    """Listens from the beginning until `close`. Raises OSError if it cannot listen there."""

    def __init__(
        self,
        place: BindAddress,
        pages: Pages,
        tls: "ServerTls | None" = None,
        login: HttpLogin | None = None,
    ) -> None:
        """`login` None: everybody sees every page."""
        self.pages = pages
        self.login = login
        self._tls = tls
        self._free = threading.BoundedSemaphore(HTTP_CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        """In the order in which they came."""
        listener = listen_at(place.bound_host, place.port, HTTP_BACKLOG)
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{place.host}:{self.server_address[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, name="http", kwargs={"poll_interval": CLOSE_S}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening; answers that are under way may get lost."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        if self.login is not None:
            self.login.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection; if there are too many, ends the oldest one."""
        if not self._free.acquire(blocking=False):
            self._end_oldest()
            if not self._free.acquire(timeout=_FREED_S_MAX):
                self.shutdown_request(request)
                return
        with self._lock:
            self._open[request] = None
        arguments = (request, client_address)
        thread = threading.Thread(
            target=self._serve_one, name="http-answer", args=arguments, daemon=True
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            log.warning("a connection of the HTTP end has no thread", extra=fields(why=error))
            self._end(request)

    def _serve_one(self, request: socket.socket, client_address: Any) -> None:
        extra = fields(peer=client_address)
        try:
            if self._tls is not None:
                request = self._told_apart(self._tls, request)
            self.finish_request(request, client_address)
        except OSError as error:
            # It went away, or is too slow.
            extra["fields"]["why"] = error
            log.debug("a connection of the HTTP end is given up", extra=extra)
        except Exception:
            # Only this request has failed: the server goes on.
            log.exception("a request to the HTTP end failed", extra=extra)
        finally:
            self._end(request)

    def _told_apart(self, tls: "ServerTls", request: socket.socket) -> socket.socket:
        """The connection that takes the place of this one, whose handshake comes with the first
        read; or this one where plain ones are taken, too. Raises OSError."""
        request.settimeout(HTTP_REQUEST_S_MAX)
        if request.recv(1, socket.MSG_PEEK) != FIRST_BYTE:
            if tls.mode is TlsMode.ENFORCING:
                raise OSError(errno.EPROTO, "it is plain, and tls_server_mode is enforcing")
            return request
        with self._lock:
            made = tls.wrap(request)
            self._open = {made if one is request else one: None for one in self._open}
        return made

    def _end(self, request: socket.socket) -> None:
        with self._lock:
            del self._open[request]
        self.shutdown_request(request)
        self._free.release()

    def _end_oldest(self) -> None:
        """Shuts down a connection: its thread reads an end of file, and ends."""
        with self._lock:
            for request in self._open:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # closed by its peer already; its thread is about to notice
                return


class _Incoming(io.RawIOBase):
    """The bytes of a request. Too many, or too late ones, raise OSError, which ends it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ends_at = time.monotonic() + HTTP_REQUEST_S_MAX
        self._left = HTTP_REQUEST_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left_s)
        if not self._left:
            raise OSError(errno.EMSGSIZE, "the request is too long")
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        self._connection.settimeout(HTTP_REQUEST_S_MAX)
        return count


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    server_version = "keelog"
    sys_version = ""
    timeout = HTTP_REQUEST_S_MAX

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection))

    def do_GET(self) -> None:
        try:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, True, max_num_fields=_QUERY_FIELDS_MAX))
        except ValueError as error:
            self._send(Page(HTTPStatus.BAD_REQUEST, f"{error}\n"))
            return
        try:
            asked = self._asked(parts.path, is_open=parts.path == _READY and not query)
            found = self._looked_at(asked)
            if isinstance(found, PageRefusal):
                self._refuse(found, asked)
                return
            page = self.server.pages(parts.path, query)
            if found is Login.STRANGER:
                page = bare(page)
        except ConnectionOver:
            raise
        except Exception:
            log.exception("a page of the HTTP end cannot be made", extra=fields(path=parts.path))
            text = "an unexpected error, its traceback is in the node's log\n"
            page = Page(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        self._send(page)

    def _asked(self, path: str, is_open: bool) -> PageRequest:
        given = self.headers.get("Authorization", "")
        # A connection with TLS is not a plain socket.
        is_encrypted = type(self.connection) is not socket.socket
        address = peer_address(self.client_address[0])
        return PageRequest(given, address, is_encrypted, path, is_open)

    def _looked_at(self, asked: PageRequest) -> Login | PageRefusal:
        """Raises as `HttpLogin.look`."""
        login = self.server.login
        return Login.KNOWN if login is None or asked.path == _LIVE else login.look(asked)

    def _refuse(self, why: PageRefusal, asked: PageRequest) -> None:
        more = {}
        if why.status is HTTPStatus.UNAUTHORIZED:
            more = {"WWW-Authenticate": BOTH if asked.is_private else BEARER}
        self._send(Page(why.status, why.text), more)

    do_HEAD = do_GET  # noqa: N815  (as http.server asks for it)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses any other method with 405, for which Python's server has 501."""
        if code != HTTPStatus.NOT_IMPLEMENTED:
            super().send_error(code, message, explain)
            return
        page = Page(HTTPStatus.METHOD_NOT_ALLOWED, "these pages take GET and HEAD alone\n")
        self._send(page, {"Allow": "GET, HEAD"})

    def _send(self, page: Page, more: Mapping[str, str] = {}) -> None:
        body = page.body if isinstance(page.body, bytes) else page.body.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: probes come every few seconds, and any client could fill the log."""


class HealthPages:
    """Makes the pages, in the threads of the HTTP server; changes nothing of the node."""

    def __init__(self, view: Callable[[], status.NodeView], turned_at: Callable[[], float]) -> None:
        self._view = view
        self._turned_at = turned_at
        self._lock = threading.Lock()
        self._exporter: Exporter | None = None

    def __call__(self, path: str, query: Mapping[str, str]) -> Page:
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
        found = status.health(self._view())
        if query.get("format") == "json":
            text = json.dumps(as_json(found)) + "\n"
            return _health_page(found, text, "application/json")
        wants_all = query.get("verbose", "0") not in ("0", "false")
        lines = [one for one in _check_lines(found) if wants_all or one.startswith("[-]")]
        return _health_page(found, "".join(lines) + _verdict_line(found))

    def _summary(self) -> Page:
        view = self._view()
        found, log, space = status.health(view), status.read_log(view.root), status.disk(view)
        lines = [
            f"{view.options.root}: {_verdict_line(found)}",
            f"log: {log.appended - log.min_offset} bytes, up to {log.appended}, "
            f"{log.appended - log.flushed} of them not flushed yet\n",
            f"disk: {status.disk_text(space)}\n",
            *(
                f"{row.role} {row.index}: {row.state}, pid {row.pid}, "
                f"{row.restarts} restarts, {row.lag_bytes} bytes behind"
                f"{'' if row.cause is None else ', ' + row.cause}\n"
                for row in status.process_rows(view)
            ),
            *_check_lines(found),
        ]
        return _health_page(found, "".join(lines))

    def _metrics(self) -> Page:
        with self._lock:
            if self._exporter is None:
                # Only here: a node that is never scraped needs neither prometheus_client nor numpy.
                from node.supervisor.monitoring.metrics import Exporter

                self._exporter = Exporter(self._view)
            return Page(HTTPStatus.OK, self._exporter.text(), self._exporter.content_type)


def bare(page: Page) -> Page:
    """The verdict alone, without what is wrong: the last line of the page."""
    body = page.body.decode() if isinstance(page.body, bytes) else page.body
    return page._replace(body=f"{body.rstrip().rpartition(chr(10))[2]}\n")


def _health_page(found: status.HealthStatus, text: str, kind: str = PLAIN_TEXT) -> Page:
    return Page(HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE, text, kind)


def _verdict_line(found: status.HealthStatus) -> str:
    return "ready\n" if found.ready else "not ready\n"


def _check_lines(found: status.HealthStatus) -> list[str]:
    """As Kubernetes writes them: `[+] writer: 1 of 1 running`, `[-]` for those that fail."""
    return [
        f"[{'+' if check.ok else '-'}] {check.name}: {check.detail}"
        f"{'' if check.needed else ' (not needed to be ready)'}\n"
        for check in found.checks
    ]
