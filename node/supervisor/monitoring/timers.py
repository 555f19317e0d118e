"""Families of metrics of timer messages."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from node.runtime.stats.timer_state import read_timer_state


def timer_families(root: Path, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Yields them from the file of the tasks."""
    found, node = read_timer_state(root), list(labels.values())
    for name, text, value in (
        ("rocketmq_timing_messages", "Timer messages that wait.", found.pending),
        (
            "keelog_timer_late_seconds",
            "By how much the latest delivery of the last second came late.",
            found.late_ms / 1000,
        ),
    ):
        gauge = GaugeMetricFamily(name, text, labels=list(labels))
        gauge.add_metric(node, value)
        yield gauge
    text = "Timer messages delivered since the tasks began."
    counter = CounterMetricFamily("rocketmq_timer_dequeue", text, labels=list(labels))
    counter.add_metric(node, found.delivered)
    yield counter
