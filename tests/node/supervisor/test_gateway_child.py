"""How a supervisor places and starts a gateway."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.supervisor.before_start import place_to_announce
from node.supervisor.bind import (
    NAME_SERVERS_MAX,
    BindAddress,
    End,
    free_ports,
    parse_advertise,
    parse_bind,
    parse_name_servers,
    parse_remoting,
    remoting_place,
)
from node.supervisor.child_process import NodePlaces, child_command
from node.supervisor.exposed import Exposure, served_ends
from node.supervisor.loop import _plan_places
from node.supervisor.options import BrokerSettings, NetworkSettings, Options, ServeSettings
from node.supervisor.plan import (
    Child,
    ChildRole,
    note_ready,
    note_start,
    page_slot,
    plan_children,
    summary,
)
from protocol.errors import BadRequest
from tests.support.node import ANY_DISK

CONTROL = parse_bind("tcp://127.0.0.1:7850")
DELAYS = "--delays"
NONE = BindAddress("", 0, any_port=False)


def arguments_of(
    role: ChildRole, gateway: BindAddress, control: BindAddress = CONTROL, advertise: str = ""
) -> dict[str, str]:
    """The options of a child that have a value, by name."""
    options = Options(Path("/s"), broker=BrokerSettings("c", "b"))
    places = NodePlaces(control, gateway, advertised=parse_advertise(advertise))
    words = child_command(Child(role, 0), options, places, "1:2")[5:]
    words = [word for word in words if word != DELAYS]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a_writer_takes_delays_where_a_gateway_brings_the_process_that_delivers() -> None:
    for gateway, takes in ((remoting_place("h:9"), True), (NONE, False)):
        places = NodePlaces(CONTROL, gateway)
        words = child_command(Child(ChildRole.WRITER, 0), Options(Path("/s")), places, "1:2")
        assert (DELAYS in words) == takes


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10911", "127.0.0.1", 10911),
        ("db7:10911", "db7", 10911),
        ("[::1]:9", "[::1]", 9),
        ("0.0.0.0:0", "0.0.0.0", 0),
    ],
)
def test_a_place_is_a_host_with_a_port(text: str, host: str, port: int) -> None:
    place = parse_remoting(text)
    assert place is not None
    assert (place.host, place.port) == (host, port)
    assert parse_remoting("") is None


@pytest.mark.parametrize(
    "text", ["db7", "db7:99999", "http://db7:1/", "tcp://db7:1", ":", "db7:1", "2"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"cannot be listened at|leaves no port 2 below it"):
        ServeSettings(remoting=text)


def test_a_free_port_has_a_free_one_two_below_it() -> None:
    place = remoting_place("127.0.0.1:0")
    for port in (place.port, place.port - 2):
        socket.create_server(("127.0.0.1", port)).close()
    assert remoting_place("").port == 0


def test_records_get_the_port_of_the_gateway_where_there_is_one() -> None:
    gateway = remoting_place("192.0.2.7:10911")
    found = arguments_of(ChildRole.WRITER, gateway)
    assert (found["--advertise"], found["--store-port"]) == ("192.0.2.7", "10911")
    found = arguments_of(ChildRole.WRITER, gateway, advertise="198.51.100.1,20911:10911")
    assert (found["--advertise"], found["--store-port"]) == ("198.51.100.1", "20911")
    found = arguments_of(ChildRole.WRITER, NONE)
    assert (found["--advertise"], found["--store-port"]) == ("", "7850")


@pytest.mark.parametrize(
    ("bind", "remoting", "advertise", "node", "address"),
    [
        ("tcp://127.0.0.1:7850", "h:9", "", "tcp://127.0.0.1:7850", "h:9"),
        ("tcp://0.0.0.0:7850", "0.0.0.0:9", "", "tcp://127.0.0.1:7850", None),
        ("tcp://0.0.0.0:7850", "0.0.0.0:9", "db7", "tcp://127.0.0.1:7850", "db7:9"),
        ("tcp://db7:7850", "h:9", "db8", "tcp://db7:7850", "db8:9"),
        ("tcp://[::]:7850", "[::]:9", "", "tcp://[::1]:7850", None),
        ("tcp://[2001:db8::7]:7850", "h:9", "", "tcp://[2001:db8::7]:7850", "h:9"),
        ("tcp://0.0.0.0:7850", "0.0.0.0:9", "db7,20009:9", "tcp://127.0.0.1:7850", "db7:20009"),
    ],
)
def test_a_gateway_is_told_where_its_node_is_and_what_to_tell_clients(
    bind: str, remoting: str, advertise: str, node: str, address: str | None
) -> None:
    found = arguments_of(ChildRole.GATEWAY, remoting_place(remoting), parse_bind(bind), advertise)
    assert (found["--bind"], found["--node"], found.get("--address")) == (remoting, node, address)
    assert (found["--cluster"], found["--broker"], found["--shards"]) == ("c", "b", "1")


@pytest.mark.parametrize("role", [ChildRole.GATEWAY, ChildRole.TASKS])
def test_a_child_of_a_node_at_all_addresses_starts_without_a_look_for_its_loopback(
    role: ChildRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(Path("/s"), serve=ServeSettings(bind="tcp://*:17850", remoting="17860"))
    exposure = Exposure(served_ends(options.serve), (), Settings())
    places, _ = _plan_places(options, exposure)
    places = places._replace(local="")  # where local sockets cannot be had
    monkeypatch.setattr(socket, "create_server", no_descriptor)
    words = child_command(Child(role, 0), options, places, "1:2")
    assert words[words.index("--node") + 1] == "tcp://127.0.0.1:17850"


def test_a_gateway_listens_at_the_address_that_was_judged_and_clients_get_the_name() -> None:
    """Of a name that is looked up once."""
    options = Options(Path("/s"), serve=ServeSettings(remoting="localhost:17860"))
    exposure = Exposure(served_ends(options.serve), (), Settings())
    places, _ = _plan_places(options, exposure)
    words = child_command(Child(ChildRole.GATEWAY, 0), options, places, "1:2")
    host = places.gateway.address
    assert host in ("127.0.0.1", "[::1]")
    assert words[words.index("--bind") + 1] == f"{host}:17860"
    assert words[words.index("--address") + 1] == "localhost:17860"


@pytest.mark.parametrize(
    ("opened", "login"), [((), "authentication_enabled=true"), (("remoting",), "=false")]
)
def test_the_gateway_alone_is_told_whether_its_clients_must_log_in(
    opened: tuple[str, ...], login: str
) -> None:
    options = Options(Path("/s"), serve=ServeSettings(remoting="0.0.0.0:17860"))
    exposure = Exposure(served_ends(options.serve), frozenset(map(End, opened)), Settings())
    places, _ = _plan_places(options, exposure)
    commands = {
        role: child_command(Child(role, 0), options, places, "1:2")
        for role in (ChildRole.GATEWAY, ChildRole.WRITER)
    }
    assert commands[ChildRole.GATEWAY][-1].endswith(login)
    assert not any("authentication" in word for word in commands[ChildRole.WRITER])


def no_descriptor(*_: object, **__: object) -> socket.socket:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("role", [ChildRole.GATEWAY, ChildRole.TASKS])
def test_a_node_has_a_gateway_and_tasks_only_when_asked(role: ChildRole) -> None:
    assert role not in {child.role for child in plan_children(1, 1, True)}
    children = plan_children(1, 1, with_index=False, with_gateway=True)
    (child,) = [one for one in children if one.role is role]
    assert child.name == str(role)
    assert page_slot(child, 1) == f"{role}-0"
    assert str(role) not in summary(children)
    note_start(child, 1, 0.0)
    note_ready(child, "")
    assert summary(children).endswith(f", {role}")


@pytest.mark.parametrize("name", ["a broker", "a@b", "x" * 128])
def test_a_name_that_a_broker_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=r"broker\.broker_name is"):
        BrokerSettings(broker_name=name)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", ()),
        ("ns1:9876", ("ns1:9876",)),
        (
            " ns1:9876; 192.0.2.1:1 ;[2001:db8::7]:9;",
            ("ns1:9876", "192.0.2.1:1", "[2001:db8::7]:9"),
        ),
        ("a:1;a:1", ("a:1",)),
    ],
)
def test_name_servers_are_hosts_with_ports(text: str, places: tuple[str, ...]) -> None:
    assert parse_name_servers(text) == places


@pytest.mark.parametrize(
    "text",
    ["ns1", "9876", "ns1:0", "ns1:65536", "http://ns1:9876", "*:9876", "0.0.0.0:9876", "a:1,b:1"],
)
def test_what_is_not_a_name_server_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequest, match="namesrv_addr") as refused:
        BrokerSettings(namesrv_addr=f"ns1:9876;{text}")
    assert "--namesrv 'ns1:9876;ns2:9876'" in refused.value.hint


def test_too_many_name_servers_are_refused() -> None:
    with pytest.raises(BadRequest, match="names 17 name servers"):
        BrokerSettings(namesrv_addr=";".join(f"a:{n}" for n in range(1, NAME_SERVERS_MAX + 2)))


@pytest.mark.parametrize("number", [-1, 2**31])
def test_a_number_that_no_broker_has_is_refused(number: int) -> None:
    with pytest.raises(BadRequest, match=r"broker\.broker_id is"):
        BrokerSettings(broker_id=number)


def options_of(namesrv: str, advertise: str = "") -> Options:
    broker = BrokerSettings(namesrv_addr=namesrv)
    return Options(Path("/s"), network=NetworkSettings(advertise), broker=broker)


@pytest.mark.parametrize(
    ("remoting", "advertise", "announced"),
    [
        ("h:9", "", "h:9"),
        ("h:9", "db7", "db7:9"),
        ("0.0.0.0:9", "db7", "db7:9"),
        ("0.0.0.0:9", "", "192.0.2.7:9"),
        ("[::]:9", "", "192.0.2.7:9"),
        ("[::1]:9", "", "[::1]:9"),
        ("0.0.0.0:9", "db7,20009:9", "db7:20009"),
    ],
)
def test_name_servers_get_one_address(
    monkeypatch: pytest.MonkeyPatch, remoting: str, advertise: str, announced: str
) -> None:
    monkeypatch.setattr("node.supervisor.bind.machine.first_address", lambda _: "192.0.2.7")
    options, place = options_of("a:1", advertise), remoting_place(remoting)
    assert place_to_announce(options, place) == announced
    assert place_to_announce(options_of(""), place) == ""


def test_a_machine_that_nobody_reaches_registers_nothing_at_a_wildcard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.supervisor.bind.machine.first_address", lambda _: "127.0.0.1")
    with pytest.raises(BadRequest, match="no address to register") as refused:
        place_to_announce(options_of("a:1"), remoting_place("0.0.0.0:9"))
    assert "--advertise" in refused.value.hint


def test_name_servers_without_a_gateway_are_refused() -> None:
    with pytest.raises(BadRequest, match="--namesrv") as refused:
        place_to_announce(options_of("a:1"), NONE)
    assert "--remoting" in refused.value.hint


def test_a_gateway_gets_its_name_servers_and_its_number() -> None:
    broker = BrokerSettings("c", "b", 3, " a:1; b:2;")
    places = NodePlaces(CONTROL, remoting_place("0.0.0.0:9"), "192.0.2.7:9")
    options = Options(Path("/s"), broker=broker)
    words = child_command(Child(ChildRole.GATEWAY, 0), options, places, "1:2")[5:]
    found = dict(zip(words[::2], words[1::2], strict=True))
    assert (found["--namesrv"], found["--announce"]) == ("a:1;b:2", "192.0.2.7:9")
    assert found["--broker-id"] == "3"
    assert "--address" not in found, "each client is given the host that it reached"
    assert "--namesrv" not in arguments_of(ChildRole.GATEWAY, remoting_place("h:9"))


@pytest.mark.process
@pytest.mark.parametrize("distance", [0, 2])
def test_a_taken_port_is_said_before_a_store_is_made(tmp_path: Path, distance: int) -> None:
    base = free_ports(3)
    port = base + distance
    with socket.create_server(("127.0.0.1", base)):
        command = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "store")]
        command += ["--bind", "tcp://127.0.0.1:0", "--remoting", f"127.0.0.1:{port}"]
        for pair in ANY_DISK:
            command += ["-X", pair]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"cannot listen at 127.0.0.1:{base}" in done.stderr
    assert "--remoting" in done.stderr
    assert not (tmp_path / "store").exists()
