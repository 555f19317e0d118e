"""A log that loses its tail while workers live, stand still or are dead, and then grows past it.

What they had made of the lost records must go, whatever stands at the same offsets afterwards.
"""

import os
import random
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from keelog.client.results import Receipt
from node.runtime.settings import load_settings
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from node.store.verify.verify import verify
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name
from tests.support.node import RunningNode, wait_until
from workers.rebuild import rebuild

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SEGMENT_BYTES = 262_144
NEVER_MS = 3_600_000
SETTINGS = (
    f"mapped_file_size_commit_log={SEGMENT_BYTES}",
    "mapped_file_size_consume_queue=2000",
    "max_hash_slot_num=100",
    "max_index_num=500",
    # What is appended is flushed by a recovery alone: so far behind may the log be cut.
    f"flush_interval_commit_log={NEVER_MS}",
    f"flush_commit_log_thorough_interval={NEVER_MS}",
    *("flush_interval_consume_queue=50", "flush_consume_queue_least_pages=0"),
)
TOPICS = ("orders", "payments")
ROUNDS = 3
TORN_BYTES = 1024
"""More than a sector: some whole one of it is zero."""


def grow(node: RunningNode, rnd: random.Random, sent: dict[str, Receipt]) -> list[str]:
    """Sends some messages; answers their keys, and notes where they stand."""
    keys = [f"k{len(sent) + number}" for number in range(rnd.randrange(150, 300))]
    with node.client.producer(timeout=60.0) as producer:
        futures = [
            producer.send_nowait(
                rnd.choice(TOPICS), key.encode() * rnd.randrange(1, 300), keys=[key], tags="t"
            )
            for key in keys
        ]
    sent.update(zip(keys, [future.result() for future in futures], strict=True))
    return keys


def tear(root: Path, receipt: Receipt) -> None:
    """As a power loss may: from the middle of this record on the disk has nothing for a while."""
    base = receipt.physical_offset - receipt.physical_offset % SEGMENT_BYTES
    position = receipt.physical_offset - base + 60
    with (root / COMMIT_LOG_DIR / offset_file_name(base)).open("r+b") as file:
        file.seek(position)
        file.write(bytes(min(TORN_BYTES, SEGMENT_BYTES - position)))


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_writer_and_tear(node: RunningNode, receipt: Receipt, others: list[int]) -> None:
    """While the supervisor stands still, so that nobody starts before the log is torn."""
    (writer,) = node.pids()["writer"]
    os.kill(node.pid, signal.SIGSTOP)
    for pid in (writer, *others):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(is_dead(pid) for pid in (writer, *others)), "they live")
    tear(node.root, receipt)
    os.kill(node.pid, signal.SIGCONT)
    wait_until(lambda: node.pids().get("writer", [writer]) != [writer], "no new writer")


def derived_files(root: Path) -> dict[str, bytes]:
    folders = (root / CONSUME_QUEUE_DIR, root / INDEX_DIR)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(files)}


ALSO = pytest.mark.faults


@pytest.mark.parametrize(
    "workers",
    ["alive", pytest.param("stopped", marks=ALSO), pytest.param("killed", marks=ALSO)],
)
def test_queues_and_index_of_a_log_that_was_cut_and_grew_again_are_a_rebuilds(
    tmp_path: Path, workers: str
) -> None:
    rnd = random.Random(workers)
    sent: dict[str, Receipt] = {}
    kept: list[str] = []
    with RunningNode(tmp_path / "store", SETTINGS, readers=1) as node:
        for topic in TOPICS:
            node.client.create_topic(topic, queues=2)
        for _ in range(ROUNDS if workers == "alive" else 2 * ROUNDS):
            keys = grow(node, rnd, sent)
            node.wait_dispatched()
            last = keys[rnd.randrange(len(keys) // 2, len(keys))]
            kept += [key for key in keys if sent[key].physical_offset < sent[last].physical_offset]
            pids = node.pids()
            followers = [*pids["queue"], *pids["index"]]
            for pid in followers if workers == "stopped" else ():
                os.kill(pid, signal.SIGSTOP)
            kill_writer_and_tear(node, sent[last], followers if workers == "killed" else [])
            # The log passes its old end before those who stand still look at it again.
            kept += grow(node, rnd, sent)
            for pid in followers if workers == "stopped" else ():
                os.kill(pid, signal.SIGCONT)
            node.wait_dispatched()
            for topic in TOPICS:
                found = {m.keys[0]: m for m in node.client.tail(topic, "earliest", until_end=True)}
                wanted = {key for key in kept if sent[key].topic == topic}
                assert set(found) == wanted
                assert all(found[key].msg_id == sent[key].msg_id for key in wanted)
    quarantined = list((own_dir(node.root) / QUARANTINE_DIR).iterdir())
    assert len(quarantined) == (ROUNDS if workers == "alive" else 2 * ROUNDS)
    assert verify(node.root, deep=True, settings=load_settings(SETTINGS)).findings == []
    copy = tmp_path / "rebuilt"
    shutil.copytree(node.root, copy, ignore=shutil.ignore_patterns("run"))
    rebuild(copy, settings=load_settings(SETTINGS))
    assert derived_files(copy) == derived_files(node.root)
