"""Whatever ends a loop of a node ends its process, with a traceback and a code of its own.

Errors are put in from outside (`tests.soak.campaign.injection`), in each loop and each thread.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from node.runtime.process import EXIT_DISK_ERROR, EXIT_UNEXPECTED
from protocol.errors import SendTimeout
from tests.soak.campaign.injection import InjectionFailed, Injector
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("unexpected_ends")]

ROLES = ("writer", "queue", "index", "reader")
UNEXPECTED = "an unexpected error ends the process"
NODE = "an unexpected error ends the node"


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Injector:
    return Injector(tmp_path_factory.mktemp("injector"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, injector: Injector) -> Iterator[RunningNode]:
    """A node that lives through all tests that leave it alive."""
    root = tmp_path_factory.mktemp("node") / "store"
    with RunningNode(root, env=injector.env, queue_workers=1, readers=1) as node:
        yield node


def exit_code(node: RunningNode, role: str) -> int | None:
    """Of the last end of the first process of a role."""
    return next(one.exit_code for one in node.client.status().processes if one.role == role)


def send_and_find(node: RunningNode, body: bytes) -> None:
    """A message goes all the way: into the log, a queue, the index."""
    client = node.client
    sent = client.send("orders", body, keys="k", queue_id=0)
    assert client.get(sent.msg_id).body == body
    node.wait_dispatched()


def assert_replaced(node: RunningNode, role: str, pid: int, code: int) -> None:
    """Its process has ended with this code, and another one does its work."""
    wait_until(lambda: not psutil.pid_exists(pid), f"the {role} lives on")
    node.wait_all_run()
    wait_until(lambda: node.pids().get(role, [pid]) != [pid], f"there is no other {role}")
    assert exit_code(node, role) == code


@pytest.mark.parametrize("kind", ["MemoryError", *seldom("KeyError", "RecursionError")])
@pytest.mark.parametrize("role", ROLES)
def test_an_error_in_any_loop_ends_its_process_and_another_takes_its_place(
    shared: RunningNode, injector: Injector, role: str, kind: str
) -> None:
    shared.wait_all_run()
    said = shared.stderr.count(UNEXPECTED)
    pid = shared.pids()[role][0]
    injector.inject(pid, kind)
    assert_replaced(shared, role, pid, EXIT_UNEXPECTED)
    wait_until(lambda: shared.stderr.count(UNEXPECTED) > said, "the log has no traceback")
    assert "Traceback" in shared.stderr
    send_and_find(shared, f"{role} {kind}".encode())


@pytest.mark.parametrize("role", ["queue", *seldom("writer", "index", "reader")])
def test_an_error_of_the_disk_has_its_own_code(
    shared: RunningNode, injector: Injector, role: str
) -> None:
    shared.wait_all_run()
    pid = shared.pids()[role][0]
    injector.inject(pid, "OSError")
    assert_replaced(shared, role, pid, EXIT_DISK_ERROR)
    send_and_find(shared, b"after an error of the disk")


@pytest.mark.parametrize("role", ["writer", *seldom("reader")])
def test_an_error_of_ours_in_an_odd_place_is_unexpected_too(
    shared: RunningNode, injector: Injector, role: str
) -> None:
    shared.wait_all_run()
    pid = shared.pids()[role][0]
    injector.inject(pid, "StoreDamaged")
    assert_replaced(shared, role, pid, EXIT_UNEXPECTED)
    send_and_find(shared, b"after an error of ours")


def test_an_error_in_any_thread_of_the_writer_ends_the_writer(
    shared: RunningNode, injector: Injector
) -> None:
    shared.wait_all_run()
    send_and_find(shared, b"threads begin when there is work")
    names = set(injector.threads(shared.pids()["writer"][0]))
    assert {"flush", "staging"} <= names
    for name in sorted(names):
        shared.wait_all_run()
        pid = shared.pids()["writer"][0]
        send_and_find(shared, name.encode())
        try:
            injector.inject(pid, "RuntimeError", name)
        except InjectionFailed:
            continue  # it has ended meanwhile
        if name == "staging":
            continue  # it wakes up for staged batches alone
        with suppress(SendTimeout):  # the writer may end while it has one of them
            for _ in range(20):
                shared.client.send("orders", bytes(100_000), queue_id=0)
        assert_replaced(shared, "writer", pid, EXIT_UNEXPECTED)


@pytest.mark.parametrize("thread", [None, *seldom("http")])
@pytest.mark.faults
def test_an_error_in_the_supervisor_stops_the_whole_node_in_order(
    tmp_path: Path, injector: Injector, thread: str | None
) -> None:
    root = tmp_path / "store"
    settings = ["serve.http=127.0.0.1:0"]
    node = RunningNode(root, settings, env=injector.env, queue_workers=1, readers=1)
    node.start()
    pids = [pid for found in node.pids().values() for pid in found]
    sent = node.client.send("orders", b"before", queue_id=0)
    injector.inject(node.pid, "MemoryError", thread)
    assert node.wait() == EXIT_UNEXPECTED
    assert NODE in node.stderr
    assert "Traceback" in node.stderr
    assert not any(map(psutil.pid_exists, pids))
    assert (root / "keelog" / "clean").exists()
    with RunningNode(root, queue_workers=1, readers=1) as again:
        assert again.client.get(sent.msg_id).body == b"before"
