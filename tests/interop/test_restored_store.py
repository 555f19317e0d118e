"""RocketMQ opens a store that was backed up and restored, and reads every message of it."""

from pathlib import Path

import pytest

from keelog.restore import restore
from node.store.backup.backup import backup
from tests.interop import probe
from tests.interop.probe import RocketMQ
from tests.support.golden import GetStore, facts
from tests.support.node import RunningNode

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]

SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 262_144,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    probe.build()


@pytest.mark.parametrize("name", ["small-clean", "small-killed"])
def test_rocketmq_opens_a_restored_store_of_its_own(
    name: str, tmp_path: Path, golden: GetStore
) -> None:
    backup(golden(name), tmp_path / "out")
    restore(tmp_path / "out", tmp_path / "copy")
    report = RocketMQ(tmp_path / "java", SIZES).facts(tmp_path / "copy")
    found = facts(name)
    assert [row["physicalOffset"] for row in report.messages] == [
        row["physicalOffset"] for row in found.messages
    ]
    places = {(row["topic"], row["queueId"], row["index"]): row for row in found.queue_units}
    assert {(row["topic"], row["queueId"], row["index"]) for row in report.units} == places.keys()


def test_rocketmq_opens_a_restored_store_of_a_running_node(tmp_path: Path) -> None:
    settings = [
        "mapped_file_size_commit_log=262144", "mapped_file_size_consume_queue=4000",
        "max_hash_slot_num=500", "max_index_num=2000",
    ]  # fmt: skip
    with RunningNode(tmp_path / "store", settings) as node:
        with node.client.producer(timeout=60.0) as producer:
            receipts = producer.send_many("orders", [bytes(500)] * 2000, keys="k")
        backup(node.root, tmp_path / "out")
    restore(tmp_path / "out", tmp_path / "copy")
    report = RocketMQ(tmp_path / "java", SIZES).facts(tmp_path / "copy")
    sent = {receipt.physical_offset for receipt in receipts}
    assert {row["physicalOffset"] for row in report.messages} == sent
    assert {row["physicalOffset"] for row in report.units} == sent
