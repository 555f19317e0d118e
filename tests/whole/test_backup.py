"""Backups of a running node, by the commands: killed and resumed, restored and served."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from keelog.client.client import Client, connect
from keelog.client.results import Receipt
from node.store.backup.folder import load_manifest
from node.store.opening import open_store
from node.store.verify.verify import verify
from protocol.names import COMMIT_LOG_DIR
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SMALL = (
    "mapped_file_size_commit_log=262144",
    "mapped_file_size_consume_queue=4000",
    "max_hash_slot_num=500",
    "max_index_num=2000",
)
BEFORE, BATCH, BODY_BYTES_MAX = 300, 20, 3000


class Load(threading.Thread):
    """Sends one message after the other, each acknowledged when it is on disk."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self._endpoint = endpoint
        self._is_over = threading.Event()
        self.receipts: list[Receipt] = []

    def run(self) -> None:
        with (
            connect(self._endpoint, timeout=60.0) as client,
            client.producer(timeout=60.0, acks="flushed", linger=0.001) as producer,
        ):
            while not self._is_over.is_set():
                number = len(self.receipts)
                body = b"%d " % number + b"x" * (number * 37 % BODY_BYTES_MAX)
                futures = [
                    producer.send_nowait("orders", body, keys=f"k{number}-{part}")
                    for part in range(BATCH)
                ]
                self.receipts += [future.result() for future in futures]

    def end(self) -> None:
        self._is_over.set()
        self.join(60)
        assert not self.is_alive()


def words(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "keelog", "store", *map(str, arguments), "--json"]


def keelog_store(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(words(*arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def end_in(out: Path) -> int:
    """How far a backup that may be under way has come."""
    manifest = load_manifest(out) if (out / "backup.json").exists() else None
    return -1 if manifest is None else manifest.end


def killed_backup(root: Path, out: Path) -> int:
    """A backup that is killed as soon as its manifest says more than before; returns its end."""
    before = end_in(out)
    process = subprocess.Popen(words("backup", root, out), stdout=subprocess.DEVNULL)
    while process.poll() is None and end_in(out) == before:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return end_in(out)


def log_bytes(root: Path, end: int) -> bytes:
    paths = sorted((root / COMMIT_LOG_DIR).glob("0*"))
    return b"".join(path.read_bytes() for path in paths if int(path.name) < end)[:end]


def count_of(client: Client) -> int:
    return sum(one.max_offset for one in client.offsets("orders"))


def everything(client: Client) -> list[tuple[int, int, bytes]]:
    return sorted(
        (message.queue_id, message.queue_offset, bytes(message.body))
        for message in client.tail("orders", "earliest", until_end=True)
    )


@pytest.mark.faults
def test_backups_under_load_hold_all_that_was_flushed_before_they_began(tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with RunningNode(tmp_path / "store", SMALL, readers=1) as node:
        load = Load(node.endpoint)
        load.start()
        wait_until(lambda: len(load.receipts) >= BEFORE or not load.is_alive(), "nothing is sent")
        killed_backup(node.root, out)
        first = keelog_store("backup", node.root, out)
        before = list(load.receipts)
        wait_until(lambda: len(load.receipts) > len(before) + BATCH, "the load has ended")
        flushed = list(load.receipts)
        second = keelog_store("backup", node.root, out)
        wait_until(lambda: len(load.receipts) > len(flushed) + BATCH, "the load has ended")
        load.end()
        end = second["to"]
        assert log_bytes(out, end) == log_bytes(node.root, end)
        wanted = everything(node.client)
    assert (first["from"], second["from"], second["verified"]) == (0, 0, True)
    assert second["bytes"] == second["to"] - first["to"] > 0
    assert max(receipt.physical_offset for receipt in flushed) < end

    restored = keelog_store("restore", out, copy)
    assert (restored["to"], restored["verified"]) == (end, True)
    assert log_bytes(copy, end) == log_bytes(out, end)
    report = verify(copy, deep=True)
    assert (report.findings, report.clean_shutdown) == ([], True)
    with open_store(copy) as store:
        stored: set[int] = set()
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            stored.update(columns.physical_offset.tolist())
    assert {receipt.physical_offset for receipt in flushed} <= stored

    with RunningNode(copy, readers=1) as again:
        again.wait_dispatched()
        found = everything(again.client)
        assert len(found) == len(stored) == count_of(again.client)
        assert set(found) <= set(wanted)
        for receipt in flushed[:: len(flushed) // 20]:
            assert again.client.get(receipt.msg_id).queue_offset == receipt.queue_offset
        again.client.send("orders", b"goes on")
    report = verify(copy, deep=True)
    assert (report.findings, report.records) == ([], len(stored) + 1)


@pytest.mark.faults
def test_a_backup_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    with RunningNode(root, SMALL) as node:
        with node.client.producer(timeout=60.0) as producer:
            producer.send_many("orders", [bytes(2000)] * 3000)
        node.wait_dispatched()
    ends = [killed_backup(root, out) for _ in range(5)]
    assert ends == sorted(ends), "a later one never begins anew"
    assert ends[-1] > 0
    done = keelog_store("backup", root, out)
    assert done["bytes"] == done["to"] - ends[-1]
    assert log_bytes(out, done["to"]) == log_bytes(root, done["to"])
    assert keelog_store("restore", out, tmp_path / "copy")["verified"]


def test_the_commands_say_what_they_refuse(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with RunningNode(tmp_path / "store", SMALL) as node:
        node.client.send("orders", b"x")
    for arguments, said in (
        (("backup", tmp_path / "store", tmp_path / "out"), "has no backup.json: it holds 'mine'"),
        (("restore", tmp_path / "out", tmp_path / "copy"), "has no backup.json: it holds 'mine'"),
        (("backup", tmp_path / "no", tmp_path / "new"), "does not exist"),
    ):
        done = subprocess.run(words(*arguments), capture_output=True, text=True, check=False)
        assert done.returncode == 1
        lines = done.stderr.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["error", "cause", "try"]
        assert said in lines[1]
    assert not (tmp_path / "new").exists()
