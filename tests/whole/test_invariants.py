"""What ARCHITECTURE.md says always holds, as far as one test can show it."""

import os
import random
import re
import shutil
import time
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.runtime.settings import Settings
from node.runtime.state_page import run_dir
from node.store.checkpoints import Floor, load_tails, own_dir
from node.writer.appender import AppendRequest
from node.writer.log.commit_log import FlushJob
from node.writer.recovery import carry_out, examine
from protocol.record.encode import NewMessage, encode_batch
from tests.node.writer.test_appender import Log
from tests.support.node import RunningNode, wait_until

SMALL = (
    "store.mapped_file_size_commit_log=1048576",
    "store.max_hash_slot_num=1000",
    "store.max_index_num=4000",
)
LATE_S_MAX = 8.0
"""Far above the few ms that a lost hint costs, far below the wait of a held pull."""
SECTOR_BYTES = 512


def open_for_writing(pid: int, root: Path) -> set[str]:
    """The files of a store that a process can write to now, by descriptor or by map."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = link.readlink()
            info = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
        except FileNotFoundError:
            continue
        flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
        if flags and int(flags[1], 8) & os.O_ACCMODE and target.is_relative_to(root):
            found.add(str(target.relative_to(root)))
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place = line.split(maxsplit=5)
        if len(place) == 6 and place[1] == "rw-s" and Path(place[5]).is_relative_to(root):
            found.add(str(Path(place[5]).relative_to(root)))
    return found


@pytest.mark.process
def test_each_file_has_one_writing_process(tmp_path: Path) -> None:
    root = (tmp_path / "store").resolve()
    with RunningNode(root, SMALL) as node:
        with node.client.producer() as producer:
            for number in range(5000):
                producer.send_nowait("orders", b"x" * 500, keys=f"k{number}")
        node.wait_dispatched()
        writers: dict[str, set[str]] = defaultdict(set)
        for role, pids in {**node.pids(), "supervisor": [node.pid]}.items():
            for number, pid in enumerate(pids):
                for name in open_for_writing(pid, root):
                    writers[name].add(f"{role} {number}")
    writers.pop("lock")  # supervisor and writer hold one half each; nobody writes there
    assert all(len(who) == 1 for who in writers.values()), writers
    for folder, role in (("commitlog/", "writer"), ("consumequeue/", "queue"), ("index/", "index")):
        who = set().union(*(who for name, who in writers.items() if name.startswith(folder)))
        assert who
        assert all(one.startswith(role) for one in who)


def restart(node: RunningNode, role: str) -> None:
    """Kills the one process of a role and waits for its successor."""
    old = node.kill(role)
    wait_until(lambda: node.pids().get(role, [old]) != [old], f"no new {role}")
    node.wait_all_run()


@pytest.mark.process
@pytest.mark.timeout(180)
def test_losing_every_hint_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", SMALL, queue_workers=1, readers=1) as node:
        run = run_dir(node.root)
        # Whoever connects to a socket whose name is gone is not heard, and never learns of it.
        for deaf, mute in (("reader", "queue"), ("queue", "writer"), ("index", "writer")):
            [bell] = run.glob(f"{deaf}*.bell")
            bell.unlink()
            restart(node, mute)
        node.client.create_topic("orders", queues=1)
        for number in range(8):
            began = time.monotonic()
            sent = node.client.send("orders", b"late?", keys=f"k{number}")
            found = node.client.pull("orders", 0, sent.queue_offset, wait=20.0)
            assert [one.msg_id for one in found.messages] == [sent.msg_id]
            assert time.monotonic() - began < LATE_S_MAX
        wait_until(lambda: any(node.client.find("orders", "k7")), "the index does not follow")
        assert not list(run.glob("*.bell"))


class Disk:
    """What is durable of a folder: of each file what stood there when it was last synced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable: dict[str, bytes] = {}

    def sync(self, descriptor: int) -> None:
        """In the place of fdatasync."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self._durable[path.name] = path.read_bytes()

    def lose_power(self, rnd: random.Random) -> None:
        """Of what was not synced each sector has reached the disk, or has not."""
        for path in self._folder.iterdir():
            data = bytearray(path.read_bytes())
            durable = self._durable.get(path.name, bytes(len(data)))
            for start in range(0, len(data), SECTOR_BYTES):
                if rnd.random() < 0.5:
                    data[start : start + SECTOR_BYTES] = durable[start : start + SECTOR_BYTES]
            path.write_bytes(data)


def any_batch(rnd: random.Random) -> AppendRequest:
    messages = [
        NewMessage("orders", rnd.randbytes(rnd.randrange(3000)), queue_id=rnd.randrange(4))
        for _ in range(rnd.randrange(1, 8))
    ]
    batch = encode_batch(messages, crc=True)
    return AppendRequest(batch.records, len(batch.sizes))


@given(seed=st.integers(0, 10**6))
def test_what_was_acknowledged_as_flushed_survives_a_power_loss(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rnd = random.Random(seed)
    log = Log(tmp_path_factory.mktemp("power") / "store")
    own_dir(log.root).mkdir(exist_ok=True)
    disk, flushed = Disk(log.root / "commitlog"), 0
    for _ in range(rnd.randrange(1, 25)):
        job: FlushJob = log.log.flush_job()
        # What is appended while a flush runs is not covered by it.
        log.append(any_batch(rnd), now_ms=5_000)
        if rnd.random() < 0.4:
            job.run(disk.sync)
            log.log.flushed_to(job.target)
            flushed = job.target
    acknowledged = [one for one in log.records() if one.head.physical_offset < flushed]
    if rnd.random() < 0.8:  # the floor is written behind the sync and not synced itself
        floor = Floor(log.root)
        floor.save(flushed)
        floor.close()
    log.log.close(unlink_next=False)
    disk.lose_power(rnd)
    found = examine(log.root, Settings())
    assert found.end >= flushed
    carry_out(found)
    assert log.records()[: len(acknowledged)] == acknowledged
    shutil.rmtree(log.root)


@pytest.mark.process
def test_a_clean_stop_only_changes_where_the_recovery_walk_starts(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SMALL) as node, node.client.producer() as producer:
        for number in range(3000):
            producer.send_nowait(f"topic{number % 3}", b"x" * 600)
    assert (own_dir(root) / "clean").exists()
    assert not (root / "abort").exists()
    clean = examine(root, Settings())
    tails = load_tails(root)
    assert tails is not None
    assert tails.at == clean.end
    (own_dir(root) / "clean").unlink()
    (own_dir(root) / "tails").unlink()
    (root / "abort").touch()
    walked = examine(root, Settings())
    assert (walked.end, walked.tails, walked.cut) == (clean.end, clean.tails, None)
    assert walked.last_store_timestamp == clean.last_store_timestamp
