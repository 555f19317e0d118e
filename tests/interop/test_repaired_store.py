"""RocketMQ opens a store that was damaged and repaired, and reads all that was not lost."""

import shutil
from pathlib import Path

import pytest

from keelog.restore import repair
from node.runtime.settings import Settings
from protocol.record.lost_marker import LOST_TOPIC
from tests.interop import probe
from tests.interop.probe import RocketMQ
from tests.support.golden import GetStore, facts

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]

SEGMENT_BYTES = 262_144
SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
SETTINGS = Settings(mapped_file_size_consume_queue=4000, max_hash_slot_num=500, max_index_num=2000)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    probe.build()


def test_rocketmq_rebuilds_the_queues_of_a_repaired_store_without_a_shift(
    tmp_path: Path, golden_copy: GetStore
) -> None:
    root = golden_copy("small-clean")
    messages = facts("small-clean").messages
    queued = [message for message in messages if message["queued"]]
    last = {(m["topic"], m["queueId"]): m["physicalOffset"] for m in queued}
    # In the newest segments, of which RocketMQ makes the queues anew: a record, and the one before
    # a segment's blank. And the last one of a queue, of which nobody knows that it was there.
    border = queued[-1]["physicalOffset"] // SEGMENT_BYTES * SEGMENT_BYTES
    before_blank = max(m["physicalOffset"] for m in queued if m["physicalOffset"] < border)
    lost = {queued[-20]["physicalOffset"], before_blank, min(last.values())}
    for offset in lost:
        path = root / "commitlog" / f"{offset - offset % SEGMENT_BYTES:020d}"
        with path.open("r+b") as file:
            file.seek(offset % SEGMENT_BYTES + 4)
            file.write(b"\xee" * 60)
    shutil.rmtree(root / "consumequeue")
    done = repair(root, SETTINGS)
    assert done.report.ok, done.report.findings
    shutil.rmtree(root / "consumequeue", ignore_errors=True)
    report = RocketMQ(tmp_path / "java", SIZES).facts(root)
    assert len(report.messages) == len(messages)
    told = {row["physicalOffset"]: row for row in report.messages}
    for message in messages:
        if message["physicalOffset"] not in lost:
            row = told[message["physicalOffset"]]
            assert (row["topic"], row["queueId"], row["queueOffset"]) == (
                message["topic"],
                message["queueId"],
                message["queueOffset"],
            )
    unknown = told[min(last.values())]
    assert (unknown["topic"], unknown["queued"]) == (LOST_TOPIC, False)
    assert LOST_TOPIC not in {row["topic"] for row in report.units}
    places = {(m["topic"], m["queueId"], m["queueOffset"]): m["physicalOffset"] for m in queued}
    for row in report.units:
        assert places[row["topic"], row["queueId"], row["index"]] == row["physicalOffset"]
    rebuilt = {row["physicalOffset"] for row in report.units}
    assert lost - rebuilt == {min(last.values())}
    assert len(rebuilt) > 1000
