"""The addresses of a node: what --bind and --advertise take, and what sockets are bound to."""

import socket
from typing import Any

import pytest

from node.supervisor.bind import parse_advertise, parse_bind
from protocol.errors import BadRequest


def names(monkeypatch: pytest.MonkeyPatch, **known: list[str]) -> None:
    """Names that resolve to these addresses; all others do not."""

    def look_up(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, 0, 0, "", (one, 0))
            for one in known[host]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_a_name_is_bound_by_its_first_ipv4_address_and_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, db7=["2001:db8::7", "10.0.0.7", "10.0.0.8"], six=["2001:db8::7"])
    place = parse_bind("tcp://db7:7850").resolved()
    assert (place.endpoint, place.bound) == ("tcp://db7:7850", "tcp://10.0.0.7:7850")
    assert (place.child(1).endpoint, place.child(1).bound) == (
        "tcp://db7:7851",
        "tcp://10.0.0.7:7851",
    )
    assert parse_bind("tcp://six:7850").resolved().bound == "tcp://[2001:db8::7]:7850"


def test_a_name_of_loopback_is_no_way_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, here=["127.0.1.1"], six=["::1"], out=["10.0.0.7"])
    found = [parse_bind(f"tcp://{name}:1").resolved() for name in ("here", "six", "out")]
    assert [one.is_loopback for one in found] == [True, True, False]
    assert [one.takes_local for one in found] == [True, False, False]


def test_a_name_that_does_not_resolve_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch)
    with pytest.raises(BadRequest, match="the name db9 does not resolve") as refused:
        parse_bind("tcp://db9:7850").resolved()
    assert "--advertise" in refused.value.hint


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]", "127.0.0.1", "[2001:db8::7]"])
def test_an_address_is_not_looked_up(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch)
    place = parse_bind(f"tcp://{host}:7850").resolved()
    assert place.bound == place.endpoint == f"tcp://{host}:7850"
    assert place.is_wildcard == (host in ("*", "0.0.0.0", "[::]"))


@pytest.mark.parametrize("bind", ["tcp://[1.2.3.4]:1", "tcp://1.2.3:1", "tcp://a b:1", "tcp://-:1"])
def test_what_is_no_host_is_refused(bind: str) -> None:
    with pytest.raises(BadRequest, match="is not an address"):
        parse_bind(bind)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        *[("", ""), ("db7.example.org", "db7.example.org"), ("192.0.2.7", "192.0.2.7")],
        *[("2001:db8::7", "[2001:db8::7]"), ("[2001:db8::7]", "[2001:db8::7]")],
    ],
)
def test_a_name_or_an_address_may_be_advertised(given: str, host: str) -> None:
    assert parse_advertise(given) == host


@pytest.mark.parametrize(
    "given", ["db7:7850", "tcp://db7", "0.0.0.0", "*", "::", "[::]", "a b", "192.0.2.7:7850"]
)
def test_ports_urls_and_wildcards_are_not_advertised(given: str) -> None:
    with pytest.raises(BadRequest, match="no client can connect to that host") as refused:
        parse_advertise(given)
    assert refused.value.hint.startswith("write the host alone, as db7.example.org")
