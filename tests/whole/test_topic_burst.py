"""Many new topics at once."""

import json
import time
from pathlib import Path

import pytest

from tests.support.node import RunningNode

TOPICS = 3_000
BURST_S = 10.0


@pytest.mark.faults
@pytest.mark.process
def test_a_producers_burst_of_3000_new_topics_is_stored_within_seconds(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store") as node:
        began = time.monotonic()
        with node.client.producer() as producer:
            futures = [producer.send_nowait(f"topic-{i}", b"%d" % i) for i in range(TOPICS)]
            assert {future.result(60).status for future in futures} == {"PUT_OK"}
        assert time.monotonic() - began < BURST_S
        table = json.loads((node.root / "config/topics.json").read_text())
        assert len(table["topicConfigTable"]) == TOPICS
        assert table["dataVersion"]["counter"] < TOPICS // 10
