"""One owner for a store: whoever comes second, at the very same moment too, leaves it alone."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from node.runtime.locks import StoreLock
from node.store.verify.verify import verify
from tests.support.node import RunningNode

pytestmark = pytest.mark.process

NODE_ROUNDS = 20
LOCK_ROUNDS = 500
PATIENCE_S = 60.0
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from node.runtime.locks import StoreLock
lock = StoreLock.acquire(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"], close_fds=False)
print(child.pid, flush=True)
time.sleep(60)
"""

RACER = """
import sys, time
from pathlib import Path
from node.runtime.locks import StoreLock
from protocol.errors import StoreLocked
root, start, held = Path(sys.argv[1]), float(sys.argv[2]), {}
for number in range(int(sys.argv[3])):
    while time.time() < start + number / 1000:
        pass
    try:
        held[number] = StoreLock.acquire(root / str(number))
    except StoreLocked:
        pass
print(*held, flush=True)
sys.stdin.read()
"""


def serve(root: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "keelog", "serve", str(root), "--bind", "tcp://127.0.0.1:0"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def kill_with_children(process: "subprocess.Popen[str]") -> None:
    """A node that is just starting: held first, so that it starts nobody more."""
    os.kill(process.pid, signal.SIGSTOP)
    children = psutil.Process(process.pid).children(recursive=True)
    for child in children:
        child.kill()
    process.kill()
    process.communicate()
    psutil.wait_procs(children, PATIENCE_S)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_of_two_nodes_that_start_at_one_moment_one_lives_and_the_other_exits_with_6(
    tmp_path: Path,
) -> None:
    for number in range(NODE_ROUNDS):
        root = tmp_path / f"store-{number}"
        pair = [serve(root), serve(root)]
        try:
            deadline = time.monotonic() + PATIENCE_S
            while all(one.poll() is None for one in pair):
                assert time.monotonic() < deadline, "both run"
                time.sleep(0.005)
            (loser,) = [one for one in pair if one.poll() is not None]
            _, said = loser.communicate()
            assert loser.returncode == 6, said
            assert [line.split(":")[0] for line in said.splitlines()] == ["error", "cause", "try"]
            assert f"{root}/lock is held by another process" in said
        finally:
            alive = [one for one in pair if one.poll() is None]
            for one in alive:
                kill_with_children(one)
        assert len(alive) == 1
        StoreLock.acquire(root, wait_s=5.0).release()


def test_a_lock_that_two_processes_try_for_at_one_moment_goes_to_one_of_them(
    tmp_path: Path,
) -> None:
    for number in range(LOCK_ROUNDS):
        (tmp_path / str(number)).mkdir()
    words = [str(tmp_path), str(time.time() + 2.0), str(LOCK_ROUNDS)]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    won = []
    for racer in racers:
        assert racer.stdout is not None
        won.append({int(word) for word in racer.stdout.readline().split()})
    for racer in racers:
        racer.communicate("")
    assert won[0] | won[1] == set(range(LOCK_ROUNDS))
    assert not won[0] & won[1]


@pytest.mark.faults
def test_a_loser_leaves_no_trace_in_a_store_that_is_being_made(tmp_path: Path) -> None:
    """The winner of the race goes on to a whole node on files that nobody else has touched."""
    root = tmp_path / "store"
    with RunningNode(root, ("mapped_file_size_commit_log=1048576",)) as node:
        losers = [serve(root) for _ in range(5)]
        sent = [node.client.send("t", b"%d" % n, queue_id=0).msg_id for n in range(50)]
        assert [one.wait(PATIENCE_S) for one in losers] == [6] * 5
        for one in losers:
            one.communicate()
        assert [node.client.get(msg_id).body for msg_id in sent] == [b"%d" % n for n in range(50)]
        node.wait_dispatched()
    assert verify(root, deep=True).findings == []


def test_only_supervisor_and_writer_have_the_lock_open_and_pass_it_on_to_nobody(
    tmp_path: Path,
) -> None:
    with RunningNode(tmp_path / "store") as node:
        holders = {}
        for role, pids in {**node.pids(), "supervisor": [node.pid]}.items():
            for pid in pids:
                flags = open_flags(pid, node.root / "lock")
                if flags:
                    holders[role] = flags
        assert set(holders) == {"supervisor", "writer"}
        assert all(len(flags) == 1 and flags[0] & os.O_CLOEXEC for flags in holders.values())


def open_flags(pid: int, path: Path) -> list[int]:
    """The flags of each descriptor that a process has of a file."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            is_it = link.readlink() == path.resolve()
            info = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
        except FileNotFoundError:
            continue
        flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
        if is_it and flags is not None:
            found.append(int(flags[1], 8))
    return found


def test_a_program_that_the_owner_started_does_not_keep_the_lock_of_a_dead_owner(
    tmp_path: Path,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    child = psutil.Process(int(owner.stdout.readline()))
    try:
        owner.kill()
        owner.wait()
        owner.stdout.close()  # which the child has too
        assert child.is_running()
        StoreLock.acquire(tmp_path).release()
    finally:
        child.kill()
