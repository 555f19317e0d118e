"""The node below a keeper, as a process."""

import os
import sys
from pathlib import Path

from keelog.replication.keeper.loop import NodeProcess


def test_a_node_that_has_not_begun_is_stopped_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    node = NodeProcess(command, dict(os.environ), str(tmp_path))
    node.start([])
    assert node.ended() is None
    assert node.stop() == 0


def test_a_node_that_ends_with_an_error_says_so_when_it_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    node = NodeProcess(command, dict(os.environ), str(tmp_path))
    node.start([])
    while node.ended() is None:
        pass
    assert node.stop() == 3
