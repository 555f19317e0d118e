"""Who runs a store, asked from outside without getting into anybody's way."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from node.runtime.locks import StoreLock
from node.store.condition import Owner, find_owner

JAVA_TAKES_IT = (
    "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX, 1, 0);"
    " print('held', flush=True); sys.stdin.read()"
)


def test_a_folder_without_a_lock_file_is_nobodys(tmp_path: Path) -> None:
    assert find_owner(tmp_path) is Owner.NOBODY
    assert find_owner(tmp_path / "none") is Owner.NOBODY
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flock", "record", "owner"),
    [(True, False, Owner.SUPERVISOR), (False, True, Owner.WRITER), (True, True, Owner.WRITER)],
)
def test_ours_are_told_apart_by_which_lock_they_hold(
    tmp_path: Path, flock: bool, record: bool, owner: Owner
) -> None:
    lock = StoreLock.acquire(tmp_path, flock=flock, record=record)
    assert find_owner(tmp_path) is owner
    lock.release()
    assert find_owner(tmp_path) is Owner.NOBODY


@pytest.mark.process
def test_a_broker_holds_the_lock_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("lock")
    command = [sys.executable, "-c", JAVA_TAKES_IT, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        assert find_owner(tmp_path) is Owner.BROKER
        broker.communicate()
    assert find_owner(tmp_path) is Owner.NOBODY


def test_who_asks_never_keeps_a_node_from_starting(tmp_path: Path) -> None:
    StoreLock.acquire(tmp_path).release()
    is_over = threading.Event()
    answers = Counter[Owner]()

    def ask() -> None:
        while not is_over.is_set():
            answers[find_owner(tmp_path)] += 1

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            StoreLock.acquire(tmp_path).release()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    # No attempt was refused, although others looked all the time.
    assert answers.total() > 0
