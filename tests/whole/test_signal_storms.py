"""Stop signals that come again and again, or to all processes at once: the store is left clean."""

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from node.store.checkpoints import is_clean
from tests.support.node import STOP_S, RunningNode
from tests.support.seldom import seldom

EVERY_S = 0.003
pytestmark = pytest.mark.process


def storm(pids: Sequence[int], ended: threading.Event) -> None:
    """SIGTERM to each of them, every 3 ms, until it has ended."""
    while not ended.wait(EVERY_S):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def stopped_by_storm(node: RunningNode, pids: Sequence[int]) -> int:
    """The supervisor's exit code."""
    ended = threading.Event()
    thread = threading.Thread(target=storm, args=(pids, ended))
    thread.start()
    try:
        assert node._process is not None
        return node._process.wait(STOP_S)
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("who", ["supervisor", "all"])
@pytest.mark.parametrize("attempt", [0, *seldom(1, 2)])
def test_a_storm_of_signals_leaves_a_clean_store_and_exit_code_0(
    tmp_path: Path, who: str, attempt: int
) -> None:
    root = tmp_path / "store"
    node = RunningNode(root)
    node.start()
    try:
        for number in range(100):
            node.client.send("orders", b"%d" % number)
        children = [child.pid for child in psutil.Process(node.pid).children()]
        pids = [node.pid, *(children if who == "all" else [])]
        assert stopped_by_storm(node, pids) == 0, node.stderr
    finally:
        node.kill_all()
    assert is_clean(root), node.stderr
    assert not (root / "abort").exists()
