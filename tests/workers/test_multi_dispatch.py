"""Light queues, which a broker with multi-dispatch makes: kept, gone on with, made anew."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.store.opening import StoppedStore
from node.store.queues import list_queues
from node.store.verify.verify import verify
from node.writer.recovery import examine
from protocol.derived.dispatch_request import LMQ_NAMES, LMQ_OFFSETS, lmq_offsets
from protocol.errors import StoreError
from protocol.ids import Queue
from protocol.names import BATCH_QUEUE_DIR, CONSUME_QUEUE_DIR, SCHEDULE_TOPIC
from protocol.record.encode import NewMessage
from tests.support.node import RunningNode
from tests.workers.living_log import SETTINGS, LivingLog, derived
from workers.rebuild import rebuild

WITH_LMQ = replace(SETTINGS, enable_multi_dispatch=True)
COUNT = 60
A, B = Queue("%LMQ%a", 0), Queue("%LMQ%b", 0)


def named(number: int) -> NewMessage:
    """A message that a broker put into two light queues, in one of them each third time."""
    names = {"%LMQ%a": number} | ({"%LMQ%b": number // 3} if number % 3 == 0 else {})
    properties = {
        LMQ_NAMES: ",".join(names),
        LMQ_OFFSETS: ",".join(str(offset) for offset in names.values()),
    }
    return NewMessage("orders", b"body", number % 2, tags="T", properties=properties)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store as such a broker left it: nothing of ours beside its queues."""
    log = LivingLog(tmp_path / "store")
    for number in range(COUNT):
        log.append(named(number))
    log.publish()
    log.close()
    rebuild(log.root, settings=WITH_LMQ)
    return log.root


def queues_of(root: Path) -> dict[str, str]:
    return {name: mark for name, mark in derived(root).items() if name.startswith("consumequeue/")}


def messages(root: Path, queue: Queue) -> int:
    with StoppedStore(root, WITH_LMQ) as store:
        return store.files_of(queue).end_below(2**63 - 1, thorough=True)


def test_a_record_has_a_unit_in_each_light_queue_that_it_names(root: Path) -> None:
    assert set(list_queues(root)) == {A, B, Queue("orders", 0), Queue("orders", 1)}
    assert (messages(root, A), messages(root, B)) == (COUNT, COUNT // 3)


def test_a_rebuild_gives_light_queues_anew_without_being_asked(root: Path) -> None:
    before = queues_of(root)
    rebuild(root, settings=SETTINGS)
    assert queues_of(root) == before


def test_without_light_queues_and_the_setting_records_have_their_own_queue_alone(
    root: Path,
) -> None:
    shutil.rmtree(root / CONSUME_QUEUE_DIR)
    rebuild(root, settings=SETTINGS)
    assert set(list_queues(root)) == {Queue("orders", 0), Queue("orders", 1)}


def test_verify_knows_the_units_of_light_queues(root: Path) -> None:
    assert verify(root, deep=True, settings=WITH_LMQ).findings == []
    path = root / CONSUME_QUEUE_DIR / B.topic / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[20:28] = data[:8]
    path.write_bytes(data)
    kinds = {finding.kind for finding in verify(root, deep=True, settings=WITH_LMQ).findings}
    assert kinds == {"unit_mismatch"}


@pytest.mark.process
def test_a_node_keeps_light_queues_and_adds_what_the_broker_had_not_dispatched(root: Path) -> None:
    before = queues_of(root)
    path = root / CONSUME_QUEUE_DIR / A.topic / "0"
    last = sorted(path.iterdir())[-1]
    last.write_bytes(bytes(last.stat().st_size))  # units that a kill took
    shutil.rmtree(root / "keelog")
    settings = ["mapped_file_size_consume_queue=200", "max_hash_slot_num=7", "max_index_num=40"]
    with RunningNode(root, settings) as node:
        node.client.send("orders", b"more", queue_id=0)
        node.wait_dispatched()
    assert messages(root, A) == COUNT
    after = queues_of(root)
    kept = {name for name, mark in before.items() if after.get(name) == mark}
    assert {name for name in before if "%LMQ%" in name} <= kept


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("t", {}),
        ("t", {LMQ_NAMES: "%LMQ%a"}),
        ("t", {LMQ_NAMES: "%LMQ%a,%LMQ%b", LMQ_OFFSETS: "1"}),
        ("t", {LMQ_NAMES: "other", LMQ_OFFSETS: "1"}),
        ("t", {LMQ_NAMES: "%LMQ%a/../b", LMQ_OFFSETS: "1"}),
        ("t", {LMQ_NAMES: "%LMQ%a", LMQ_OFFSETS: "null"}),
        ("t", {LMQ_NAMES: "%LMQ%a", LMQ_OFFSETS: "9" * 30}),
        ("%RETRY%g", {LMQ_NAMES: "%LMQ%a", LMQ_OFFSETS: "1"}),
        ("rmq_sys_x", {LMQ_NAMES: "%LMQ%a", LMQ_OFFSETS: "1"}),
        (SCHEDULE_TOPIC, {LMQ_NAMES: "%LMQ%a", LMQ_OFFSETS: "1"}),
        # An empty offset at the end, of a name without the prefix, counts as none.
        ("t", {LMQ_NAMES: "%LMQ%a,other", LMQ_OFFSETS: "1,"}),
    ],
)
def test_what_a_broker_does_not_dispatch_has_no_light_queue(
    topic: str, properties: dict[str, str]
) -> None:
    assert lmq_offsets(topic, properties) == {}
    assert lmq_offsets("t", {LMQ_NAMES: "%LMQ%a,other", LMQ_OFFSETS: "7,8"}) == {"%LMQ%a": 7}


def test_names_that_end_in_a_separator_are_read_as_a_broker_reads_them() -> None:
    assert lmq_offsets("t", {LMQ_NAMES: "%LMQ%a,", LMQ_OFFSETS: "7"}) == {"%LMQ%a": 7}


@pytest.fixture
def with_batches(root: Path) -> Iterator[Path]:
    (root / BATCH_QUEUE_DIR / "batches" / "0").mkdir(parents=True)
    yield root


def test_a_store_with_queues_of_batches_is_refused_by_name_and_stays(with_batches: Path) -> None:
    before = derived(with_batches)
    with pytest.raises(StoreError, match=r"batches is a queue of batches"):
        examine(with_batches, Settings())
    with pytest.raises(StoreError, match=r"batches is a queue of batches"):
        rebuild(with_batches, settings=SETTINGS)
    rebuild(with_batches, queues=False, settings=SETTINGS)
    assert derived(with_batches) == before
