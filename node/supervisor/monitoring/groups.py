"""Families of metrics with the consumer group as a label, under RocketMQ's names.

The groups with the largest lag have labels of their own, GROUP_ROWS_MAX pairs of a group and a
topic; all others share one pair.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from node.runtime.stats.topic_counts import OTHER_TOPICS
from node.store.run_files import read_group_lags

_LABELS = ("consumer_group", "topic")


def group_families(root: Path, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Yields them from the file of the tasks. `labels` come before those of the group."""
    found = read_group_lags(root)
    node = list(labels.values())
    others = {"group": OTHER_TOPICS, "topic": OTHER_TOPICS, **found["others"]}
    rows = [*found["rows"], others]
    for name, text, value in (
        ("lag", "Messages that groups have not committed.", lambda row: row["lag"]),
        ("inflight", "Messages that members have and did not commit.", _in_flight),
        ("ready", "Messages that no member has yet.", lambda row: row["lag"] - _in_flight(row)),
    ):
        family = GaugeMetricFamily(
            f"rocketmq_consumer_{name}_messages", text, labels=[*labels, *_LABELS]
        )
        for row in rows:
            family.add_metric([*node, row["group"], row["topic"]], value(row))
        yield family
    family = GaugeMetricFamily(
        "rocketmq_consumer_connections", "Members of groups.", labels=[*labels, _LABELS[0]]
    )
    for group, members in _members(found).items():
        family.add_metric([*node, group], members)
    yield family
    family = GaugeMetricFamily(
        "rocketmq_consumer_group_number", "Consumer groups and cursors.", labels=list(labels)
    )
    family.add_metric(node, found["groups"])
    yield family


def _in_flight(row: Mapping[str, Any]) -> int:
    return int(row["in_flight"])


def _members(found: Mapping[str, Any]) -> dict[str, int]:
    """By group; those of groups without a row are together."""
    shown = {row["group"]: row["members"] for row in found["rows"]}
    return {**shown, OTHER_TOPICS: max(0, found["members"] - sum(shown.values()))}
