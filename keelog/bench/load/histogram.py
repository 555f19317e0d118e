"""Latencies in bounded memory: counts in logarithmic buckets.

A bucket holds the values of one 128th of a power of two, so a percentile is off by 0.4 % at most.
Its number is the exponent and the first 7 bits of the mantissa of the value as a float.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

MANTISSA_BITS = 7
_SHIFT = 52 - MANTISSA_BITS
_FIRST = int(np.float64(1.0).view(np.int64)) >> _SHIFT
BUCKETS = 44 << MANTISSA_BITS
"""1 ns to 4.8 hours."""
PERCENTILES = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}


class LatencyHistogram:
    """Counts of nanoseconds; sum and maximum are exact."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self.sum_ns = 0
        self.max_ns = 0

    @property
    def total(self) -> int:
        """How many values it has."""
        return int(self.counts.sum())

    def add(self, values_ns: NDArray[np.int64]) -> None:
        """Adds values; those below 1 ns count as 1 ns."""
        if not len(values_ns):
            return
        values = np.maximum(values_ns, 1)
        buckets = (values.astype(np.float64).view(np.int64) >> _SHIFT) - _FIRST
        self.counts += np.bincount(np.minimum(buckets, BUCKETS - 1), minlength=BUCKETS)
        self.sum_ns += int(values.sum())
        self.max_ns = max(self.max_ns, int(values.max()))

    def merge(self, other: Self) -> None:
        """Adds the values of another one."""
        self.counts += other.counts
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_ms(self, percent: float) -> float:
        """The value below or at which `percent` of all are, in ms. There must be some."""
        ranks = np.cumsum(self.counts)
        bucket = int(np.searchsorted(ranks, max(1.0, percent / 100 * ranks[-1])))
        middle = np.int64((bucket + _FIRST << _SHIFT) + (1 << _SHIFT - 1)).view(np.float64)
        return min(float(middle), float(self.max_ns)) / 1e6

    def figures(self) -> dict[str, float | None]:
        """Average, percentiles and maximum in ms; None without a value."""
        total = self.total
        if not total:
            return dict.fromkeys(("avg_ms", *PERCENTILES, "max_ms"))
        figures: dict[str, float | None] = {"avg_ms": round(self.sum_ns / total / 1e6, 4)}
        for name, percent in PERCENTILES.items():
            figures[name] = round(self.percentile_ms(percent), 4)
        return {**figures, "max_ms": round(self.max_ns / 1e6, 4)}

    def distribution(self) -> list[tuple[float, float]]:
        """(percent, ms) at steps that halve what is left above, as far as there are values."""
        total = self.total
        steps = [100 * (1 - 0.5 ** (step / 4)) for step in range(1, 4 * 20)]
        known = [percent for percent in steps if (100 - percent) / 100 * total >= 1]
        points = [(round(percent, 6), round(self.percentile_ms(percent), 4)) for percent in known]
        return [*points, (100.0, round(self.max_ns / 1e6, 4))] if total else []

    def as_dict(self) -> dict[str, Any]:
        """For JSON: only the buckets that hold something."""
        used = np.flatnonzero(self.counts)
        return {
            "buckets": used.tolist(),
            "counts": self.counts[used].tolist(),
            "sum_ns": self.sum_ns,
            "max_ns": self.max_ns,
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """From `as_dict`."""
        made = cls()
        made.counts[fields["buckets"]] = fields["counts"]
        made.sum_ns, made.max_ns = int(fields["sum_ns"]), int(fields["max_ns"])
        return made
