"""RocketMQ's benchmarks of producers and a consumer run at a node as at a broker, unmodified."""

import re
import sys
from pathlib import Path

import pytest

from tests.clients.examples.running import MARKS, both

pytestmark = MARKS


def test_the_benchmarks_send_and_consume_all_at_a_node_as_at_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = both("benchmark", tmp_path)
    told = {}
    for side, lines in found.items():
        told[side] = [line for line in lines if not line.startswith("figure: ")]
        with capsys.disabled():
            for line in lines[len(told[side]) :]:
                sys.stdout.write(f"\n{side}: {line.removeprefix('figure: ')}")
    assert told["node"] == told["broker"]
    *producers, consumer = told["node"]
    assert len(producers) == 2
    assert all("Failed" in line and "'0'" in line for line in producers)
    assert not any(re.search("'[1-9]", line) for line in producers)
    assert consumer == "consumer: Consume Fail: 0, all: True"
