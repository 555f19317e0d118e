"""A process that gives no sign of life is as good as dead: reported, ended, replaced."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from node.runtime.state_page import page_path, run_dir
from protocol.errors import MqError, NotFound
from tests.soak.campaign.injection import HANGS, Injector
from tests.support.faults.small_disk import small_ext4
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

pytestmark = pytest.mark.process

LIMIT_S = 2
SETTINGS = (f"node.silence_limit_s={LIMIT_S}",)
PAGES = ["log", *seldom("queue-0-of-1", "index", "reader-0")]


def failing_checks(node: RunningNode) -> dict[str, str]:
    """The checks that keep the node from being ready, with their details."""
    health = node.client.health()
    return {one.name: one.detail for one in health.checks if one.needed and not one.ok}


@pytest.mark.parametrize("role", ["writer", *seldom("reader", "queue", "index")])
def test_a_stopped_process_is_reported_then_replaced_and_nothing_is_lost(
    tmp_path: Path, role: str
) -> None:
    with RunningNode(tmp_path / "store", SETTINGS, queue_workers=1, readers=1) as node:
        sent = node.client.send("orders", b"before", queue_id=0)
        pid = node.kill(role, number=signal.SIGSTOP)
        began = time.monotonic()
        wait_until(lambda: "heartbeat" in failing_checks(node), "health does not notice")
        assert time.monotonic() - began < 3 * LIMIT_S
        assert f"{role}" in failing_checks(node)["heartbeat"]
        assert not node.client.status().ready
        wait_until(lambda: not psutil.pid_exists(pid), "it is not ended")
        wait_until(lambda: not failing_checks(node), "the node does not recover")
        node.wait_all_run()
        assert node.client.get(sent.msg_id).body == b"before"
        node.client.send("orders", b"after", queue_id=0)
        assert node.stderr.count("process gives no sign of life and is killed") == 1


@pytest.mark.faults
@pytest.mark.parametrize("kind", HANGS)
def test_a_loop_without_end_is_ended(tmp_path: Path, kind: str) -> None:
    injector = Injector(tmp_path / "injector")
    store = tmp_path / "store"
    with RunningNode(store, SETTINGS, env=injector.env, queue_workers=1, readers=1) as node:
        pid = node.pids()["writer"][0]
        injector.inject(pid, kind)
        wait_until(lambda: not psutil.pid_exists(pid), "it is not ended")
        node.wait_all_run()
        node.client.send("orders", b"after", queue_id=0)


@pytest.mark.faults
def test_a_supervisor_that_was_stopped_kills_nobody_for_the_time_that_it_missed(
    tmp_path: Path,
) -> None:
    with RunningNode(tmp_path / "store", SETTINGS, queue_workers=1, readers=1) as node:
        before = node.pids()
        os.kill(node.pid, signal.SIGSTOP)
        time.sleep(3 * LIMIT_S)
        os.kill(node.pid, signal.SIGCONT)
        time.sleep(2 * LIMIT_S)
        assert node.pids() == before


@pytest.mark.faults
def test_while_a_call_to_the_disk_hangs_no_second_writer_is_started(tmp_path: Path) -> None:
    with small_ext4(tmp_path, 64) as disk:
        settings = (*SETTINGS, "mapped_file_size_commit_log=1048576")
        with RunningNode(disk / "store", settings, queue_workers=1, readers=1) as node:
            first = node.client.send("orders", b"before", queue_id=0)
            pid = node.pids()["writer"][0]
            subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
            try:
                sender = threading.Thread(target=send_until_answered, args=(node,))
                sender.start()
                hangs = "a call to the disk does not return"
                wait_until(lambda: hangs in failing_checks(node).get("heartbeat", ""), "not told")
                time.sleep(2 * LIMIT_S)
                assert node.pids()["writer"] == [pid]
                writers = [
                    one.pid
                    for one in psutil.Process(node.pid).children()
                    if one.name().startswith("keelog-writer")
                ]
                assert writers == [pid]
            finally:
                subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
            sender.join()
            wait_until(lambda: not failing_checks(node), "the node does not recover")
            assert node.client.get(first.msg_id).body == b"before"
            assert node.stderr.count("process is silent: a call to the disk") >= 1


def send_until_answered(node: RunningNode) -> None:
    """Sends until one is answered: what waits meanwhile ends as an error."""
    with suppress(MqError):
        node.client.send("orders", b"while the disk hangs", queue_id=0)


@pytest.mark.parametrize("slot", PAGES)
@pytest.mark.faults
def test_a_state_page_that_is_lost_under_a_running_node_is_made_anew(
    tmp_path: Path, slot: str
) -> None:
    with RunningNode(tmp_path / "store", SETTINGS, queue_workers=1, readers=1) as node:
        sent = [node.client.send("orders", b"before", queue_id=0).msg_id]
        for damage in ("random", "older", "removed", "replaced"):
            said, before = said_lost(node), node.pids()
            spoil(page_path(node.root, slot), damage)
            wait_until(lambda: said_lost(node) > said, f"{damage}: nobody notices")  # noqa: B023
            wait_until(lambda: node.pids() != before, f"{damage}: it lives on")  # noqa: B023
            node.wait_all_run()
            wait_until(lambda: not failing_checks(node), f"{damage}: the node does not recover")
            sent.append(node.client.send("orders", b"after", queue_id=0).msg_id)
            node.wait_dispatched()
            # A reader looks once a second whether another page has the name of its page.
            wait_until(lambda: is_readable(node, sent[-1]), f"{damage}: the log's old page")
            wait_until(lambda: pulled(node) == sent, f"{damage}: the worker's old page")


def said_lost(node: RunningNode) -> int:
    """How often a process has said that its page was lost."""
    return node.stderr.count("state page lost")


def is_readable(node: RunningNode, msg_id: str) -> bool:
    with suppress(NotFound):
        return node.client.get(msg_id).msg_id == msg_id
    return False


def pulled(node: RunningNode) -> list[str]:
    """What the queue's files have: waiting pulls would be answered from the log itself."""
    return [message.msg_id for message in node.client.pull("orders", 0, 0, wait=0).messages]


@pytest.mark.parametrize("slot", PAGES)
def test_a_node_starts_over_pages_of_random_bytes(tmp_path: Path, slot: str) -> None:
    with RunningNode(tmp_path / "store", SETTINGS, queue_workers=1, readers=1) as node:
        sent = node.client.send("orders", b"before", queue_id=0).msg_id
    spoil(page_path(node.root, slot), "random")
    with RunningNode(tmp_path / "store", SETTINGS, queue_workers=1, readers=1) as again:
        assert again.client.get(sent).body == b"before"
        assert sum(one.restarts or 0 for one in again.client.status().processes) == 0


def spoil(page: Path, damage: str) -> None:
    """Writes over a page, takes its name away, or gives its name to another file."""
    other = run_dir(page.parents[2]) / "other"
    if damage == "random":
        with page.open("r+b") as file:
            file.write(os.urandom(4096))
    elif damage == "older":
        older = page.read_bytes()
        time.sleep(0.5)  # its owner has given other signs of life since
        with page.open("r+b") as file:
            file.write(older)
    elif damage == "removed":
        page.unlink()
    else:
        other.write_bytes(os.urandom(4096))
        other.rename(page)
