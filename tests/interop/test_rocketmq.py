"""RocketMQ's own store and Keelog take turns on one directory, and neither notices the other.

Each test tells how much was compared, and how long it took.
"""

import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from keelog.client.client import Client
from protocol.derived.dispatch_request import LMQ_NAMES, LMQ_OFFSETS
from protocol.derived.file_layouts import CHECKPOINT
from protocol.errors import MqError
from protocol.names import CHECKPOINT_FILE, CONSUME_QUEUE_DIR
from tests.interop import probe
from tests.interop.compare import holds_stored, same_as_keelog, view
from tests.interop.probe import Report, RocketMQ
from tests.interop.traffic import (
    QUEUES,
    Stored,
    lookups_of,
    messages,
    send_all,
    send_one,
    stored_by_rocketmq,
    stored_of,
    topics,
)
from tests.support.golden import GetStore, facts
from tests.support.node import RunningNode

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]

COUNTS = {True: 20_000, False: 8_000}
"""Messages with the checksum of the whole record, and without."""
MIB = 1024 * 1024
SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 2 * MIB,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 8000,
}
RECOVERED_SEGMENTS_MAX = 10
"""After an unclean stop RocketMQ 5.5 walks no more than the newest ten segments (its log says
"maxRecoverNum: 10"); it keeps the index files below them that our checkpoint vouches for. The
checkpoint may be two seconds old, so ten segments must hold more than was written in those."""
PAUSE_S = 0.04
"""Of each of four senders after a batch of 40 KB: at most 4 MB/s, five seconds for ten segments."""
GOLDEN_SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 262_144,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    probe.build()


Tell = Callable[[str], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Shows a line of figures, also when the test is green."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}")

    return say


def settings_of(sizes: dict[str, object], *more: str) -> list[str]:
    """The node's options; it takes RocketMQ's names."""
    return [f"store.{name}={value}" for name, value in sizes.items()] + list(more)


def copy(source: Path, target: Path) -> Path:
    """A copy of a store, holes kept; sockets of a killed node stay behind."""
    subprocess.run(
        ["cp", "-a", "--sparse=always", str(source), str(target)],
        check=True,
    )
    return target


def verify_deep(root: Path, settings: Sequence[str] = ()) -> None:
    """`keelog store verify --deep` has nothing to say."""

    command = [sys.executable, "-m", "keelog", "store", "verify", str(root), "--deep", "--json"]
    for pair in settings:
        command += ["-X", pair]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[:3000]}\n{done.stderr}"


def next_offsets(stored: Iterable[Stored]) -> Counter[tuple[str, int]]:
    """The offset behind the last one of each queue."""
    ends: Counter[tuple[str, int]] = Counter()
    for one in stored:
        queue = one.topic, one.queue_id
        ends[queue] = max(ends[queue], one.queue_offset + 1)
    return ends


def assert_gapless(stored: Iterable[Stored]) -> None:
    """No queue offset twice, none skipped, and log order is queue order."""
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in sorted(stored, key=lambda one: one.physical_offset):
        queues[one.topic, one.queue_id].append(one.queue_offset)
    for name, offsets in queues.items():
        assert offsets == list(range(len(offsets))), f"{name}: {offsets[:10]}…"


def assert_pulled(client: Client, stored: Sequence[Stored]) -> None:
    """The node answers these messages at their queue offsets, and ends each queue behind them."""
    by_queue: dict[tuple[str, int], list[Stored]] = defaultdict(list)
    for one in sorted(stored, key=lambda one: one.queue_offset):
        by_queue[one.topic, one.queue_id].append(one)
    ends = next_offsets(stored)
    for (topic, queue_id), wanted in by_queue.items():
        (offsets,) = client.offsets(topic, queue_id)
        assert offsets.max_offset == ends[topic, queue_id], (topic, queue_id)
        found = {}
        position = wanted[0].queue_offset
        while position < offsets.max_offset:
            answer = client.pull(topic, queue_id, position, max_messages=32)
            assert answer.status == "FOUND", (topic, queue_id, position, answer)
            found.update({message.queue_offset: message for message in answer.messages})
            position = answer.next_begin_offset
        for one in wanted:
            message = found[one.queue_offset]
            assert message.physical_offset == one.physical_offset
            assert (message.unique_key, message.flag) == (one.unique_key, one.flag)
            assert len(message.body) == one.body_length


def assert_found(client: Client, stored: Sequence[Stored]) -> None:
    """The node finds messages by each of their keys, newest first; tried for some of them."""
    by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in sorted(stored, key=lambda one: -one.physical_offset):
        for key in dict.fromkeys((one.unique_key, *one.keys)):
            by_key[one.topic, key].append(one.physical_offset)
    for topic, key in list(by_key)[:: len(by_key) // 500]:
        found = [message.physical_offset for message in client.find(topic, key)]
        assert found == by_key[topic, key], (topic, key)


def write_store(root: Path, settings: Sequence[str], count: int) -> list[Stored]:
    """A new store that a node wrote and left cleanly; all that it acknowledged."""
    with RunningNode(root, settings) as node:
        for name in topics():
            node.client.create_topic(name, QUEUES)
        sent = send_all(node.client, messages(count, topics()))
        node.wait_dispatched()
    assert len(sent) == count
    assert_gapless(sent)
    return sent


@pytest.mark.parametrize("crc", [True, False], ids=["record-crc", "no-record-crc"])
def test_a_store_goes_from_keelog_to_rocketmq_and_back(
    tmp_path: Path, crc: bool, tell: Tell
) -> None:
    """Keelog writes, RocketMQ reads and appends, Keelog carries on, RocketMQ reads it all."""
    root = tmp_path / "store"
    began = time.monotonic()
    settings = settings_of(SIZES, f"enabledAppendPropCRC={str(crc).lower()}")
    java: dict[str, object] = {**SIZES, "enabledAppendPropCRC": str(crc).lower()}
    rocketmq = RocketMQ(tmp_path / "java", {**java, "forceVerifyPropCRC": str(crc).lower()})
    names = topics()

    sent = write_store(root, settings, COUNTS[crc])
    segments = len(list((root / "commitlog").iterdir()))
    assert segments > 5, "too few segments rolled to prove anything"
    tell(f"{len(sent)} messages in {segments} segments: {time.monotonic() - began:.1f} s")

    lookups = lookups_of(sent)
    seen = view(root, lookups)
    report = rocketmq.facts(root, lookups)
    assert not report.state["abortFilePresent"]
    assert report.state["recovery"] == "normal"
    assert report.state["removedByRecovery"] == []
    tell(holds_stored(report, sent))
    tell(f"{same_as_keelog(report, seen)} in {report.seconds:.1f} s")

    targets = ",".join(f"{name}:{QUEUES}" for name in names[:10]) + ",by-rocketmq:2"
    theirs = [stored_by_rocketmq(row) for row in rocketmq.append(root, 2000, targets)]
    both = [*sent, *theirs]
    assert_gapless(both)
    with RunningNode(root, settings) as node:
        node.wait_dispatched()
        assert_pulled(node.client, both)
        more = send_all(node.client, messages(3000, [*names, "by-rocketmq"], seed=8))
        node.wait_dispatched()
        assert_pulled(node.client, [*both, *more])
        assert_found(node.client, [*both, *more])
    everything = [*both, *more]
    assert_gapless(everything)
    verify_deep(root, settings)

    lookups = lookups_of(everything)
    seen = view(root, lookups)
    report = rocketmq.facts(root, lookups)
    tell(same_as_keelog(report, seen))
    tell(holds_stored(report, everything))
    tell(f"whole run: {time.monotonic() - began:.1f} s")


def carry_on(root: Path, settings: Sequence[str], theirs: Report) -> list[Stored]:
    """Keelog opens what RocketMQ left; `theirs` is what RocketMQ itself recovered of a copy.

    It must come to the same end of the log and of every queue, and go on from there.
    """
    queues = {(row["topic"], row["queueId"]): row["maxOffset"] for row in theirs.state["queues"]}
    with RunningNode(root, settings) as node:
        assert node.log_state().appended == theirs.state["maxPhyOffsetAfterLoad"]
        node.wait_dispatched()
        for topic in sorted({topic for topic, _ in queues}):
            for queue in node.client.offsets(topic):
                assert queue.max_offset == queues.get((topic, queue.queue_id), 0), (topic, queue)
        names = sorted({topic for topic, _ in queues})
        sent = send_all(node.client, messages(2000, names, large=0))
        node.wait_dispatched()
        for one in sent:
            assert one.queue_offset == queues.get((one.topic, one.queue_id), 0), one
            queues[one.topic, one.queue_id] = one.queue_offset + 1
    verify_deep(root, settings)
    return sent


@pytest.mark.parametrize("how", ["halted", "killed"])
def test_keelog_carries_on_where_a_killed_rocketmq_ended(
    tmp_path: Path, how: str, tell: Tell
) -> None:
    """`halted` right after its last append, or killed by SIGKILL in the midst of appending."""
    root = tmp_path / "store"
    rocketmq = RocketMQ(tmp_path / "java", SIZES)
    targets = "alpha:4,beta:2,%RETRY%gamma:1"
    if how == "halted":
        rows = rocketmq.append(root, 5000, targets, "kill=true", "maxBody=600")
    else:
        rows = rocketmq.append_and_die(root, targets, after=5000)
    acknowledged = [stored_by_rocketmq(row) for row in rows]
    theirs = rocketmq.facts(copy(root, tmp_path / "copy"))
    assert theirs.state["recovery"] == "abnormal"

    sent = carry_on(root, settings_of(SIZES), theirs)
    everything = [*acknowledged, *sent]
    report = rocketmq.facts(root, lookups_of(everything))
    assert not report.state["abortFilePresent"]
    tell(holds_stored(report, everything, others_max=8 if how == "killed" else 0))


@pytest.mark.parametrize("name", ["small-killed", "small-torn"])
def test_keelog_recovers_a_golden_store_to_the_end_that_rocketmq_found(
    tmp_path: Path, golden_copy: GetStore, name: str, tell: Tell
) -> None:
    """One store whose writer was killed, one that also lost power and so its newest records."""
    root = golden_copy(name)
    rocketmq = RocketMQ(tmp_path / "java", GOLDEN_SIZES)
    theirs = rocketmq.facts(golden_copy(name))
    assert theirs.state["maxPhyOffset"] == facts(name).state["maxPhyOffset"]

    sent = carry_on(root, settings_of(GOLDEN_SIZES), theirs)
    report = rocketmq.facts(root, lookups_of(sent))
    kept = len(theirs.messages)
    assert report.messages[:kept] == theirs.messages
    tell(f"{kept} messages kept, {holds_stored(report, sent, others_max=kept)}")


def test_rocketmq_finds_all_that_a_killed_node_acknowledged(tmp_path: Path, tell: Tell) -> None:
    """Supervisor, writer, workers and readers die by SIGKILL at one moment, under load."""
    root = tmp_path / "store"
    settings = settings_of(SIZES)
    rocketmq = RocketMQ(tmp_path / "java", SIZES)
    names = topics()
    acknowledged: list[Stored] = []
    with RunningNode(root, settings) as node:
        for name in names:
            node.client.create_topic(name, QUEUES)
        senders = [
            threading.Thread(target=_send_until_refused, args=(node.client, seed, acknowledged))
            for seed in range(4)
        ]
        for sender in senders:
            sender.start()
        while segment_count(root) <= RECOVERED_SEGMENTS_MAX + 5:
            time.sleep(0.2)
        node.kill_all()
        for sender in senders:
            sender.join()
    acknowledged.sort(key=lambda one: one.physical_offset)
    assert len(acknowledged) > 500
    assert (root / "abort").exists()
    assert segment_count(root) > RECOVERED_SEGMENTS_MAX
    vouched = CHECKPOINT.read((root / CHECKPOINT_FILE).read_bytes()).logics_physical_offset
    reach = (RECOVERED_SEGMENTS_MAX - 2) * 2 * MIB  # the newest two may have been made ahead
    behind = acknowledged[-1].physical_offset - vouched
    assert behind < reach, "too fast for segments of 2 MiB: RocketMQ does not walk that far"

    report = rocketmq.facts(copy(root, tmp_path / "copy"), lookups_of(acknowledged))
    assert report.state["recovery"] == "abnormal"
    tell(holds_stored(report, acknowledged, others_max=len(acknowledged)))

    with RunningNode(root, settings) as node:
        assert node.log_state().appended == report.state["maxPhyOffsetAfterLoad"]
        ends = next_offsets(acknowledged)
        again = send_all(node.client, messages(1000, names, seed=9))
        assert all(one.queue_offset >= ends[one.topic, one.queue_id] for one in again)
    verify_deep(root, settings)
    everything = [*acknowledged, *again]
    report = rocketmq.facts(root, lookups_of(everything))
    tell(holds_stored(report, everything, others_max=len(acknowledged)))


def segment_count(root: Path) -> int:
    """How many segments the log has."""
    return len(list((root / "commitlog").iterdir()))


def _send_until_refused(client: Client, seed: int, acknowledged: list[Stored]) -> None:
    """Batches and single messages until the node is gone; keeps what was acknowledged."""
    for number in range(10_000):
        batch = list(messages(60, topics(), seed=1000 * seed + number, large=0))
        try:
            with client.producer(timeout=2.0) as producer:
                futures = [producer.send_nowait("", message) for message in batch]
                acknowledged.append(stored_of(batch[0], send_one(client, batch[0])))
            acknowledged += [
                stored_of(message, future.result())
                for message, future in zip(batch, futures, strict=True)
                if future.exception() is None
            ]
        except MqError:
            return
        time.sleep(PAUSE_S)


def test_rocketmq_opens_a_store_in_which_a_topic_was_removed_and_made_again(
    tmp_path: Path, tell: Tell
) -> None:
    """It sees the new topic alone, appends to it, and Keelog goes on; nobody sees the old one."""
    root, names = tmp_path / "store", topics()
    settings = settings_of(SIZES, "enabledAppendPropCRC=true")
    config: dict[str, object] = {**SIZES, "enabledAppendPropCRC": "true"}
    rocketmq = RocketMQ(tmp_path / "java", config)
    with RunningNode(root, settings) as node:
        for name in names:
            node.client.create_topic(name, QUEUES)
        old = send_all(node.client, messages(2000, names))
        node.wait_dispatched()
        assert node.client.delete_topic(names[0]).left_in_log_bytes > 0
        new = send_all(node.client, messages(300, [names[0]], seed=8))
        node.wait_dispatched()
    left = [*(one for one in old if one.topic != names[0]), *new]
    assert_gapless(left)
    report = rocketmq.facts(root, lookups_of(left))
    ends = {(row["topic"], row["queueId"]): row["maxOffset"] for row in report.state["queues"]}
    assert {queue: end for queue, end in ends.items() if end} == dict(next_offsets(left))
    theirs = [stored_by_rocketmq(row) for row in rocketmq.append(root, 200, f"{names[0]}:{QUEUES}")]
    assert_gapless([*left, *theirs])
    with RunningNode(root, settings) as node:
        node.wait_dispatched()
        assert_pulled(node.client, [*left, *theirs])
    verify_deep(root, settings)
    tell(f"{len(left)} messages left of {len(old) + len(new)}, {len(theirs)} by RocketMQ")


def test_light_queues_are_those_that_rocketmq_dispatches(tmp_path: Path, tell: Tell) -> None:
    """A broker with LMQ makes the queues anew from the log that a node wrote; then the node does,
    and the broker finds its own."""
    root, sizes = tmp_path / "store", {**SIZES, "mappedFileSizeConsumeQueue": 4000}
    options = settings_of(sizes, "store.enable_multi_dispatch=true")
    with RunningNode(root, options) as node:
        node.client.create_topic("orders", queues=2)
        for number in range(300):
            properties = {LMQ_NAMES: "%LMQ%a,%LMQ%b", LMQ_OFFSETS: f"{number},{number}"}
            node.client.send("orders", b"%d" % number, tags=f"t{number % 3}", properties=properties)
        node.wait_dispatched()
    ours = root / CONSUME_QUEUE_DIR
    theirs = copy(root, tmp_path / "theirs")
    shutil.rmtree(theirs / CONSUME_QUEUE_DIR)
    broker = RocketMQ(
        tmp_path / "work", {**sizes, "enableLmq": "true", "enableMultiDispatch": "true"}
    )
    broker.facts(theirs)
    made = {
        path.relative_to(theirs / CONSUME_QUEUE_DIR): path.read_bytes()
        for path in (theirs / CONSUME_QUEUE_DIR).rglob("*")
        if path.is_file()
    }
    assert {path.parts[0] for path in made} == {"orders", "%LMQ%a", "%LMQ%b"}
    assert made == {path: (ours / path).read_bytes() for path in made}
    broker.facts(root)
    assert made == {path: (ours / path).read_bytes() for path in made}
    verify_deep(root, options)
    tell(f"{len(made)} queue files, {len(made) // 2} of light queues, byte for byte")
