"""Ports that somebody else has: at the start of a node that was there before, and while it runs."""

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import keelog
from node.supervisor.bind import free_ports
from protocol.errors import NotConnected
from tests.support.node import ANY_DISK, RunningNode, wait_until

pytestmark = pytest.mark.process

START_S = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose node has ended."""
    root = tmp_path_factory.mktemp("taken") / "store"
    with RunningNode(root, queue_workers=1, readers=1):
        pass
    return root


def serve(store: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "keelog", "serve", str(store), *words]
    for pair in ANY_DISK:
        command += ["-X", pair]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)


@pytest.mark.parametrize(
    ("option", "distance"),
    [("--remoting", 0), ("--remoting", -2), ("--ha", 0), ("--http", 0), ("--bind", 2)],
)
def test_a_start_at_a_taken_port_fails_with_its_option(
    store: Path, option: str, distance: int
) -> None:
    port = free_ports(5) + 2
    place = f"127.0.0.1:{port}"
    bind = [] if option == "--bind" else ["--bind", "tcp://127.0.0.1:0"]
    with closing(socket.create_server(("127.0.0.1", port + distance))):
        done = serve(store, option, f"tcp://{place}" if option == "--bind" else place, *bind)
    assert done.returncode == 1, done.stderr
    cause, hint = done.stderr.splitlines()[-2:]
    assert cause.startswith(f"cause: cannot listen at 127.0.0.1:{port + distance}, for {option}")
    assert cause.endswith("Address already in use")
    assert hint.startswith("try: stop the process that listens there")
    assert "ready tcp:" not in done.stderr


def test_a_port_that_two_options_want_is_refused_with_both(store: Path) -> None:
    port = free_ports(3) + 2
    ends = ["--remoting", f"127.0.0.1:{port}", "--http", str(port - 2)]
    done = serve(store, "--bind", "tcp://127.0.0.1:0", *ends)
    assert done.returncode == 2, done.stderr
    (cause,) = [line for line in done.stderr.splitlines() if line.startswith("cause: ")]
    assert f"--remoting 127.0.0.1:{port}" in cause
    assert f"--http {port - 2}" in cause


def test_a_client_at_the_wrong_port_and_the_log_both_say_so(store: Path) -> None:
    ends = ["serve.remoting=127.0.0.1:0", "serve.ha_listen=127.0.0.1:0"]
    with RunningNode(store, ends, queue_workers=1, readers=1) as node:
        for kind in ("gateway", "followers"):
            (endpoint,) = [
                one.endpoint for one in node.client.status().processes if one.role == kind
            ]
            with pytest.raises(NotConnected, match="somebody listens at tcp"):
                keelog.connect(endpoint, timeout=30.0)
        said = "of a client of Keelog: give it the address after the word ready"
        wait_until(lambda: node.stderr.count(said) == 2, "the log does not name the client")


def test_a_node_whose_gateway_lost_its_port_is_not_ready_until_it_has_it_again(store: Path) -> None:
    port = free_ports(3) + 2
    remoting = f"serve.remoting=127.0.0.1:{port}"
    with RunningNode(store, [remoting], queue_workers=1, readers=1) as node:
        assert f"remoting 127.0.0.1:{port}" in node.stderr
        node.kill("gateway")
        taken: list[socket.socket] = []

        def take() -> bool:
            try:
                taken.append(socket.create_server(("127.0.0.1", port)))
            except OSError:
                return False
            return True

        wait_until(take, "the port of a gateway that was killed is not free")
        with closing(taken[0]):
            said = "cannot listen at"
            wait_until(lambda: said in node.stderr, "no gateway has missed its port")
            health = node.client.health()
            assert not health.ready
            assert "gateway" in {check.name for check in health.checks if not check.ok}
        wait_until(lambda: node.client.health().ready, "not ready with its port again")
        socket.create_connection(("127.0.0.1", port), timeout=START_S).close()
