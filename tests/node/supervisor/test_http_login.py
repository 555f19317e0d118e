"""Who sees metrics and the details of health: users, programs with the token, and nobody else."""

import base64
import http.client
import json
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from node.access.tls import ServerTls
from node.access.tls_settings import ClientAuth
from node.access.users_file import auth_dir, write_users
from node.runtime.settings import AUTO, OFF, ON, Settings, load_settings
from node.supervisor.bind import BindAddress
from node.supervisor.monitoring import http_login as module
from node.supervisor.monitoring.http_login import (
    HTTP_AUDIT_FILE,
    ConnectionOver,
    HttpLogin,
    Login,
    PageRefusal,
    PageRequest,
)
from node.supervisor.monitoring.http_server import HttpServer, Page
from protocol.access.changes import Change, changed
from protocol.access.decision import Action, Entry, parse_resource
from protocol.access.users import AccessList, AccessTable, User, UserStatus, UserType
from tests.support.certificates import Authority

CLUSTER = "DefaultCluster"
SECRET = "canary-secret"
TOKEN = "0123456789abcdef-token"
HERE, THERE = "127.0.0.1", "192.0.2.7"
PLACE = BindAddress(HERE, 0, any_port=True)
READY = "[-] disk: full\nready\n"


def table() -> AccessTable:
    """A Super user, one who may look, one who may not, and one who is disabled."""
    look = Entry(parse_resource(f"Cluster:{CLUSTER}"), frozenset({Action.GET}), True)
    found = (
        User("operator", SECRET, UserType.SUPER),
        User("looker", SECRET),
        User("other", SECRET),
        User("former", SECRET, status=UserStatus.DISABLE),
    )
    return AccessTable({one.name: one for one in found}, {"looker": AccessList((look,))}, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_users(tmp_path, table())
    return tmp_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return Settings(http_token_file=str(path), auth_failures_max=2)


@pytest.fixture
def naps() -> list[float]:
    return []


@pytest.fixture
def login(root: Path, settings: Settings, naps: list[float]) -> Iterator[HttpLogin]:
    with closing(HttpLogin(root, settings, ON, CLUSTER, naps.append)) as found:
        yield found


def basic(name: str, password: str = SECRET) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def asked(given: str, address: str = HERE, **more: bool) -> PageRequest:
    return PageRequest(given, address, more.pop("tls", False), "/metrics", **more)


def status_of(login: HttpLogin, request: PageRequest) -> int | None:
    """None where the page is given."""
    found = login.look(request)
    return found.status if isinstance(found, PageRefusal) else None


def audit(root: Path) -> list[dict[str, str]]:
    path = auth_dir(root) / HTTP_AUDIT_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET not in path.read_text()
    assert TOKEN not in path.read_text()
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- who is known ---------------------------------------------------------------------------------


@pytest.mark.attack(68)
@pytest.mark.parametrize(
    ("given", "status"),
    [
        (basic("operator"), None),
        (basic("looker"), None),
        (basic("looker").replace("Basic", "BASIC"), None),
        (f"Bearer {TOKEN}", None),
        (f"bearer  {TOKEN} ", None),
        (basic("other"), 403),
        (basic("former"), 401),
        (basic("nobody"), 401),
        (basic("operator", "wrong"), 401),
        (basic("operator", ""), 401),
        (basic("operator", SECRET + "x"), 401),
        (basic("operator").replace("Basic", "Bearer"), 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {SECRET}", 401),
        ("Bearer", 401),
        ("Bearer \u00fc", 401),
        ("Basic", 401),
        ("Basic not-base64!", 401),
        (f"Basic {base64.b64encode(bytes(range(128, 160))).decode()}", 401),
        ("Negotiate abc", 401),
        ("", 401),
    ],
)
def test_who_is_known_sees_a_page_and_nobody_else(
    login: HttpLogin, given: str, status: int | None
) -> None:
    assert status_of(login, asked(given)) == status


def test_a_user_without_rights_looks_where_lists_do_not_count(
    root: Path, settings: Settings
) -> None:
    free = replace(settings, authorization_enabled=OFF)
    assert status_of(HttpLogin(root, free, ON, CLUSTER), asked(basic("other"))) is None


@pytest.mark.attack(68)
def test_a_password_over_a_plain_connection_from_elsewhere_is_not_even_looked_at(
    login: HttpLogin, root: Path
) -> None:
    for given in (basic("operator"), basic("operator", "wrong")):
        assert status_of(login, asked(given, THERE)) == 403
        assert "plain HTTP" in login.look(asked(given, THERE)).text  # type: ignore[union-attr]
    assert status_of(login, asked(basic("operator"), THERE, tls=True)) is None
    assert status_of(login, asked(f"Bearer {TOKEN}", THERE)) is None
    assert {one["reason"][:18] for one in audit(root) if one["outcome"] == "refused"} == {
        "a password does no"
    }


@pytest.mark.parametrize(
    ("word", "has_users", "is_known"),
    [(ON, True, False), (ON, False, False), (AUTO, True, False), (AUTO, False, True),
     (OFF, True, True)],
)  # fmt: skip
def test_whether_a_login_is_needed_is_as_the_end_says(
    tmp_path: Path, word: str, has_users: bool, is_known: bool
) -> None:
    if has_users:
        write_users(tmp_path, table())
    found = HttpLogin(tmp_path, Settings(), word, CLUSTER).look(asked(""))
    assert (found is Login.KNOWN) == is_known


def test_a_user_or_a_token_that_is_taken_away_counts_no_more(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    login = HttpLogin(root, settings, ON, CLUSTER)
    assert status_of(login, asked(basic("looker"))) is None
    write_users(root, changed(table(), Change("delete_user", "looker"), True, 2))
    clock[0] += 1.0
    assert status_of(login, asked(basic("looker"))) == 401
    token = Path(settings.http_token_file)
    token.write_text(f"another-{TOKEN}")
    assert status_of(login, asked(f"Bearer {TOKEN}")) == 401
    assert status_of(login, asked(f"Bearer another-{TOKEN}")) is None
    token.unlink()
    assert status_of(login, asked(f"Bearer another-{TOKEN}")) == 401


# -- failures -------------------------------------------------------------------------------------


def test_failures_are_answered_late_then_not_at_all_and_good_logins_never_late(
    login: HttpLogin, naps: list[float]
) -> None:
    """Of two that are allowed a minute, to ten."""
    for _ in range(10):
        assert status_of(login, asked(basic("operator", "wrong"))) == 401
    assert naps == [0.1] * 8
    with pytest.raises(ConnectionOver):
        login.look(asked(f"Bearer {'x' * 32}"))
    assert status_of(login, asked(basic("operator"))) is None
    assert status_of(login, asked(basic("operator", "wrong"), THERE, tls=True)) == 401
    assert status_of(login, asked("")) == 401, "a browser asks once without a password"
    assert naps == [0.1] * 8


def test_few_refusals_are_late_at_once(root: Path, settings: Settings) -> None:
    inside: list[int] = []

    def nap(_: float) -> None:
        inside.append(len(inside))
        if len(inside) <= module.LATE_MAX:
            fail()  # another thread's, meanwhile

    login = HttpLogin(root, settings, ON, CLUSTER, nap)

    def fail() -> None:
        login.look(asked(basic("operator", "wrong")))

    fail()
    fail()
    with pytest.raises(ConnectionOver):
        fail()
    assert len(inside) == module.LATE_MAX


def test_the_audit_log_has_first_logins_and_each_refusal(login: HttpLogin, root: Path) -> None:
    for given in (basic("looker"), basic("looker"), f"Bearer {TOKEN}", basic("other"), ""):
        login.look(asked(given))
    login.look(asked(basic("looker"), "::1"))
    rows = [(one["end"], one.get("user"), one["outcome"], one["operation"]) for one in audit(root)]
    assert rows == [
        ("http", "looker", "done", "login"),
        ("http", "token", "done", "login"),
        ("http", "other", "refused", "get"),
        ("http", None, "refused", "get"),
        ("http", "looker", "done", "login"),
    ]


# -- over HTTP ------------------------------------------------------------------------------------


def pages(path: str, query: Mapping[str, str]) -> Page:
    status = HTTPStatus.SERVICE_UNAVAILABLE if path == "/readyz" else HTTPStatus.OK
    return Page(status, READY if path == "/readyz" else f"{path}\n")


Ask = Callable[..., tuple[int, str, str | None]]


@pytest.fixture
def ask(login: HttpLogin) -> Iterator[Ask]:
    with closing(HttpServer(PLACE, pages, None, login)) as server:
        yield lambda path, given="", method="GET": fetch(server, path, given, method)


def fetch(
    server: HttpServer, path: str, given: str, method: str, context: ssl.SSLContext | None = None
) -> tuple[int, str, str | None]:
    port = urlsplit(server.url).port
    connection = (
        http.client.HTTPConnection("localhost", port, timeout=20)
        if context is None
        else http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    )
    with closing(connection):
        connection.request(method, path, headers={"Authorization": given} if given else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["WWW-Authenticate"]


@pytest.mark.attack(68)
def test_probes_get_bare_verdicts_and_all_else_needs_a_login(ask: Ask) -> None:
    assert ask("/livez") == (200, "/livez\n", None)
    assert ask("/readyz") == (503, "ready\n", None)
    for path in ("/metrics", "/healthz", "/readyz?verbose", "/readyz?format=json", "/", "/x"):
        status, body, how = ask(path)
        assert (status, how) == (401, module.BOTH)
        assert path not in body
        assert ask(path, method="HEAD")[:2] == (401, "")
        good = ask(path, f"Bearer {TOKEN}")
        assert good[0] in (200, 503)
    assert ask("/readyz", basic("looker")) == (503, READY, None)
    assert ask("/readyz", basic("looker", "wrong"))[0] == 401
    assert ask("/metrics", basic("other"))[::2] == (403, None)


def test_who_failed_too_often_loses_the_connection(ask: Ask) -> None:
    for _ in range(10):
        assert ask("/metrics", basic("operator", "wrong"))[0] == 401
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask("/metrics", basic("operator", "wrong"))
    assert ask("/livez")[0] == 200


def test_a_password_goes_over_tls(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for those whose address is not loopback, which is played here."""
    monkeypatch.setattr("node.supervisor.monitoring.http_server.peer_address", lambda _: THERE)
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = [*authority.pair("server").server, "tls_server_mode=permissive"]
    tls = ServerTls(load_settings(pair), ClientAuth.NONE)
    login = HttpLogin(root, Settings(), ON, CLUSTER)
    with closing(HttpServer(PLACE, pages, tls, login)) as server:
        given = basic("operator")
        assert fetch(server, "/metrics", given, "GET", authority.client())[0] == 200
        assert fetch(server, "/metrics", given, "GET")[0] == 403
        assert fetch(server, "/metrics", "", "GET", authority.client())[2] == module.BOTH
        assert fetch(server, "/metrics", "", "GET")[2] == "Bearer", "nobody is asked for a password"
