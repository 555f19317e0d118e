"""Clients elsewhere: from another network namespace, by names, by IPv6; and starts that fail."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import keelog
from node.runtime.state_page import LogPage
from node.supervisor.bind import free_ports
from protocol.ids import parse_offset_message_id
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.nodes

ROOT = Path(__file__).resolve().parents[2]
CLIENT_S = 60
USE = """
import json, sys
import keelog
with keelog.connect(sys.argv[1], timeout=20) as client:
    sent = client.send("orders", sys.argv[1].encode(), queue_id=0)
    pulled = client.pull("orders", 0, sent.queue_offset, wait=5).messages
    rows = client.status().processes
    print(json.dumps({
        "body": pulled[0].body.decode(), "born": pulled[0].born_host, "id": sent.msg_id,
        "endpoints": sorted({one.endpoint for one in rows if one.endpoint}),
        "routes": client.routes().endpoints() and sorted(client.routes().endpoints()),
        "http": client.status().raw["http"], "ready": client.health().ready,
    }))
"""
"""Sends, pulls and asks for the status at the address that it is given."""


class Place(NamedTuple):
    """A network namespace with a cable to ours."""

    name: str
    here4: str
    here6: str
    there4: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=CLIENT_S)


@contextmanager
def elsewhere() -> Iterator[Place]:
    name, net = f"klg{os.getpid() % 100_000}", os.getpid() % 250
    here, there = f"{name}a", f"{name}b"
    place = Place(name, f"10.213.{net}.1", f"fd42:6b65:{net:x}::1", f"10.213.{net}.2")
    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        for words, device, addresses in (
            ((), here, (place.here4, place.here6)),
            (("-n", name), there, (place.there4, f"fd42:6b65:{net:x}::2")),
        ):
            ip(*words, "link", "set", device, "up")
            ip(*words, "addr", "add", f"{addresses[0]}/30", "dev", device)
            ip(*words, "-6", "addr", "add", f"{addresses[1]}/64", "dev", device, "nodad")
        yield place
    finally:
        ip("netns", "del", name)
        subprocess.run(["ip", "link", "del", here], check=False, capture_output=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root, and the program ip")
    try:
        with elsewhere() as found:
            yield found
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace here: {error.stderr.decode().strip()}")


def use_from(place: Place, url: str) -> dict[str, object]:
    """What a client in that namespace finds."""
    words = ["ip", "netns", "exec", place.name, sys.executable, "-c", USE, url]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=CLIENT_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    assert (found["body"], found["ready"]) == (url, True)
    return found


@contextmanager
def node_at(tmp_path: Path, bind: str, *settings: str) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1, bind=bind) as node:
        yield node


def test_a_node_at_all_addresses_is_reached_by_the_address_that_was_asked(
    tmp_path: Path, place: Place
) -> None:
    """By IPv4 and by IPv6; a message keeps the IPv4 address of its sender."""
    port = free_ports(3)
    opened = "serve.open_ends=zeromq,http"
    with node_at(tmp_path, f"tcp://[::]:{port}", "serve.http=0.0.0.0:0", opened) as node:
        for host in (place.here4, f"[{place.here6}]"):
            found = use_from(place, f"tcp://{host}:{port}")
            ends = [f"tcp://{host}:{port + number}" for number in (1, 2)]
            assert found["endpoints"] == found["routes"] == ends
            assert str(found["http"]).startswith(f"http://{host}:")
            if host == place.here4:
                assert found["born"] == f"{place.there4}:0"
        store_host, _ = parse_offset_message_id(str(found["id"]))
        assert len(store_host.ip) == 4
        assert not store_host.ip.startswith(b"\x7f")
        check = next(one for one in node.client.health().checks if one.name == "open_ends")
        assert (check.ok, check.needed) == (False, False)
        assert f"--bind tcp://[::]:{port}, --http 0.0.0.0:0" in check.detail
        assert node.stderr.count("everybody who reaches this end may do everything there") == 2


def test_clients_are_given_the_host_that_the_node_advertises(tmp_path: Path, place: Place) -> None:
    """Though they asked at another address of it."""
    port = free_ports(3)
    advertised = f"network.advertise={place.here4}"
    opened = "serve.open_ends=zeromq"
    with node_at(tmp_path, f"tcp://*:{port}", advertised, "serve.http=0", opened):
        found = use_from(place, f"tcp://[{place.here6}]:{port}")
        ends = [f"tcp://{place.here4}:{port + number}" for number in (1, 2)]
        assert found["endpoints"] == found["routes"] == ends
        assert parse_offset_message_id(str(found["id"]))[0].ip == socket.inet_aton(place.here4)


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_a_node_is_bound_to_a_name_or_an_ipv6_address(tmp_path: Path, host: str) -> None:
    with node_at(tmp_path, f"tcp://{host}:0") as node:
        assert node.endpoint.startswith(f"tcp://{host}:")
        with keelog.connect(node.endpoint, timeout=30) as client:
            sent = client.send("orders", b"x", queue_id=0)
            assert client.pull("orders", 0, sent.queue_offset, wait=5).messages[0].body == b"x"
            assert all(one.startswith(f"tcp://{host}:") for one in client.routes().endpoints())
        old = node.kill("writer")
        with keelog.connect(node.endpoint, timeout=30) as client:
            # The supervisor looks once a second: until then its status has the old process.
            wait_until(lambda: node.pids().get("writer", []) not in ([], [old]), "no other writer")
            node.wait_all_run()
            client.send("orders", b"again", queue_id=0)
        if host == "localhost":
            assert "bound to the address of a host name" in node.stderr
        with LogPage.open(node.root) as page:
            assert page.read().records >= 1


@pytest.mark.parametrize("distance", [0, 1, 2])
def test_a_start_at_a_taken_port_leaves_nothing(tmp_path: Path, distance: int) -> None:
    """Of the control socket, the writer and the reader."""
    port = free_ports(3)
    store = tmp_path / "new" / "store"
    with socket.create_server(("127.0.0.1", port + distance)):
        words = ["serve", str(store), "--bind", f"tcp://127.0.0.1:{port}"]
        done = subprocess.run(
            [sys.executable, "-m", "keelog", *words],
            capture_output=True, text=True, timeout=CLIENT_S, check=False, cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"cannot listen at 127.0.0.1:{port + distance}, for --bind tcp://" in done.stderr
    assert "try: stop the process that listens there" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_another_machine_is_refused_with_its_address(tmp_path: Path) -> None:
    words = ["serve", str(tmp_path / "store"), "--bind", "tcp://no-such-host.invalid.:7850"]
    done = subprocess.run(
        [sys.executable, "-m", "keelog", *words],
        capture_output=True, text=True, timeout=CLIENT_S, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "the name no-such-host.invalid. does not resolve" in done.stderr
    assert list(tmp_path.iterdir()) == []
