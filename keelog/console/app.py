"""The console as an ASGI application: who asks, may they, which page, and its answer.

Every request goes through `Console.__call__`, and every POST through `Console._posted`: rights are
checked in these two places alone. Bodies of requests are read with a count of bytes and are form
fields alone: nothing here takes files, several parts, or a path on the disk from a browser.
"""

import base64
import binascii
import gzip
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from http import cookies
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
import jinja2
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from keelog.cli import failures
from keelog.console import headers
from keelog.console.addresses import Links
from keelog.console.ask import (
    QUERY_FIELDS_MAX,
    VALUE_CHARS_MAX,
    Answer,
    Ask,
    Download,
    Goto,
    ShownPage,
)
from keelog.console.assets import Assets
from keelog.console.node_link import NodeLink
from keelog.console.render import environment
from keelog.console.routes import ROUTES, UNLOCK, PageRoute
from keelog.console.sessions import SESSION_S, Session, Sessions
from keelog.console.strip import strip_of
from keelog.console.viewers import Door, Standing, Viewer
from node.access.audit import DONE, REFUSED, AuditEvent, AuditLog
from node.runtime.event_log import fields
from protocol import errors

log = logging.getLogger("keelog.console")

END = "console"
"""The name of this end of the node in the audit log."""
AUDIT_FILE = "audit.console.log"
RUNNING_MAX = 32
"""Requests at once; of them THREADS_MAX ask the node and make their page."""
THREADS_MAX = 8
HEAD_BYTES_MAX = 16 * 1024
DOWNLOADS_MAX = 4
"""Files that are sent at once."""
BODY_BYTES_MAX = 64 * 1024
ANSWER_S_MAX = 15.0
PACK_BYTES_MIN = 1_024
_METHODS = frozenset({"GET", "HEAD", "POST"})
_STATUS: tuple[tuple[type[errors.MqError], int], ...] = (
    (errors.UnknownTopic, 404),
    (errors.NotFound, 404),
    (errors.OffsetOutOfRange, 404),
    (errors.NotAllowed, 403),
    (errors.BadRequest, 400),
    (errors.CorruptError, 500),
    (errors.RefusedError, 400),
    (errors.MqError, 503),
)
"""The HTTP status of an error; the first class that fits counts."""
_FOR_EVER = "public, max-age=31536000, immutable"


class ConsoleOptions(NamedTuple):
    """How one console is asked for."""

    hosts: frozenset[str] = frozenset()
    """Names beside addresses and localhost."""
    base: str = ""
    """The path before all of its addresses."""
    cookie: str = "keelog"
    root: Path | None = None
    """The store, where it is on this machine."""
    is_tls: bool = False


class Refused(Exception):
    """A request that gets no page."""

    def __init__(self, status: int, what: str, try_this: str) -> None:
        super().__init__(what)
        self.status = status
        self.what = what
        self.try_this = try_this


class Console:
    """The application. One for each process."""

    def __init__(
        self, node: NodeLink, door: Door, sessions: Sessions, settings: ConsoleOptions
    ) -> None:
        self._node = node
        self._door = door
        self._sessions = sessions
        self._settings = settings
        self._audit = None if settings.root is None else AuditLog(settings.root, AUDIT_FILE)
        self._assets = Assets()
        self._links = Links(settings.base, self._assets.folder)
        self._templates = environment()
        self._routes = [(Route(one.path, _unused), one) for one in ROUTES]
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        self._running = 0
        self._downloads = 0
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replies to one request. Every reply has the headers that protect a browser."""
        if scope["type"] != "http":
            return
        self.requests += 1
        if self._running >= RUNNING_MAX:
            busy = Response("too many requests at once; again in a moment\n", 503)
            await _safe(busy, scope, receive, send)
            return
        self._running += 1
        try:
            try:
                answer = await self._answer(scope, receive)
            except Exception:
                log.exception(
                    "a page of the console cannot be made", extra=fields(path=scope["path"])
                )
                answer = self._unforeseen(scope)
            await _safe(answer, scope, receive, send)
        finally:
            self._running -= 1

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        found: Iterable[tuple[bytes, bytes]] = scope["headers"]
        viewer = Viewer(self._door, Standing.STRANGER, "", _address(scope))
        try:
            if sum(len(name) + len(value) for name, value in found) > HEAD_BYTES_MAX:
                raise Refused(431, "the head of the request is too long", "load the page anew")  # noqa: TRY301
            if not headers.is_own_host(headers.header(found, "host"), self._settings.hosts):
                raise Refused(  # noqa: TRY301
                    421,
                    "this name is none of the console's",
                    "ask for it as localhost or by its address, or name it with --console-hosts",
                )
            path = self._path(scope)
            if path.startswith("/assets/"):
                return self._asset(path, found)
            viewer = self._viewer(scope, path)
            return await self._routed(scope, receive, path, viewer)
        except Refused as error:
            return self._refusal(scope, viewer, error)

    def _unforeseen(self, scope: Scope) -> Response:
        """The answer where making one failed: a bug of ours."""
        what, try_this = "an unexpected error", "its traceback is in the node's log"
        viewer = Viewer(self._door, Standing.STRANGER, "", _address(scope))
        return self._refusal(scope, viewer, Refused(500, what, try_this))

    def _path(self, scope: Scope) -> str:
        """The path below the base. Ours need no escapes, and so none are taken."""
        raw: bytes = scope["raw_path"]
        path = raw.decode("latin-1")
        if scope["method"] not in _METHODS:
            raise Refused(405, "the console takes GET and POST alone", "load the page anew")
        if not path.startswith("/") or "%" in path or not path.isprintable():
            raise Refused(404, "no page has this address", "the start page")
        base = self._settings.base
        if base and (path == base or path.startswith(f"{base}/")):
            path = path[len(base) :] or "/"
        return path

    def _asset(self, path: str, found: Iterable[tuple[bytes, bytes]]) -> Response:
        name = path.removeprefix(f"{self._assets.folder}/")
        asset = self._assets.files.get(name)
        if asset is None or name == path:
            raise Refused(404, "no file has this address", "load the page anew")
        is_packed = _takes_gzip(found)
        kept = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
        if is_packed:
            kept["Content-Encoding"] = "gzip"
        data = asset.packed if is_packed else asset.plain
        return Response(data, headers=kept, media_type=asset.content_type)

    # -- who ----------------------------------------------------------------------------------

    def _viewer(self, scope: Scope, path: str) -> Viewer:
        """Finds out who asks. Raises Refused for credentials that are wrong."""
        now, address = time.monotonic(), _address(scope)
        self._door.look(now)
        session = self._session(scope, now)
        if session is not None:
            return self._of_session(session, address)
        named = _basic(headers.header(scope["headers"], "authorization") or "")
        if named is not None:
            name, password = named
            user = self._try(address, now, partial(self._door.user_of, name, password), name)
            if user is None:
                raise Refused(401, "the name or the password is wrong", _LOG_IN)
            return Viewer(self._door, Standing.USER, user.name, address)
        standing = Standing.STRANGER if self._door.is_closed else Standing.GUEST
        return Viewer(self._door, standing, "", address)

    def _of_session(self, session: Session, address: str) -> Viewer:
        standing = Standing.USER if session.user else Standing.OPERATOR
        return Viewer(self._door, standing, session.user or "operator", address, session.id)

    def _session(self, scope: Scope, now: float) -> Session | None:
        """The session of the cookie. One whose user has another password by now, or is gone, ends
        with that."""
        text = headers.header(scope["headers"], "cookie") or ""
        jar = cookies.SimpleCookie()
        try:
            jar.load(text)
        except cookies.CookieError:
            return None
        morsel = jar.get(self._settings.cookie)
        session = None if morsel is None else self._sessions.find(morsel.value, now)
        if session is not None and session.user:
            user = self._door.table.users.get(session.user)
            if user is None or not user.is_enabled or user.secret != session.secret:
                self._sessions.end(session.id)
                return None
        return session

    def _try(self, address: str, now: float, look: Any, who: str) -> Any:
        """Looks whether a key or password is right; slows an address that was often wrong."""
        if not self._sessions.may_try(address, now):
            raise Refused(429, "too many wrong tries from your address", "wait for a minute")
        found = look()
        if not found:
            self._sessions.note_wrong(address, now)
            self._note("login", who, address, REFUSED, "wrong")
        return found

    # -- what ---------------------------------------------------------------------------------

    async def _routed(self, scope: Scope, receive: Receive, path: str, viewer: Viewer) -> Response:
        inner = {"type": "http", "path": path, "root_path": "", "method": "GET"}
        for route, page in self._routes:
            match, child = route.matches(inner)
            if match is not Match.FULL:
                continue
            form: Mapping[str, str] = {}
            if scope["method"] == "POST":
                form = await self._posted(scope, receive, viewer, page)
            elif viewer.standing is Standing.STRANGER and not page.is_open:
                raise Refused(401, "the node asks who you are", _LOG_IN)
            ask = self._ask(scope, path, viewer, child["path_params"], form)
            if scope["method"] == "POST" and path in UNLOCK:
                return self._unlocked(scope, ask, path)
            return await self._made(scope, ask, page)
        raise Refused(404, "no page has this address", "the start page, or the search box above")

    async def _posted(
        self, scope: Scope, receive: Receive, viewer: Viewer, page: PageRoute
    ) -> dict[str, str]:
        """The fields of a form. The one gate of everything that changes something: it comes from a
        page of ours, and but for the login from somebody with a session, once."""
        if not headers.is_own_request(scope["headers"], scope["scheme"]):
            raise Refused(
                403, "the request did not come from a page of the console", "load it anew"
            )
        if not page.takes_post:
            raise Refused(405, "this page changes nothing", "load it with GET")
        kind = headers.header(scope["headers"], "content-type") or ""
        if kind.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
            raise Refused(415, "the console takes form fields alone", "use the form of the page")
        body = await _read_body(receive)
        try:
            found = dict(parse_qsl(body.decode(), True, max_num_fields=QUERY_FIELDS_MAX))
        except ValueError:
            raise Refused(400, "the form cannot be read", "load the page anew") from None
        if page.path == "/unlock":
            return found
        session = self._sessions.find(viewer.session, time.monotonic()) if viewer.session else None
        if session is None or not viewer.may_act:
            raise Refused(403, "this needs the key of the node, or a login", "keelog console open")
        if not Sessions.take_form(session, found.get("form", "")):
            raise Refused(409, "this form was sent already, or is too old", "load the page anew")
        return found

    def _ask(
        self,
        scope: Scope,
        path: str,
        viewer: Viewer,
        parts: dict[str, Any],
        form: Mapping[str, str],
    ) -> Ask:
        try:
            text = scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, True, max_num_fields=QUERY_FIELDS_MAX)
        except ValueError:
            raise Refused(400, "the address cannot be read", "the start page") from None
        query = {name: value[:VALUE_CHARS_MAX] for name, value in pairs}
        return Ask(
            node=self._node,
            viewer=viewer,
            links=self._links,
            path=parts,
            query=query,
            here=path,
            now_ms=int(time.time() * 1000),
            root=self._settings.root,
            is_part=headers.header(scope["headers"], "keelog-part") is not None,
            form=form,
        )

    async def _made(self, scope: Scope, ask: Ask, page: PageRoute) -> Response:
        try:
            with anyio.fail_after(ANSWER_S_MAX):
                return await anyio.to_thread.run_sync(
                    self._make, scope, ask, page, limiter=self._threads, abandon_on_cancel=True
                )
        except TimeoutError:
            raise Refused(
                503, f"no answer within {ANSWER_S_MAX:.0f} s", "again in a moment"
            ) from None

    def _make(self, scope: Scope, ask: Ask, page: PageRoute) -> Response:
        """In a thread: asks the node and makes the page."""
        try:
            ask.viewer.check(page.needs(ask))
            answer = page.function(ask)
        except errors.MqError as error:
            answer = _error_page(error)
        return self._response(scope, ask, answer)

    def _response(self, scope: Scope, ask: Ask, answer: Answer) -> Response:
        if isinstance(answer, Goto):
            return RedirectResponse(answer.url, 303)
        if isinstance(answer, Download):
            return self._download(answer)
        return self._page(scope, ask, answer)

    def _download(self, answer: Download) -> Response:
        if self._downloads >= DOWNLOADS_MAX:
            raise Refused(503, f"{DOWNLOADS_MAX} files are sent already", "again in a moment")
        kept = {
            "Content-Disposition": f'attachment; filename="{answer.name}"',
            "Content-Security-Policy": headers.DOWNLOAD_POLICY,
        }

        def counted() -> Iterable[bytes]:
            self._downloads += 1
            try:
                yield from answer.chunks
            finally:
                self._downloads -= 1

        return StreamingResponse(counted(), headers=kept, media_type=answer.content_type)

    def _page(self, scope: Scope, ask: Ask, page: ShownPage) -> Response:
        text = self._html(ask, page)
        data, more = text.encode("utf-8", "replace"), {"Vary": "Keelog-Part, Accept-Encoding"}
        if len(data) >= PACK_BYTES_MIN and _takes_gzip(scope["headers"]):
            data, more["Content-Encoding"] = gzip.compress(data, 5, mtime=0), "gzip"
        kind = "text/html; charset=utf-8"
        return Response(data, page.status, headers=more, media_type=kind)

    def _html(self, ask: Ask, page: ShownPage) -> str:
        template: jinja2.Template = self._templates.get_template(page.template)
        session = self._sessions.find(ask.viewer.session, time.monotonic())
        form = "" if session is None else self._sessions.new_form(session)
        return template.render(
            ask=ask,
            links=ask.links,
            viewer=ask.viewer,
            strip=strip_of(ask),
            refresh_s=page.refresh_s,
            form_number=form,
            **page.values,
        )

    def _refusal(self, scope: Scope, viewer: Viewer, error: Refused) -> Response:
        """The page that says why there is none. A program hears how to log in; a browser gets the
        form instead, as it would ask in a window of its own."""
        accepts = headers.header(scope["headers"], "accept") or ""
        if "text/html" not in accepts or error.status == 421:
            text = f"error: {error.what}\ntry: {error.try_this}\n"
            more = {"WWW-Authenticate": 'Basic realm="keelog"'} if error.status == 401 else {}
            return Response(text, error.status, headers=more, media_type="text/plain")
        ask = Ask(
            self._node, viewer, self._links, {}, {}, scope["path"], int(time.time() * 1000),
            is_part="keelog-part" in {key.decode("latin-1") for key, _ in scope["headers"]},
        )  # fmt: skip
        if error.status == 401:
            back = scope["raw_path"].decode("latin-1").removeprefix(self._settings.base)
            query = scope["query_string"].decode("latin-1")
            values = {"why": error.what, "back": f"{back}?{query}" if query else back}
            page = ShownPage("unlock.html", {**values, "has_users": self._door.has_users}, 0.0, 401)
        else:
            values = {
                "what": error.what,
                "cause": "",
                "try_this": error.try_this,
                "title": "Refused",
            }
            page = ShownPage("error.html", values, 0.0, error.status)
        return self._page(scope, ask, page)

    def _note(self, operation: str, who: str, address: str, outcome: str, why: str) -> None:
        """A line of the log, and of the audit log; no key or password is in either."""
        found = fields(operation=operation, user=who, address=address, outcome=outcome, why=why)
        log.log(logging.INFO if outcome == DONE else logging.WARNING, "console action", extra=found)
        if self._audit is not None:
            event = AuditEvent(END, who, address, operation, "", outcome, why)
            self._audit.write(event, int(time.time() * 1000))

    # -- in and out ---------------------------------------------------------------------------

    def _unlocked(self, scope: Scope, ask: Ask, path: str) -> Response:
        """Begins a session for whoever has the key or is a user, or ends one."""
        now, address = time.monotonic(), ask.viewer.address
        back = ask.form.get("back", "")
        target = self._links.page("/") if not _is_own_path(back) else f"{self._links.base}{back}"
        answer = RedirectResponse(target, 303)
        if path == "/lock":
            self._sessions.end(ask.viewer.session)
            answer.delete_cookie(self._settings.cookie, path=f"{self._settings.base}/")
            return answer
        name = ask.form.get("name", "").strip()
        if name:
            look = partial(self._door.user_of, name, ask.form.get("password", ""))
            found = self._try(address, now, look, name)
        else:
            key = partial(self._sessions.is_key, ask.form.get("key", ""))
            found = self._try(address, now, key, "operator")
        if not found:
            raise Refused(401, "it is not right", _LOG_IN)
        session = self._sessions.begin(name, found.secret if name else "", now)
        self._note("login", name or "operator", address, DONE, "")
        answer.set_cookie(
            self._settings.cookie,
            session.id,
            max_age=int(SESSION_S),
            path=f"{self._settings.base}/",
            secure=self._settings.is_tls,
            httponly=True,
            samesite="strict",
        )
        return answer


_LOG_IN = "keelog console open  shows the key; a user logs in by name and password"


def _error_page(error: errors.MqError) -> ShownPage:
    what, cause, try_this = (line.partition(": ")[2] for line in failures.lines(error, "it"))
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    if not getattr(error, "__notes__", None):
        what = _TITLES.get(status, "it failed")
    values = {"what": what, "cause": cause, "try_this": try_this, "title": what}
    return ShownPage("error.html", values, 0.0, status)


_TITLES = {
    400: "this cannot be asked",
    403: "you have no right to it",
    404: "nothing is there",
    500: "the store is damaged there",
    503: "the node does not answer this now",
}


async def _safe(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends an answer, with all of SAFE_HEADERS that it does not have in its own way."""
    own = {name for name, _ in answer.raw_headers}
    answer.raw_headers += [one for one in headers.SAFE_HEADERS if one[0] not in own]
    await answer(scope, receive, send)


async def _read_body(receive: Receive) -> bytes:
    """Raises Refused for one that is too long."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the request ended before its end", "load the page anew")
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise Refused(413, f"the form has more than {BODY_BYTES_MAX:,} bytes", "send less")
        if not message.get("more_body"):
            return bytes(body)


def _basic(value: str) -> tuple[str, str] | None:
    """Name and password of a header; None for anything else."""
    kind, _, text = value.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if colon else None


def _is_own_path(text: str) -> bool:
    """Whether it is a path of the console, and of no other host."""
    return text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return "" if client is None else str(client[0])


def _takes_gzip(found: Iterable[tuple[bytes, bytes]]) -> bool:
    return "gzip" in (headers.header(found, "accept-encoding") or "").lower()


async def _unused(_request: Any) -> Response:
    """Routes match addresses; `Console` makes the reply."""
    raise AssertionError("never called")
