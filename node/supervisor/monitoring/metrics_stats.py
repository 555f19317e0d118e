"""The families of the stats pages: all slots of all roles together, for one scrape."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from node.runtime.stats.page import SUM, Histogram, SlotStats
from node.runtime.stats.series import OK, REQUESTS, SERIES, Family, Series, SeriesKind

_NS = 1e9
_DURATION_EXPONENTS = range(12, 36, 2)
"""Of 2 ns: from 4 us to 17 s, each four times the one before."""
_SIZE_EXPONENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_NONE = Histogram((0,) * SUM, 0)


def stats_families(slots: list[SlotStats]) -> Iterator[Metric]:
    """One metric a family; every series is there from the start, but for codes of refusals."""
    values: dict[Series, int] = {}
    histograms: dict[Series, Histogram] = {}
    for slot in slots:
        for one, value in slot.values.items():
            values[one] = values.get(one, 0) + value
        for one, histogram in slot.histograms.items():
            histograms[one] = histograms.get(one, _NONE).plus(histogram)
    for family, all_series in _declared().items():
        yield _metric(family, all_series, values, histograms)


def _declared() -> dict[Family, list[Series]]:
    """The series of each family, each once: two roles may have the same."""
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
        return _histograms(family, names, {one: histograms.get(one, _NONE) for one in all_series})
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
    """How many values lie below 2**exponent; of whole numbers, up to one less than that."""
    return sum(histogram.buckets[: exponent + 1])
