"""A node that nobody uses costs next to nothing, and a message wakes it at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from node.runtime.state_page import WorkerPage
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

QUIET_S = 4.0
WATCHED_S = 10.0
CPU_SHARE_MAX = 0.02
"""Of one processor, which other tests use too; 0.0045 was measured (docs/performance.md)."""


def cpu_s(node: RunningNode) -> float:
    """Processor time of all processes of a node."""
    supervisor = psutil.Process(node.pid)
    times = [one.cpu_times() for one in (supervisor, *supervisor.children())]
    return float(sum(one.user + one.system for one in times))


@pytest.mark.faults
def test_an_idle_node_takes_next_to_no_processor_time(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        for number in range(100):
            node.client.send("orders", b"x", keys=f"k{number}")
        node.wait_dispatched()
        time.sleep(QUIET_S)  # what is measured is doing nothing
        began, used = time.monotonic(), cpu_s(node)
        time.sleep(WATCHED_S)
        share = (cpu_s(node) - used) / (time.monotonic() - began)
        assert share < CPU_SHARE_MAX, f"{share:.1%} of a processor"


def test_all_that_follow_an_idle_log_ask_to_be_rung_for_the_next_record(tmp_path: Path) -> None:
    """Their sleep is long, so a ring must end it."""
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        node.client.send("orders", b"x", queue_id=0, keys="k")
        node.wait_dispatched()
        with ThreadPoolExecutor() as pool:
            held = pool.submit(node.client.pull, "orders", 0, 1, wait=20.0)
            for slot in ("queue-0-of-1", "index", "reader-0"):
                with WorkerPage.open(node.root, slot) as page:
                    next_record = node.log_state().readable + 1
                    wait_until(lambda: page.wake_at == next_record, f"{slot} asks for no ring")  # noqa: B023
            node.client.send("orders", b"y", queue_id=0, keys="k")
            assert [one.body for one in held.result().messages] == [b"y"]
        node.wait_dispatched()
