"""Files of mode 000 under a process that is no superuser: one sentence, and nothing is changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import RunningNode
from tests.support.seldom import seldom

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("closed_files")]

PLACES = [
    *("commitlog/00000000000000000000", "lock", "keelog/floor", "keelog/run/log.page"),
    *seldom(".", "commitlog", "consumequeue", "index", "config", "config/topics.json"),
    *seldom("checkpoint", "keelog", "keelog/tails", "keelog/epochs", "keelog/progress"),
]
SMALL = ("mapped_file_size_commit_log=1048576", "max_hash_slot_num=1000", "max_index_num=4000")
WITHOUT = "--bounding-set=-dac_override,-dac_read_search"
"""What lets root pass over modes."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store at rest with a message in it."""
    root = tmp_path_factory.mktemp("closed") / "store"
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        node.client.send("orders", b"a", keys="k", queue_id=0)
        node.wait_dispatched()
    return root


@pytest.mark.parametrize("place", PLACES)
def test_a_closed_file_is_refused_by_its_name(store: Path, place: str) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv, which takes away what lets root pass over modes")
    path = store / place
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        command = [sys.executable, "-m", "keelog", "serve", str(store)]
        done = subprocess.run(
            ["setpriv", WITHOUT, *command, "--bind", "tcp://127.0.0.1:0"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        path.chmod(mode)
    assert done.returncode in (1, 2), done.stderr
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    causes = [line for line in done.stderr.splitlines() if line.startswith("cause: ")]
    assert len(causes) == 1, done.stderr
    assert str(store) in causes[0]
