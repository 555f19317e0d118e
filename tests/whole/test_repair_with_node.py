"""A node that refuses a damaged log, the repair, and the node that serves all the rest of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import RunningNode

pytestmark = pytest.mark.process

SETTINGS = ("flush_disk_type=SYNC_FLUSH", "mapped_file_size_commit_log=65536")
COUNT = 40


def keelog(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "keelog", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


# Long: a quarter of a minute.
@pytest.mark.faults
def test_a_node_refuses_is_repaired_and_serves_all_but_the_lost_message(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SETTINGS, readers=1) as node:
        node.client.create_topic("orders", 1)
        node.client.send("orders", b"first")
    node = RunningNode(root, SETTINGS, readers=1)
    node.start()
    receipts = [node.client.send("orders", b"%d" % number) for number in range(COUNT)]
    node.wait_dispatched()
    node.kill_all()
    lost = receipts[COUNT // 2]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(lost.physical_offset + 88)
        byte = file.read(1)[0]
        file.seek(lost.physical_offset + 88)
        file.write(bytes([byte ^ 1]))

    refused = RunningNode(root, SETTINGS, readers=1)
    refused.begin()
    assert refused.wait() == 5
    assert f"offset {lost.physical_offset}" in refused.stderr
    assert f"keelog store repair {root}" in refused.stderr

    planned = keelog("store", "repair", str(root), "--json")
    assert planned.returncode == 5, planned.stderr
    queue = {"topic": "orders", "queue_id": 0, "from": lost.queue_offset, "to": lost.queue_offset}
    assert json.loads(planned.stdout)["lost"]["queues"] == [queue]
    applied = keelog("store", "repair", str(root), "--apply", "--json")
    assert applied.returncode == 0, applied.stderr

    with RunningNode(root, SETTINGS, readers=1) as node:
        more = node.client.send("orders", b"more")
        node.wait_dispatched()
        found = list(node.client.tail("orders", "earliest", until_end=True))
    assert more.queue_offset == COUNT + 1
    assert [message.queue_offset for message in found] == list(range(COUNT + 2))
    bodies = [b"first", *(b"%d" % number for number in range(COUNT)), b"more"]
    bodies[lost.queue_offset] = b""
    assert [message.body for message in found] == bodies
    assert found[lost.queue_offset].properties["KEELOG_LOST"].strip() == "damaged"
    assert keelog("store", "verify", str(root), "--deep").returncode == 0


@pytest.mark.faults
def test_damage_before_the_dispatch_costs_who_reads_to_the_end_that_message(
    tmp_path: Path,
) -> None:
    """A node does not look at the whole log when it starts: its queue worker meets the damage."""
    root = tmp_path / "store"
    with RunningNode(root, SETTINGS, readers=1) as node:
        node.client.create_topic("orders", 2)
        receipts = [
            node.client.send("orders", b"%d" % number, queue_id=0) for number in range(COUNT)
        ]
        node.client.send("orders", b"other", queue_id=1)
        node.wait_dispatched()
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(receipts[-2].physical_offset)
        file.write(bytes(64))
    with RunningNode(root, SETTINGS, readers=1) as node:
        read = keelog("consume", "orders", "-e", "--node", node.endpoint, "-f", "%q %o\n")
        found = [
            (message.queue_id, message.queue_offset)
            for message in node.client.tail("orders", "earliest", until_end=True, on_damage="skip")
        ]
    others = [(0, number) for number in range(COUNT) if number != COUNT - 2] + [(1, 0)]
    assert read.stdout.split("\n")[:-1] == [f"{queue} {offset}" for queue, offset in others]
    assert read.returncode == 5
    assert f"offset {receipts[-2].physical_offset}" in read.stderr
    assert sorted(found) == others
