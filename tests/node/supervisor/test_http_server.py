"""The HTTP end of a node, alone: what it answers, and that nobody out there can hold it up."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

import pytest

from node.supervisor.bind import BindAddress, parse_http
from node.supervisor.loop import http_end
from node.supervisor.monitoring import http_server as module
from node.supervisor.monitoring.http_server import HttpServer, Page
from protocol.errors import BadRequest, RefusedError

PATIENCE_S = 60.0


def pages(path: str, query: Mapping[str, str]) -> Page:
    return Page(HTTPStatus.OK, f"{path} {dict(query)}\n")


@pytest.fixture
def end() -> Iterator[HttpServer]:
    server = HttpServer(BindAddress("127.0.0.1", 0, any_port=True), pages)
    yield server
    server.close()


def ask(end: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(end.url).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def connect(end: HttpServer) -> socket.socket:
    port = urlsplit(end.url).port
    assert port is not None
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def test_a_page_gets_its_path_and_the_fields_of_its_query(end: HttpServer) -> None:
    assert ask(end, "/a?x=1&y=") == (200, b"/a {'x': '1', 'y': ''}\n")
    assert ask(end, "/a", "HEAD") == (200, b"")


def test_other_methods_and_too_many_fields_are_refused(end: HttpServer) -> None:
    for method in ("POST", "DELETE", "BREW"):
        connection = http.client.HTTPConnection(urlsplit(end.url).netloc, timeout=PATIENCE_S)
        connection.request(method, "/a")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
        connection.close()
    assert ask(end, "/a?" + "x=1&" * 100)[0] == HTTPStatus.BAD_REQUEST


def test_who_sends_nothing_loses_the_connection(
    end: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HTTP_REQUEST_S_MAX", 0.05)
    with connect(end) as silent:
        assert silent.recv(100) == b""


def test_who_sends_byte_by_byte_has_no_more_time_than_others(
    end: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HTTP_REQUEST_S_MAX", 0.2)
    began = time.monotonic()
    with connect(end) as slow, pytest.raises(OSError, match=r"(?i)reset|pipe"):
        while time.monotonic() < began + PATIENCE_S:
            slow.send(b"G")
            time.sleep(0.01)


def test_a_request_without_end_is_cut_off(end: HttpServer) -> None:
    with connect(end) as large:
        large.sendall(b"GET /a HTTP/1.0\r\n")
        with pytest.raises(OSError, match=r"(?i)reset|pipe"):
            for _ in range(10_000):
                large.sendall(b"x: " + b"y" * 1000 + b"\r\n")


@pytest.mark.parametrize("size", [9_000, 100_000])
def test_a_head_that_is_too_long_gets_no_answer(end: HttpServer, size: int) -> None:
    with connect(end) as large:
        large.sendall(b"GET /a HTTP/1.0\r\nx: " + b"y" * size + b"\r\n\r\n")
        try:
            answer = large.recv(100)
        except ConnectionResetError:
            answer = b""
    assert answer == b""


def test_a_head_of_just_the_limit_gets_its_answer(end: HttpServer) -> None:
    head, tail = b"GET /a HTTP/1.0\r\nx: ", b"\r\n\r\n"
    with connect(end) as large:
        filler = b"y" * (module.HTTP_REQUEST_BYTES_MAX - len(head) - len(tail))
        large.sendall(head + filler + tail)
        assert large.recv(100).startswith(b"HTTP/1.0 200")


def test_a_probe_gets_its_answer_while_others_hold_all_connections(end: HttpServer) -> None:
    idle = [connect(end) for _ in range(3 * module.HTTP_CONNECTIONS_MAX)]
    try:
        assert ask(end, "/livez")[0] == 200
        answering = [one for one in threading.enumerate() if one.name == "http-answer"]
        assert 0 < len(answering) <= module.HTTP_CONNECTIONS_MAX
    finally:
        for connection in idle:
            connection.close()


def test_bytes_that_are_no_http_end_one_connection_alone(end: HttpServer) -> None:
    with connect(end) as strange:
        strange.sendall(bytes(range(256)) * 4 + b"\r\n\r\n")
        strange.recv(4096)
    assert ask(end, "/a")[0] == 200


def test_a_taken_port_is_refused_with_its_option(end: HttpServer) -> None:
    place = urlsplit(end.url).netloc
    with (
        pytest.raises(RefusedError, match=f"at {place}, for --http: Address already in use"),
        http_end(parse_http(place), lambda: pytest.fail("asked"), lambda: 0.0),
    ):
        pytest.fail("served")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("7855", "127.0.0.1", 7855),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("http://localhost:80/", "localhost", 80),
        ("[::1]:7855", "[::1]", 7855),
    ],
)
def test_addresses_that_are_understood(text: str, host: str, port: int) -> None:
    place = parse_http(text)
    assert place is not None
    assert (place.host, place.port) == (host, port)


@pytest.mark.parametrize("text", ["x", "127.0.0.1", "70000", "https://a:1", "tcp://a:1", "a:1/b"])
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is not an address"):
        parse_http(text)


def test_no_address_is_no_server() -> None:
    assert parse_http("") is None
