"""Who owns a store: our lock excludes another of ours, and a Java broker's, both ways."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.runtime.locks import StoreLock
from protocol.errors import StoreLocked

AS_A_BROKER = (
    "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0)"
)


def broker_can_lock(path: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", AS_A_BROKER, str(path)], capture_output=True)
    return done.returncode == 0


def test_a_held_store_is_refused_to_a_second_owner(tmp_path: Path) -> None:
    lock = StoreLock.acquire(tmp_path)
    with pytest.raises(StoreLocked, match=f"held by another process, {os.getpid()}"):
        StoreLock.acquire(tmp_path)
    lock.release()
    StoreLock.acquire(tmp_path).release()


def test_a_java_broker_is_kept_out(tmp_path: Path) -> None:
    lock = StoreLock.acquire(tmp_path)
    assert not broker_can_lock(tmp_path / "lock")
    (tmp_path / "lock").open().close()
    assert not broker_can_lock(tmp_path / "lock")
    lock.release()
    assert broker_can_lock(tmp_path / "lock")


def test_a_java_broker_keeps_us_out(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        with pytest.raises(StoreLocked):
            StoreLock.acquire(tmp_path)


def test_supervisor_and_writer_hold_one_half_each(tmp_path: Path) -> None:
    supervisor = StoreLock.acquire(tmp_path, flock=True, record=False)
    writer = StoreLock.acquire(tmp_path, flock=False, record=True)
    for flock, record in ((True, False), (False, True)):
        with pytest.raises(StoreLocked):
            StoreLock.acquire(tmp_path, flock=flock, record=record)
    writer.release()
    supervisor.release()


def test_the_lock_file_holds_what_a_broker_writes(tmp_path: Path) -> None:
    StoreLock.acquire(tmp_path).release()
    assert (tmp_path / "lock").read_bytes() == b"lock"
