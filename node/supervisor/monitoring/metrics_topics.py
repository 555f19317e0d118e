"""Families with a topic as label: RocketMQ's names, from what readers and queue workers count."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, Metric

from node.runtime.stats.series import QUEUE, READER
from node.runtime.stats.topic_counts import OTHER_TOPICS, TOPICS_MAX, Count, read_topics


class TopicFamilies:
    """The first TOPICS_MAX topics have a label of their own, for as long as the supervisor runs."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """`labels` stand before the topic."""
        self._labels = dict(labels)
        self._listed: dict[str, None] = {}

    def collect(self, root: Path) -> Iterator[Metric]:
        """The families, of one moment."""
        came, went = self._capped(read_topics(root, QUEUE)), self._capped(read_topics(root, READER))
        messages = {topic: count.messages for topic, count in came.items()}
        yield self._family("rocketmq_messages_in", "Messages placed into queues.", messages)
        messages = {topic: count.messages for topic, count in went.items()}
        yield self._family("rocketmq_messages_out", "Messages handed out by readers.", messages)
        sizes = {topic: count.bytes for topic, count in went.items()}
        yield self._family("rocketmq_throughput_out", "Bytes handed out by readers.", sizes)

    def _capped(self, counts: Mapping[str, Count]) -> dict[str, Count]:
        found = {OTHER_TOPICS: Count(0, 0)}
        for topic, count in counts.items():
            if len(self._listed) < TOPICS_MAX and topic != OTHER_TOPICS:
                self._listed[topic] = None
            shown = topic if topic in self._listed else OTHER_TOPICS
            before = found.get(shown, Count(0, 0))
            found[shown] = Count(before.messages + count.messages, before.bytes + count.bytes)
        return found

    def _family(self, name: str, text: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, "topic"])
        for topic, value in values.items():
            family.add_metric([*self._labels.values(), topic], value)
        return family
