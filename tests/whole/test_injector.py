"""`Injector` raises what it is asked for, where it is asked for, and nothing else changes."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from protocol.errors import MqError
from tests.soak.campaign.injection import HANGS, InjectionFailed, Injector
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Injector:
    """One for all nodes of this module."""
    return Injector(tmp_path_factory.mktemp("injector"))


@pytest.fixture
def node(tmp_path: Path, injector: Injector) -> Iterator[RunningNode]:
    """A node whose processes take injections."""
    node = RunningNode(tmp_path / "store", env=injector.env, queue_workers=1, readers=1)
    node.start()
    try:
        yield node
    finally:
        if node.is_running:
            node.kill_all()


@pytest.mark.parametrize("kind", ["KeyError", *seldom("OSError", "StoreDamaged")])
def test_the_main_thread_of_a_reader_meets_the_exception(
    node: RunningNode, injector: Injector, kind: str
) -> None:
    reader = node.pids()["reader"][0]
    assert injector.inject(reader, kind) == "MainThread"
    words = {"KeyError": "KeyError", "OSError": "(injected)", "StoreDamaged": "this damage is"}
    wait_until(lambda: words[kind] in node.stderr, "nobody speaks of it")


@pytest.mark.faults
def test_a_thread_meets_the_exception(node: RunningNode, injector: Injector) -> None:
    writer = node.pids()["writer"][0]
    thread = next(name for name in injector.threads(writer) if name.startswith("flush"))
    assert injector.inject(writer, "RuntimeError", thread) == thread
    with suppress(MqError):  # the writer may end of it
        node.client.send("apples", b"wakes the flush", timeout=5.0)
    wait_until(lambda: "RuntimeError" in node.stderr, "the thread never met it")


@pytest.mark.faults
@pytest.mark.parametrize("kind", HANGS)
def test_a_process_that_hangs_does_nothing_more(
    node: RunningNode, injector: Injector, kind: str
) -> None:
    worker = node.pids()["index"][0]
    injector.inject(worker, kind)
    seen = node.worker_states()["index"].heartbeat_ms
    time.sleep(2.5)
    now = node.worker_states()["index"].heartbeat_ms
    assert now == seen
    assert worker == node.pids()["index"][0]


def test_who_cannot_be_reached_is_named(node: RunningNode, injector: Injector) -> None:
    with pytest.raises(InjectionFailed, match="no thread nobody"):
        injector.inject(node.pid, "KeyError", "nobody")
    with pytest.raises(InjectionFailed, match="no process"):
        injector.inject(2**22 - 1, "KeyError")
