"""How a supervisor places and starts a gateway."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node.supervisor.bind import BindAddress, parse_bind, parse_remoting, remoting_place
from node.supervisor.child_process import NodePlaces, child_command
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
NONE = BindAddress("", 0, any_port=False)


def arguments_of(
    role: ChildRole, gateway: BindAddress, control: BindAddress = CONTROL, advertise: str = ""
) -> dict[str, str]:
    """The options of a child, by name."""
    network = NetworkSettings(advertise)
    options = Options(Path("/s"), network=network, broker=BrokerSettings("c", "b"))
    words = child_command(Child(role, 0), options, NodePlaces(control, gateway), "1:2")[5:]
    return dict(zip(words[::2], words[1::2], strict=True))


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
    gateway = remoting_place("127.0.0.1:10911")
    assert arguments_of(ChildRole.WRITER, gateway)["--store-port"] == "10911"
    assert arguments_of(ChildRole.WRITER, NONE)["--store-port"] == "7850"


@pytest.mark.parametrize(
    ("bind", "remoting", "advertise", "node", "address"),
    [
        ("tcp://127.0.0.1:7850", "h:9", "", "tcp://127.0.0.1:7850", "h:9"),
        ("tcp://0.0.0.0:7850", "0.0.0.0:9", "", "tcp://127.0.0.1:7850", None),
        ("tcp://0.0.0.0:7850", "0.0.0.0:9", "db7", "tcp://127.0.0.1:7850", "db7:9"),
        ("tcp://db7:7850", "h:9", "db8", "tcp://db7:7850", "db8:9"),
    ],
)
def test_a_gateway_is_told_where_its_node_is_and_what_to_tell_clients(
    bind: str, remoting: str, advertise: str, node: str, address: str | None
) -> None:
    found = arguments_of(ChildRole.GATEWAY, remoting_place(remoting), parse_bind(bind), advertise)
    assert (found["--bind"], found["--node"], found.get("--address")) == (remoting, node, address)
    assert (found["--cluster"], found["--broker"], found["--shards"]) == ("c", "b", "1")


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


@pytest.mark.process
@pytest.mark.parametrize("distance", [0, 2])
def test_a_taken_port_is_said_before_a_store_is_made(tmp_path: Path, distance: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] + distance
        command = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "store")]
        command += ["--bind", "tcp://127.0.0.1:0", "--remoting", f"127.0.0.1:{port}"]
        for pair in ANY_DISK:
            command += ["-X", pair]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"cannot listen at 127.0.0.1:{port - distance}" in done.stderr
    assert "--remoting" in done.stderr
    assert not (tmp_path / "store").exists()
