"""RocketMQ's benchmark of timer messages, unmodified, sees the same at node and broker."""

import sys
from pathlib import Path

import pytest

from tests.clients.examples.running import MARKS, both
from tests.clients.examples.timers import COUNT

pytestmark = MARKS


def test_the_benchmark_of_timer_messages_gets_at_a_node_what_it_gets_at_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = both("timers", tmp_path)
    with capsys.disabled():
        for side, lines in found.items():
            sys.stdout.write(f"\n{side}: {lines[-1]}\n")
    assert found["node"][:-1] == found["broker"][:-1]
    delivered, repeated, early, properties, _ = found["node"]
    assert delivered == f"delivered {COUNT} of {COUNT}, consumed {COUNT}"
    assert repeated == "more than once: 0"
    assert early == "before its time: 0"
    assert "TIMER_OUT_MS" in properties
