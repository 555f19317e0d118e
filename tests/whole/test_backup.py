"""A copy of a running node's directory, made as docs/operations.md says."""

import re
import subprocess
import threading
from pathlib import Path

import pytest

from client.client import Client, connect
from client.results import Receipt
from node.store.checkpoints import PROGRESS_DIR, own_dir
from node.store.opening import open_store
from node.store.verify.verify import verify
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SMALL = (
    "mapped_file_size_commit_log=262144",
    "mapped_file_size_consume_queue=4000",
    "max_hash_slot_num=500",
    "max_index_num=2000",
)
BEFORE, BATCH, BODY_BYTES_MAX = 300, 20, 3000
_BLOCK = re.compile(r"```bash\n(# STORE is .*?)```", re.DOTALL)


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


def count_of(client: Client) -> int:
    return sum(one.max_offset for one in client.offsets("orders"))


def test_a_copy_made_under_load_has_all_that_was_flushed_before_it_began(tmp_path: Path) -> None:
    found = _BLOCK.search(PAGE.read_text())
    assert found, "the page tells no order any more"
    copy = tmp_path / "copy"
    copy.mkdir()
    with RunningNode(tmp_path / "store", SMALL, readers=1) as node:
        load = Load(node.endpoint)
        load.start()
        wait_until(lambda: len(load.receipts) >= BEFORE or not load.is_alive(), "nothing is sent")
        saved = own_dir(node.root) / PROGRESS_DIR
        wait_until(lambda: len(list(saved.glob("*[0-9x]"))) == 3, "the workers save nothing")
        flushed = list(load.receipts)
        variables = {"STORE": str(node.root), "COPY": str(copy), "PATH": "/usr/bin:/bin"}
        subprocess.run(["bash", "-e", "-c", found[1]], env=variables, check=True)
        wait_until(lambda: len(load.receipts) > len(flushed) + BATCH, "the load has ended")
        load.end()
    assert all(receipt.flushed for receipt in flushed)

    assert verify(copy, deep=True).ok
    with open_store(copy) as store:
        stored: set[int] = set()
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            stored.update(columns.physical_offset.tolist())
    assert {receipt.physical_offset for receipt in flushed} <= stored

    with RunningNode(copy, readers=1) as again:
        again.wait_dispatched()
        assert count_of(again.client) == len(stored)
        for receipt in flushed[:: len(flushed) // 20]:
            assert again.client.get(receipt.msg_id).queue_offset == receipt.queue_offset
        again.client.send("orders", b"goes on")
    report = verify(copy, deep=True)
    assert (report.findings, report.records) == ([], len(stored) + 1)
