"""The ports of a node, planned together: none is wanted twice, and each is free at the start."""

import socket
from contextlib import closing

import pytest

from node.runtime.addresses import listen_at, loopback
from node.supervisor.before_start import (
    Port,
    check_apart,
    check_free,
    check_published,
    planned_ports,
)
from node.supervisor.bind import (
    free_ports,
    ha_place,
    parse_advertise,
    parse_bind,
    remoting_place,
)
from node.supervisor.options import ServeSettings
from protocol.errors import BadRequest, RefusedError


def ports_of(**given: str | int) -> list[Port]:
    serve = ServeSettings(**given)  # type: ignore[arg-type]
    gateway, ha = remoting_place(serve.remoting), ha_place(serve.ha_listen)
    return planned_ports(serve, parse_bind(serve.bind).resolved(), gateway, ha)


def test_a_node_has_all_these_ports() -> None:
    found = ports_of(readers=2, remoting="10911", ha_listen="10912", http="7855")
    assert [one.port for one in found] == [7850, 7851, 7852, 7853, 10911, 10909, 10912, 7855]
    check_apart(found)


def test_ports_that_the_system_chooses_are_not_planned() -> None:
    assert ports_of(bind="tcp://127.0.0.1:0", http="0") == []


@pytest.mark.parametrize(
    ("given", "one", "other"),
    [
        (
            {"remoting": "127.0.0.1:21751", "http": "21749"},
            "--remoting 127.0.0.1:21751 (two ports below, for old clients)",
            "--http 21749",
        ),
        (
            {"remoting": "127.0.0.1:7856", "readers": 3},
            "--bind tcp://127.0.0.1:7850 (reader 2, 4 ports above)",
            "--remoting 127.0.0.1:7856 (two ports below, for old clients)",
        ),
        ({"ha_listen": "10911", "remoting": "10911"}, "--remoting 10911", "--ha 10911"),
        (
            {"bind": "tcp://0.0.0.0:7850", "http": "7851"},
            "--bind tcp://0.0.0.0:7850 (the writer, one port above)",
            "--http 7851",
        ),
        ({"http": "localhost:7850"}, "--bind tcp://127.0.0.1:7850", "--http localhost:7850"),
    ],
)
def test_a_port_that_is_wanted_twice_is_refused_with_both_options(
    given: dict[str, str | int], one: str, other: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        check_apart(ports_of(**given))
    assert refused.value.reason.startswith(f"{one} and {other} want the same port, ")


def test_the_same_port_at_another_address_is_another_port() -> None:
    check_apart(ports_of(bind="tcp://127.0.0.2:7850", http="127.0.0.1:7850"))


@pytest.mark.parametrize("option", ["--bind", "--remoting", "--ha", "--http"])
def test_a_taken_port_is_refused_with_its_option(option: str) -> None:
    with listen_at("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        one = Port(option, f"127.0.0.1:{port}", "127.0.0.1", port)
        with pytest.raises(RefusedError, match="Address already in use") as refused:
            check_free([one])
    assert refused.value.reason.startswith(f"cannot listen at 127.0.0.1:{port}, for {option}")
    assert refused.value.hint.startswith("stop the process that listens there")
    check_free([one])


def test_an_address_of_another_machine_is_refused_as_that() -> None:
    with pytest.raises(BadRequest, match="Cannot assign requested address") as refused:
        check_free([Port("--remoting", "192.0.2.1:10911", "192.0.2.1", 10911)])
    assert refused.value.hint.startswith("name an address of this machine")


@pytest.mark.parametrize("host", ["[::1]", "[::]", "*"])
def test_a_port_is_looked_at_by_the_kind_of_address_that_its_host_has(host: str) -> None:
    with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)) as taken:
        port = taken.getsockname()[1]
        check_free([Port("--remoting", "x", "127.0.0.1", port)])
        with pytest.raises(RefusedError, match="Address already in use"):
            check_free([Port("--remoting", "x", host, port)])
    check_free([Port("--remoting", "x", host, port)])


@pytest.mark.parametrize("host", ["[::]", "*"])
def test_all_addresses_are_those_of_both_kinds(host: str) -> None:
    with listen_at(host, 0) as listener:
        for address in ("127.0.0.1", "::1"):
            port = listener.getsockname()[1]
            with socket.create_connection((address, port), timeout=10) as peer:
                came, _ = listener.accept()
                with came:
                    came.sendall(b"here")
                assert peer.recv(4) == b"here", address


def test_a_machine_without_ipv4_has_another_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback() == "127.0.0.1"
    monkeypatch.setattr("node.runtime.addresses._LOOPBACKS", ("192.0.2.1", "[::1]"))
    assert loopback() == "[::1]"
    assert free_ports(1) > 0


@pytest.mark.parametrize(
    ("advertise", "why"),
    [
        ("db7,10911:20911", "maps port 10911 to 20911, at which the node does not listen"),
        ("20911:10911", "maps port 10911 of --remoting, and names no host"),
    ],
)
def test_a_published_port_is_one_of_the_node(advertise: str, why: str) -> None:
    found = ports_of(remoting="10911")
    check_published(found, parse_advertise("db7,20911:10911,20909:10909"))
    check_published(found, parse_advertise("17850-17852:7850-7852"))
    with pytest.raises(BadRequest, match=why):
        check_published(found, parse_advertise(advertise))
