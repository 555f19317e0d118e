"""Families of metrics from what processes count in stats pages: by role, and by topic."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from node.runtime.stats.page import Histogram, SlotStats
from node.runtime.stats.series import (
    OK,
    QUEUE,
    READER,
    REQUESTS,
    SERIES,
    Family,
    Series,
    SeriesKind,
)
from node.runtime.stats.topic_counts import OTHER_TOPICS, TOPICS_MAX, Count, read_topics
from node.supervisor.operations import NO_TIMES

_NS = 1e9
_DURATION_EXPONENTS = range(12, 36, 2)
"""Powers of 2 ns: from 4 us to 17 s, each four times the one before."""
_SIZE_EXPONENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)


def stats_families(slots: list[SlotStats]) -> Iterator[Metric]:
    """Yields one metric for each family, summed over the slots.

    Every series is there from the start, except the codes of refusals: most never occur.
    """
    values: dict[Series, int] = {}
    histograms: dict[Series, Histogram] = {}
    for slot in slots:
        for one, value in slot.values.items():
            values[one] = values.get(one, 0) + value
        for one, histogram in slot.histograms.items():
            histograms[one] = histograms.get(one, NO_TIMES).plus(histogram)
    for family, all_series in _declared().items():
        yield _metric(family, all_series, values, histograms)


def _declared() -> dict[Family, list[Series]]:
    """The series of each family, each once, although two roles may declare the same one."""
    found: dict[Family, dict[Series, None]] = {}
    for of_role in SERIES.values():
        for one in of_role:
            found.setdefault(one.family, {})[one] = None
    return {family: list(all_series) for family, all_series in found.items()}


def _metric(
    family: Family,
    all_series: list[Series],
    values: Mapping[Series, int],
    histograms: Mapping[Series, Histogram],
) -> Metric:
    names = [name for name, _ in all_series[0].labels]
    if family.kind in (SeriesKind.SECONDS, SeriesKind.SIZES):
        return _histograms(
            family, names, {one: histograms.get(one, NO_TIMES) for one in all_series}
        )
    kind = GaugeMetricFamily if family.kind is SeriesKind.GAUGE else CounterMetricFamily
    metric = kind(family.name, family.text, labels=names)
    for one in all_series:
        value = values.get(one, 0)
        if value or family is not REQUESTS or OK in dict(one.labels).values():
            metric.add_metric([label for _, label in one.labels], value)
    return metric


def _histograms(family: Family, names: list[str], found: Mapping[Series, Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.text, labels=names)
    is_time = family.kind is SeriesKind.SECONDS
    for one, histogram in found.items():
        buckets = [
            (repr((1 << n) / _NS if is_time else float((1 << n) - 1)), _below(histogram, n))
            for n in (_DURATION_EXPONENTS if is_time else _SIZE_EXPONENTS)
        ]
        buckets.append(("+Inf", histogram.total))
        value_sum = histogram.value_sum / _NS if is_time else histogram.value_sum
        metric.add_metric([label for _, label in one.labels], buckets, value_sum)
    return metric


def _below(histogram: Histogram, exponent: int) -> int:
    """The number of values below 2**exponent: whole numbers up to one less."""
    return sum(histogram.buckets[: exponent + 1])


class TopicFamilies:
    """Families with the topic as a label, under RocketMQ's names.

    The first TOPICS_MAX topics have a label of their own as long as the supervisor runs; all others
    share one.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        """`labels` come before the topic."""
        self._labels = dict(labels)
        self._listed: dict[str, None] = {}

    def collect(self, root: Path) -> Iterator[Metric]:
        """Yields the families with the counts of now."""
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
