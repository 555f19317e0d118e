"""Processes that clients wait for have short time slices, and workers that keep up are nice."""

import ctypes
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node.runtime.process import SHORT_SLICE_NS
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from tests.support.golden import GetStore
from tests.support.node import RunningNode
from workers.process import NICE

GET_CALL = {"x86_64": 315, "aarch64": 275}
SINCE = (6, 12)
"""The Linux whose normal tasks have slices of their own."""
TAKE = "from node.runtime.process import take_short_slices; take_short_slices(); "
WAIT = "print(flush=True); input()"
WORKER = """
import os, sys
from importlib import import_module
from workers import process
from workers.dispatch import Dispatcher

def said(self, turn=Dispatcher.turn):
    waiting_bytes = self._feed.peek().readable - self.done
    print(waiting_bytes, os.getpriority(os.PRIO_PROCESS, 0), flush=True)
    return turn(self)

Dispatcher.turn = said
process.LATE_BYTES = int(sys.argv.pop(1))
sys.exit(import_module(sys.argv[1]).main(sys.argv[2:]))
"""
"""A worker that prints before each turn how much waits for it, and its thread's niceness."""
NORMAL, BATCH = 0, 3


def scheduling(pid: int) -> tuple[int, int, int]:
    """Policy, nice and time slice in ns of a process's first thread, by `sched_getattr`."""
    found = ctypes.create_string_buffer(48)
    call = ctypes.CDLL(None, use_errno=True).syscall
    assert call(GET_CALL[platform.machine()], pid, found, 48, 0) == 0
    _, policy, _, nice, _, slice_ns, *_ = struct.unpack("=IIQiIQQQ", found.raw)
    return policy, nice, slice_ns


def has_slices() -> bool:
    major, minor = platform.release().split(".")[:2]
    return platform.machine() in GET_CALL and (int(major), int(minor)) >= SINCE


needs_slices = pytest.mark.skipif(not has_slices(), reason="Linux 6.12 on x86-64 or ARM")


def of_child(program: str, before: Callable[[], object]) -> tuple[int, int, int]:
    """The scheduling of a program that waits for a line, after `before` in its process."""
    command = [sys.executable, "-c", program + WAIT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=before
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        found = scheduling(child.pid)
        child.stdin.write(b"\n")
        child.stdin.close()
    assert child.returncode == 0
    return found


@pytest.mark.process
@needs_slices
def test_writer_and_readers_have_short_slices_and_workers_do_not(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "s", queue_workers=1, readers=1) as node:
        pids = {role: numbers[0] for role, numbers in node.pids().items()}
        slices = {role: scheduling(pid)[2] for role, pid in pids.items()}
    own = scheduling(0)[2]
    assert slices["writer"] == slices["reader"] == SHORT_SLICE_NS
    assert slices["queue"] == slices["index"] == own > SHORT_SLICE_NS


@pytest.mark.process
@pytest.mark.parametrize(("late_bytes", "nice"), [(1 << 30, NICE), (20_000, 0)])
@pytest.mark.parametrize(
    "worker", [("workers.index_file",), ("workers.consume_queue", "--shard", "0", "--shards", "1")]
)
def test_a_worker_is_nice_in_a_long_turn_unless_it_is_late(
    golden_copy: GetStore, worker: tuple[str, ...], late_bytes: int, nice: int
) -> None:
    root = golden_copy("small-clean")
    for folder in (CONSUME_QUEUE_DIR, INDEX_DIR):
        shutil.rmtree(root / folder)
    module, *options = worker
    command = [sys.executable, "-c", WORKER, str(late_bytes), module, str(root), "--once", *options]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    turns = [tuple(map(int, line.split())) for line in ended.stdout.splitlines()]
    assert turns[0][0] > 20_000
    assert [niceness - own for _, niceness in turns[:2]] == [nice, 0]
    assert turns[1][0] == 0


@needs_slices
def test_niceness_stays_as_it_was() -> None:
    assert of_child(TAKE, lambda: os.nice(5)) == (NORMAL, 5, SHORT_SLICE_NS)


@needs_slices
def test_a_policy_that_somebody_has_chosen_stays() -> None:
    def choose() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    assert of_child(TAKE, choose) == of_child("", choose)
    assert of_child(TAKE, choose)[0] == BATCH


@needs_slices
def test_on_another_processor_nothing_is_asked() -> None:
    other = "import platform; platform.machine = lambda: 'vax'; "
    assert of_child(other + TAKE, lambda: None) == of_child("", lambda: None)
