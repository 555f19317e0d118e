"""The addresses of a node: what --bind and --advertise take, and what sockets are bound to."""

import socket
from typing import Any

import pytest

from node.supervisor.bind import Advertised, free_ports, parse_advertise, parse_bind
from protocol.errors import BadRequest, RefusedError


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
    assert parse_advertise(given) == Advertised(host)


@pytest.mark.parametrize(
    "given", ["db7:7850", "tcp://db7", "0.0.0.0", "*", "::", "[::]", "a b", "192.0.2.7:7850"]
)
def test_ports_urls_and_wildcards_are_not_advertised(given: str) -> None:
    with pytest.raises(BadRequest, match="no client can connect to that host") as refused:
        parse_advertise(given)
    assert refused.value.hint.startswith("write one host, as db7.example.org")


def test_ports_are_published_under_other_numbers() -> None:
    found = parse_advertise("db7, 20911:10911,17850-17852:7850-7852")
    assert found.host == "db7"
    assert found.published == {10911: 20911, 7850: 17850, 7851: 17851, 7852: 17852}
    assert found.endpoint("tcp://*:7851") == "tcp://db7:17851"
    assert found.endpoint("tcp://127.0.0.1:7855") == "tcp://db7:7855"
    assert found.endpoint("") == ""


@pytest.mark.parametrize("wildcard", ["*", "0.0.0.0", "[::]"])
def test_without_a_host_each_client_gets_the_one_that_it_asked(wildcard: str) -> None:
    found = parse_advertise("17851:7851")
    assert found.endpoint(f"tcp://{wildcard}:7851") == "tcp://*:17851"
    assert found.endpoint("tcp://[::1]:7851") == "tcp://[::1]:17851"


@pytest.mark.parametrize("given", ["1:0", "0:1", "65536:1", "1-3:1-2", "3-1:3-1", "1-2:1"])
def test_what_maps_no_ports_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(BadRequest, match=f"{given} maps no ports") as refused:
        parse_advertise(f"db7,{given}")
    assert "20911:10911" in refused.value.hint


def test_a_machine_has_free_ports_but_for_those_to_avoid() -> None:
    first = free_ports(2, avoid=range(20_000, 31_000))
    assert first >= 31_000


def test_an_address_of_another_machine_has_no_free_port() -> None:
    with pytest.raises(RefusedError, match=r"no port of 192\.0\.2\.1 is free: Cannot assign"):
        free_ports(1, "192.0.2.1")
