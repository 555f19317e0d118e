"""What was sent while a clock was set, what came, and the judgement of each message. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise, zip_longest
from typing import NamedTuple

LATE_S = 60.0
EARLY_S = 0.05
"""As exact as the times are that a node and this program take of one moment."""
KILL_S = 90.0
"""A kill repeats deliveries of before it, once all processes run again on a busy machine."""


class Kind(StrEnum):
    """How a message waits."""

    LEVEL = "level"
    DELAY = "delay"
    AT = "at"
    CANCELLED = "cancelled"
    RETRY = "retry"
    HALF = "half"
    ONCE = "once"


class ClockStep(NamedTuple):
    """From this moment of the monotonic clock on, the node's clock was ahead by so much."""

    at_s: float
    shift_s: float


@dataclass(slots=True)
class Waited:
    """One message. Times are of the monotonic clock, `deliver_s` of the node's, since 1970."""

    kind: Kind
    began_s: float
    """Before it was sent; of a retry: when it was handed back."""
    delay_s: float = 0.0
    deliver_s: float | None = None
    acked_s: float | None = None
    """When it was known to be stored; None while nobody can say."""


@dataclass(slots=True)
class Clock:
    """The node's clock over the whole run. `wall_s`: the real one minus the monotonic one."""

    wall_s: float
    steps: list[ClockStep] = field(default_factory=list)

    def first_at(self, deliver_s: float, began_s: float) -> float:
        """When, from `began_s` on, the node's clock first said this time; infinity: never."""
        first = max(0, bisect_right([one.at_s for one in self.steps], began_s) - 1)
        steps = self.steps[first:]
        for step, following in zip_longest(steps, steps[1:]):
            begin = max(step.at_s, began_s)
            there = max(begin, deliver_s - self.wall_s - step.shift_s)
            if following is None or there < following.at_s:
                return there
        return float("inf")


@dataclass(slots=True)
class Figures:
    """What a run came to. `faults` are sentences."""

    rounds: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    came: Counter[str] = field(default_factory=Counter)
    again: int = 0
    """Messages that came more than once, each after a kill."""
    unknown: int = 0
    """Sends of which nobody can say whether they were stored."""
    kills: Counter[str] = field(default_factory=Counter)
    promotions: int = 0
    late_s_max: float = 0.0
    faults: list[str] = field(default_factory=list)


def judge(
    sent: Mapping[str, Waited],
    came: Mapping[str, Sequence[float]],
    clock: Clock,
    kills: Sequence[float],
    end_s: float,
    figures: Figures,
) -> None:
    """Accounts for every message; `end_s`: from then on the clock was ahead of all times."""
    for name, one in sent.items():
        times = came.get(name, ())
        figures.sent[one.kind] += 1
        figures.came[one.kind] += bool(times)
        figures.unknown += one.acked_s is None
        figures.faults += _faults(name, one, times, clock, kills, end_s)
        figures.again += len(times) > 1
        if times and one.kind is not Kind.AT:
            begin = one.began_s if one.acked_s is None else one.acked_s
            figures.late_s_max = max(figures.late_s_max, times[0] - begin - one.delay_s)
    figures.faults += [f"{name} was invented" for name in sorted(came.keys() - sent.keys())]


def _faults(
    name: str,
    one: Waited,
    times: Sequence[float],
    clock: Clock,
    kills: Sequence[float],
    end_s: float,
) -> Iterable[str]:
    if one.kind is Kind.CANCELLED:
        if times:
            yield f"{name} was cancelled, and came {times[0] - one.began_s:.2f} s later"
        return
    if not times:
        if one.acked_s is not None:
            yield f"{name} is lost: it was acknowledged {end_s - one.acked_s:.0f} s before the end"
        return
    earliest = one.began_s + one.delay_s
    if one.deliver_s is not None:
        by_clock = clock.first_at(one.deliver_s, one.began_s)
        earliest = by_clock if one.kind is Kind.AT else min(earliest, by_clock)
    if times[0] < earliest - EARLY_S:
        yield f"{name} came {earliest - times[0]:.2f} s early"
    due_s = end_s if one.kind is Kind.AT else (one.acked_s or times[0]) + one.delay_s
    if times[0] > due_s + LATE_S:
        yield f"{name} came {times[0] - due_s:.0f} s late"
    for before, again in pairwise(times):
        if not any(before - KILL_S <= kill <= again for kill in kills):
            yield f"{name} came again {again - before:.1f} s later, and nothing was killed"
