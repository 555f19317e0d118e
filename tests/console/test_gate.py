"""The gate: which requests get a page, and that every answer protects the browser.

The console here has no node: what it decides by itself needs none.
"""

import base64
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from keelog.client.results import Health
from keelog.console.app import BODY_BYTES_MAX, ConsoleOptions
from keelog.console.ask import Answer, Ask
from keelog.console.headers import DOWNLOAD_POLICY, SAFE_HEADERS
from keelog.console.node_link import State
from keelog.console.pages.help_page import CHECKS
from keelog.console.routes import ROUTES, PageRoute
from keelog.console.server import CONNECTIONS_MAX, REQUEST_S_MAX
from keelog.console.sessions import FORMS_MAX, SESSION_S, TRIES_MAX, Sessions
from keelog.console.viewers import Door
from node.access.users_file import auth_dir
from node.runtime.settings import Settings
from protocol.status import HealthCheck
from tests.support.console import HTML, KEY, SAME, KnownNode, Reply, Site, read_to_end, served

EXAMPLES = {"topic": "orders", "group": "billing", "queue": "0", "offset": "1", "id": "0" * 32}


def example(path: str) -> str:
    """An address of a route."""
    parts = [
        EXAMPLES[part[1:-1].partition(":")[0]] if part.startswith("{") else part
        for part in path.split("/")
    ]
    return "/".join(parts)


def protects(reply: Reply) -> list[str]:
    """The headers that an answer lacks."""
    return [
        name.decode()
        for name, value in SAFE_HEADERS
        if reply.headers.get(name.decode()) not in (value.decode(), DOWNLOAD_POLICY)
        and not (name == b"cache-control" and "immutable" in reply.headers.get("cache-control", ""))
    ]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_no_answer_of_any_address_lacks_a_header(route: PageRoute) -> None:
    with served() as site:
        for accept in (HTML, {}):
            assert protects(site.ask(example(route.path), accept)) == []


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nothing", 404), ("/topics/a/b/c", 404), ("/assets/x/y.css", 404), ("/topics/a%00b", 404)],
)
def test_refusals_have_them_too(site: Site, path: str, status: int) -> None:
    for accept in (HTML, {}):
        reply = site.ask(path, accept)
        assert reply.status == status
        assert protects(reply) == []


def test_files_beside_pages_are_kept_for_ever_and_pages_never(site: Site) -> None:
    page = site.ask("/help", HTML)
    style = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    found = site.ask(style)
    assert found.status == 200
    assert "immutable" in found.headers["cache-control"]
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2fapp.py", "/assets//etc/passwd",
     "/assets/console.css", "/assets/0/console.css", "//etc/passwd", "/assets/\x00", "/%2e%2e/"],
)  # fmt: skip
def test_no_trick_in_a_path_reaches_a_file(site: Site, path: str) -> None:
    line = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1")
    answer = site.raw(line)
    assert answer.split(b" ")[1] in (b"404", b"400")
    assert b"root:" not in answer


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("GET /help HTTP/1.1\r\nHost: localhost\r\n", b"200"),
        ("GET /help HTTP/1.1\r\nHost: [::1]:7856\r\n", b"200"),
        ("GET /help HTTP/1.1\r\nHost: evil.example\r\n", b"421"),
        ("GET /help HTTP/1.1\r\nHost:\r\n", b"421"),
        ("GET /help HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", b"400"),
        ("GET /help HTTP/1.1\r\n", b"400"),
        ("GET http://localhost/help HTTP/1.1\r\nHost: localhost\r\n", b"404"),
        ("GET http://evil.example/help HTTP/1.1\r\nHost: evil.example\r\n", b"421"),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n", b"405"),
        ("PUT /help HTTP/1.1\r\nHost: localhost\r\n", b"405"),
    ],
)
def test_the_host_has_to_be_one_of_ours(site: Site, lines: str, status: bytes) -> None:
    answer = site.raw(f"{lines}Accept: text/html\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ")[1] == status, answer[:200]


POSTS = [route.path for route in ROUTES if route.takes_post]


def test_every_address_has_a_need_and_two_take_a_form() -> None:
    assert all(callable(route.needs) for route in ROUTES)
    assert POSTS == ["/unlock", "/lock"]
    assert [route.path for route in ROUTES if route.is_open] == POSTS


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_form_is_taken_by_no_address_without_a_session(route: PageRoute, site: Site) -> None:
    reply = site.ask(example(route.path), SAME, {"form": "x"})
    assert reply.status in ((401, 403) if route.takes_post else (405,)), reply


@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}, {"Origin": "http://evil.example"}],
)
def test_a_form_from_elsewhere_is_refused_even_with_the_key(
    site: Site, headers: dict[str, str]
) -> None:
    reply = site.ask("/unlock", headers, {"key": KEY})
    assert reply.status == 403
    assert "set-cookie" not in reply.headers


def test_the_key_opens_a_session_that_scripts_and_other_sites_do_not_get(site: Site) -> None:
    reply = site.ask("/unlock", SAME, {"key": KEY, "back": "/topics"})
    assert reply.status == 303
    assert reply.headers["location"] == "/topics"
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert f"max-age={int(SESSION_S)}" in cookie
    assert KEY not in cookie


@pytest.mark.parametrize("back", ["//evil.example", "/\\evil.example", "https://evil.example", "x"])
def test_a_login_leads_nowhere_else(site: Site, back: str) -> None:
    assert site.ask("/unlock", SAME, {"key": KEY, "back": back}).headers["location"] == "/"


def test_a_session_ends_where_its_owner_ends_it(site: Site) -> None:
    session = site.session()
    page = site.ask("/help", {**HTML, **session})
    number = page.text.partition('name="form" value="')[2].partition('"')[0]
    assert number
    assert site.ask("/lock", {**SAME, **session}, {"form": number}).status == 303
    assert "lock" not in site.ask("/help", {**HTML, **session}).text.partition('id="strip"')[2][
        :2000
    ].replace("unlock", "")


def test_a_form_counts_once(site: Site) -> None:
    session = site.session()
    page = site.ask("/help", {**HTML, **session})
    number = page.text.partition('name="form" value="')[2].partition('"')[0]
    assert site.ask("/lock", {**SAME, **session}, {"form": "another"}).status == 409
    assert site.ask("/lock", {**SAME, **session}, {"form": number}).status == 303
    assert site.ask("/lock", {**SAME, **session}, {"form": number}).status == 403


@pytest.mark.parametrize("cookie", ["keelog=wrong", "keelog=", "=;=", "keelog=\x01", "other=1"])
def test_another_cookie_is_no_session(site: Site, cookie: str) -> None:
    assert site.ask("/lock", {**SAME, "Cookie": cookie}, {"form": "x"}).status == 403


def test_guessing_the_key_is_slowed_and_the_right_one_waits_too(site: Site) -> None:
    replies = [site.ask("/unlock", SAME, {"key": f"guess{n}"}).status for n in range(TRIES_MAX + 2)]
    assert replies == [401] * TRIES_MAX + [429] * 2
    assert site.ask("/unlock", SAME, {"key": KEY}).status == 429
    assert site.ask("/help", HTML).status == 200


def test_the_key_is_in_no_line_of_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    site.ask("/unlock", SAME, {"key": "a-wrong-guess"})
    site.session()
    said = " ".join(f"{one.getMessage()} {one.__dict__.get('fields')}" for one in caplog.records)
    assert "console action" in said
    assert KEY not in said
    assert "a-wrong-guess" not in said


def test_a_console_that_asks_for_the_key_shows_nothing_before() -> None:
    door = Door(None, Settings(), True, "DefaultCluster")
    with served(door=door) as site:
        for route in ROUTES:
            reply = site.ask(example(route.path), HTML)
            assert reply.status == (200 if route.is_open else 401)
        assert "Key of the node" in site.ask("/topics/secret-topic", HTML).text
        plain = site.ask("/topics")
        assert plain.headers["www-authenticate"].startswith("Basic")
        assert site.ask("/help", {**HTML, **site.session()}).status == 200


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/json", b"{}", 415),
        ("", b"key=x", 415),
        ("application/x-www-form-urlencoded", b"key=" + b"x" * BODY_BYTES_MAX, 413),
        ("application/x-www-form-urlencoded", b"a=1&" * 40, 400),
        ("application/x-www-form-urlencoded", b"\xff\xfe=1", 400),
    ],
)
def test_forms_of_other_kinds_and_sizes_are_refused(
    site: Site, kind: str, body: bytes, status: int
) -> None:
    head = "POST /unlock HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
    head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = site.raw(head.encode() + body)
    assert answer.split(b" ")[1] == str(status).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nConnection: close\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /unlock HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
    ],
    ids=["long head", "two lengths", "false chunks", "TLS", "no version"],
)
def test_what_is_no_good_request_is_refused_at_once(site: Site, data: bytes) -> None:
    began = time.monotonic()
    answer = site.raw(data)
    assert answer[9:12] in (b"400", b"403", b"415", b"421", b"431")
    assert time.monotonic() - began < REQUEST_S_MAX - 1


def test_who_sends_slowly_is_ended_and_others_are_answered_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keelog.console.server.REQUEST_S_MAX", 0.5)
    heads = (
        b"GET /help HTTP/1.1\r\nHost: loc",
        b"POST /unlock HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nk",
        b"",
    )
    slow = [socket.create_connection(("127.0.0.1", site.port), 10) for _ in heads]
    for connection, head in zip(slow, heads, strict=True):
        connection.sendall(head)
    assert site.ask("/help").status == 200
    for connection in slow:
        read_to_end(connection)  # ends
        connection.close()


def test_two_hundred_silent_connections_keep_nobody_out(site: Site) -> None:
    silent = [
        socket.create_connection(("127.0.0.1", site.port), 10)
        for _ in range(3 * CONNECTIONS_MAX + 8)
    ]
    for connection in silent:
        connection.sendall(b"GET /")
    began = time.monotonic()
    assert site.ask("/help").status == 200
    assert time.monotonic() - began < 2.0
    for connection in silent:
        connection.close()


def test_a_path_before_all_addresses_is_in_every_link_and_may_be_stripped() -> None:
    with served(settings=ConsoleOptions(base="/keelog")) as site:
        for path in ("/keelog/help", "/help"):
            page = site.ask(path, HTML)
            assert page.status == 200
            links = [part.partition('"')[0] for part in page.text.split('href="')[1:]]
            links += [part.partition('"')[0] for part in page.text.split('src="')[1:]]
            links += [part.partition('"')[0] for part in page.text.split('action="')[1:]]
            assert all(one.startswith(("/keelog/", "#")) for one in links), links
        assert site.ask(links[0]).status == 200
        assert site.ask("/keelogs/help").status == 404


def test_names_that_the_operator_has_given_count_as_hosts() -> None:
    with served(settings=ConsoleOptions(hosts=frozenset({"k.example"}))) as site:
        assert site.ask("/help", {"Host": "k.example"}).status == 200
        assert site.ask("/help", {"Host": "x.k.example"}).status == 421


def test_sessions_and_forms_are_bounded_and_end() -> None:
    sessions = Sessions("k")
    session = sessions.begin("", "", 0.0)
    assert sessions.find(session.id, SESSION_S - 1) is session
    assert sessions.find(session.id, SESSION_S) is None
    session = sessions.begin("", "", 0.0)
    first = sessions.new_form(session)
    for _ in range(FORMS_MAX):
        last = sessions.new_form(session)
    assert not Sessions.take_form(session, first)
    assert Sessions.take_form(session, last)
    assert not Sessions.take_form(session, last)


def test_wrong_credentials_of_a_program_are_counted_as_those_of_a_form(site: Site) -> None:
    wrong = base64.b64encode(b"ann:guess").decode()
    replies = [
        site.ask("/help", {"Authorization": f"Basic {wrong}"}).status for _ in range(TRIES_MAX + 1)
    ]
    assert replies == [401] * TRIES_MAX + [429]


def test_a_bug_is_a_page_that_says_so_and_its_traceback_is_in_the_log(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Ask) -> Answer:
        raise ZeroDivisionError

    routes = [(one, page._replace(function=broken)) for one, page in site.console._routes]
    monkeypatch.setattr(site.console, "_routes", routes)
    reply = site.ask("/help", HTML)
    assert reply.status == 500
    assert "unexpected" in reply.text.lower()
    assert "ZeroDivisionError" not in reply.text
    assert protects(reply) == []
    assert any(one.exc_info for one in caplog.records)


def test_every_check_of_a_node_has_a_line_that_says_what_to_do() -> None:
    source = (Path(__file__).parents[2] / "node" / "supervisor" / "status.py").read_text()
    names = set(re.findall(r'_check\(\s*"([a-z_]+)"', source))
    names |= set(re.findall(r'_role_check\(view, [A-Za-z.]+, "([a-z_]+)"', source))
    assert len(names) > 12
    assert names <= {name for name, _, _ in CHECKS}


def test_checks_that_fail_are_on_every_page_with_what_to_do() -> None:
    class FullNode(KnownNode):
        def state(self) -> State:
            found = super().state()
            assert found.look is not None
            checks = (
                HealthCheck("disk", False, "0 bytes free, 100 % used", False),
                HealthCheck("appends", False, "refused, disk_full: no room", True),
            )
            look = replace(found.look, health=Health(False, checks, {}))
            return found._replace(look=look)

    with served(FullNode()) as site:
        for path in ("/", "/help", "/nothing"):
            text = site.ask(path, HTML).text
            assert "not ready" in text
            for name in ("disk", "appends"):
                assert f'href="/help#check-{name}"' in text


def test_a_login_is_in_the_audit_log_without_the_key(tmp_path: Path) -> None:
    with served(settings=ConsoleOptions(root=tmp_path)) as site:
        site.ask("/unlock", SAME, {"key": "a-wrong-guess"})
        site.session()
    lines = (auth_dir(tmp_path) / "audit.console.log").read_text().splitlines()
    assert ["refused" in lines[0], "done" in lines[1]] == [True, True]
    assert all('"console"' in line and "127.0.0.1" in line for line in lines)
    assert not any("a-wrong-guess" in line or KEY in line for line in lines)


def test_the_key_is_in_a_file_of_the_owner_alone(tmp_path: Path) -> None:
    from keelog.console.sessions import write_key
    from node.runtime.state_page import run_dir

    run_dir(tmp_path).mkdir(parents=True)
    first, second = write_key(tmp_path), write_key(tmp_path)
    path = run_dir(tmp_path) / "console.key"
    assert path.read_text().strip() == second != first
    assert path.stat().st_mode & 0o077 == 0
