"""Health and metrics over TLS: by the node's certificate, with none asked of who looks."""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from urllib.parse import urlsplit

import pytest

from node.access.tls import ServerTls
from node.access.tls_settings import ClientAuth, TlsMode, TlsState
from node.runtime.settings import load_settings
from node.supervisor.bind import BindAddress
from node.supervisor.monitoring import http_server as module
from node.supervisor.monitoring.http_server import HttpServer, Page
from node.supervisor.status import CERTIFICATE_DAYS_MIN, certificate_check
from tests.support.certificates import Authority, Pair

PLACE = BindAddress("127.0.0.1", 0, any_port=True)
DAY_MS = 86_400_000
BODY = "a page\n" * 10_000


def pages(path: str, query: Mapping[str, str]) -> Page:
    return Page(HTTPStatus.OK, BODY)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


@pytest.fixture(params=[TlsMode.ENFORCING, TlsMode.PERMISSIVE])
def end(request: pytest.FixtureRequest, authority: Authority, pair: Pair) -> Iterator[HttpServer]:
    asks = "tls_server_need_client_auth=require", f"tls_server_trust_cert_path={authority.trust}"
    settings = load_settings([*pair.server, *asks, f"tls_server_mode={request.param}"])
    with closing(HttpServer(PLACE, pages, ServerTls(settings, ClientAuth.NONE))) as running:
        yield running


def ask(end: HttpServer, context: ssl.SSLContext | None) -> str:
    """The page at `/`. Raises OSError, HTTPException."""
    port = urlsplit(end.url).port
    connection = (
        http.client.HTTPConnection("localhost", port, timeout=20)
        if context is None
        else http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    )
    with closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read().decode()


def test_a_page_comes_by_tls_and_plainly_where_that_is_permitted(
    end: HttpServer, authority: Authority
) -> None:
    assert urlsplit(end.url).scheme == "https"
    assert ask(end, authority.client()) == BODY
    assert end._tls is not None
    if end._tls.mode is TlsMode.PERMISSIVE:
        assert ask(end, None) == BODY
    else:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(end, None)


def test_who_trusts_others_gets_no_page(end: HttpServer) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(end, ssl.create_default_context())


def test_silence_and_nonsense_end_one_connection_alone(
    end: HttpServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HTTP_REQUEST_S_MAX", 0.1)
    place = "127.0.0.1", int(urlsplit(end.url).port or 0)
    for sent in (b"", b"\x16", b"\x16" + bytes(100)):
        with socket.create_connection(place, timeout=20) as bad:
            bad.sendall(sent)
            try:
                while bad.recv(100):
                    pass
            except ConnectionResetError:
                continue
    monkeypatch.undo()
    assert ask(end, authority.client()) == BODY


@pytest.mark.parametrize(
    ("days", "trouble", "ok", "words"),
    [
        (CERTIFICATE_DAYS_MIN, "", True, "ends in 14 days"),
        (CERTIFICATE_DAYS_MIN - 1, "", False, "ends in 13 days"),
        (-2, "", False, "ended 2 days ago"),
        (90, "they are no pair", False, "new files are not used: they are no pair; the one in use"),
    ],
)
def test_a_check_fails_before_the_certificate_ends_and_while_new_files_are_bad(
    days: int, trouble: str, ok: bool, words: str
) -> None:
    found, text = certificate_check(TlsState("enforcing", days * DAY_MS + 1, trouble))
    assert found == ok
    assert text.startswith(words)
