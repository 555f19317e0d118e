"""Another user of the machine: reads no message, and keeps no node from starting."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.store.verify.verify import verify
from tests.support.node import RunningNode
from tests.support.seldom import seldom

pytestmark = pytest.mark.process

NOBODY = 65534
SMALL = ["mapped_file_size_commit_log=1048576"]
WARNING = "other users may read the store"
INTRUDER = f"""
import fcntl, os, sys, time
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
print("here", flush=True)
kept = []
while True:
    for folder, folders, names in os.walk(sys.argv[1]):
        for name in names:
            try:
                kept.append(open(folder + "/" + name, "rb"))
                fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            print(folder + "/" + name, flush=True)
    time.sleep(0.001)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A store's place that everybody can come to; files are made without a umask."""
    if os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    before = os.umask(0)
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (Path(place) / "for all").touch(0o644)
        yield Path(place) / "store"
    os.umask(before)


class Intruder:
    """Opens and locks all that it can, again and again."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", INTRUDER, str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "here\n"

    def end(self) -> set[str]:
        """What it could open."""
        self._process.kill()
        return set(self._process.communicate()[0].splitlines())


def test_another_user_opens_no_file_of_a_store_and_holds_no_lock(root: Path) -> None:
    root.mkdir(mode=0o755)
    intruder = Intruder(root.parent)
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        node.client.create_topic("orders")
        for number in range(200):
            node.client.send("orders", b"x" * 10_000, keys=str(number))
        node.wait_dispatched()
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        assert WARNING not in node.stderr
    assert intruder.end() == {str(root.parent / "for all")}
    assert verify(root).ok
    modes = {
        str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in root.rglob("*")
    }
    assert len(modes) > 20
    assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def test_the_folder_that_a_node_makes_is_closed(root: Path) -> None:
    with RunningNode(root, SMALL, queue_workers=1, readers=1):
        assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.faults
def test_an_open_store_is_named_once_a_start_with_the_command_that_closes_it(root: Path) -> None:
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        node.client.create_topic("orders")
        node.client.send("orders", b"x")
    subprocess.run(["chmod", "-R", "go=rX", str(root)], check=True)
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        assert node.stderr.count(WARNING) == 1
        assert f"chmod -R go= {root}" in node.stderr
        assert str(root / "checkpoint") in node.stderr
        assert stat.S_IMODE((root / "commitlog").stat().st_mode) == 0o755
        assert stat.S_IMODE((root / "lock").stat().st_mode) == 0o600
    subprocess.run(["chmod", "-R", "go=", str(root)], check=True)
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        assert WARNING not in node.stderr


def test_who_holds_an_open_lock_can_do_so_no_longer_after_a_start_was_refused(root: Path) -> None:
    root.mkdir(mode=0o755)
    (root / "lock").touch(0o644)
    intruder = Intruder(root.parent)
    while not _is_held(root / "lock"):
        time.sleep(0.01)
    serve = [sys.executable, "-m", "keelog", "serve", str(root), "--bind", "tcp://127.0.0.1:0"]
    assert subprocess.run(serve, capture_output=True, check=False, timeout=60).returncode == 6
    assert intruder.end() >= {str(root / "lock")}
    intruder = Intruder(root.parent)
    with RunningNode(root, SMALL, queue_workers=1, readers=1):
        assert intruder.end() == {str(root.parent / "for all")}


def _is_held(path: Path) -> bool:
    inode = path.stat().st_ino
    return any(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


COMMAND = f"""
import os, sys
from keelog.cli.main import run
from keelog.cli.store.group import store
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(run(["store", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("closed", ["", *seldom("keelog/floor", "keelog", "commitlog")])
def test_another_user_gets_one_clear_error_whatever_is_closed(root: Path, closed: str) -> None:
    with RunningNode(root, SMALL, queue_workers=1, readers=1) as node:
        node.client.send("orders", b"x")
    for path in [root, *root.rglob("*")] if closed else []:
        path.chmod(0o755 if path.is_dir() else 0o644)
    (root / closed).chmod(0o700 if (root / closed).is_dir() else 0o600)
    out = str(root.parent / "out")
    for words in (["info", str(root)], ["verify", str(root)], ["backup", str(root), out]):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        error, cause, hint = done.stderr.splitlines()
        assert error.startswith("error: cannot ")
        assert "Permission denied" in cause
        assert "owner" in hint
    assert not Path(out).exists()
