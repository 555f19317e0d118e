"""Figures for the replies to admin tools: how much went in and out.

The counts of late, by topic and group, are for 315 and the figures beside it. As
RocketMQ's StatsItem: totals are looked at each 10 s, 10 min and hour, and a figure is what came
between the first and the last of these looks. Queue workers count what topics get; what groups get
is what their members have pulled.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from keelog.gateway.members import Members
from node.runtime.stats import read_topics
from node.runtime.stats_series import QUEUE
from protocol.remoting.bodies import StatsOfSpan

PUT_NUMS, PUT_SIZE, GET_NUMS = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS"
"""Names of statistics (Stats)."""
LOOK_S = 10.0
KEYS_MAX = 5_000
"""Topics, and pairs of a topic and a group, with figures; further ones have none."""
_SPANS = ((LOOK_S, 7), (600.0, 7), (3_600.0, 25))
"""Of minute, hour and day: seconds between two looks, and how many of them are kept."""

Totals = Mapping[tuple[str, str], int]


class _Look(NamedTuple):
    at: float
    totals: Totals


class BrokerCounts:
    """One for each gateway. Times are seconds of the caller's monotonic clock."""

    def __init__(self, root: Path, members: Members) -> None:
        self._root = root
        self._members = members
        self._pulled: dict[tuple[str, int, str], int] = {}
        """By topic, queue and group: the offset that was pulled from at the last look."""
        self._got: dict[str, int] = {}
        """By `topic@group`: what its members have pulled since the gateway began."""
        self._looks: tuple[deque[_Look], ...] = tuple(deque(maxlen=kept) for _, kept in _SPANS)

    def look(self, now: float) -> None:
        """Looks at the totals when that is due. Call it each second or so."""
        minutes = self._looks[0]
        if minutes and now - minutes[-1].at < LOOK_S:
            return
        self._note_pulls()
        look = _Look(now, dict(self._totals()))
        for kept, (every_s, _) in zip(self._looks, _SPANS, strict=True):
            if not kept or now - kept[-1].at >= every_s:
                kept.append(look)

    def _totals(self) -> Iterable[tuple[tuple[str, str], int]]:
        topics = sorted(read_topics(self._root, QUEUE).items())[:KEYS_MAX]
        for topic, count in topics:
            yield (PUT_NUMS, topic), count.messages
            yield (PUT_SIZE, topic), count.bytes
        for key, count_of_group in self._got.items():
            yield (GET_NUMS, key), count_of_group

    def _note_pulls(self) -> None:
        now = {
            (topic, queue_id, name): offset
            for name, group in self._members.groups.items()
            for topic, of in group.pulled.items()
            for queue_id, (_, offset) in of.items()
        }
        for place, offset in now.items():
            topic, queue_id, name = place
            key, begun = f"{topic}@{name}", self._members.groups[name].begun
            if key not in self._got:
                if len(self._got) >= KEYS_MAX:
                    continue
                self._got[key] = 0
            self._got[key] += max(0, offset - self._pulled.get(place, begun[topic, queue_id]))
        self._pulled = now

    def find(self, name: str, key: str) -> Mapping[str, StatsOfSpan] | None:
        """The figures of one statistic; None for one that is not known."""
        minutes = self._looks[0]
        if not minutes or (name, key) not in minutes[-1].totals:
            return None
        minute, hour, day = (_of_span(kept, name, key) for kept in self._looks)
        return {"statsDay": day, "statsHour": hour, "statsMinute": minute}

    def put_tps(self, topic: str) -> float:
        """Messages each second that a topic got in the last minute."""
        return _of_span(self._looks[0], PUT_NUMS, topic).tps

    def get_tps(self, topic: str, group: str) -> float:
        """Messages each second that a group got of a topic in the last minute."""
        return _of_span(self._looks[0], GET_NUMS, f"{topic}@{group}").tps

    def rates(self, name: str) -> list[float]:
        """Of all keys of a statistic together, each second: over the last 10 s, 60 s and 600 s."""
        minutes, hours = self._looks[0], self._looks[1]
        spans = (list(minutes)[-2:], minutes, list(hours)[-2:] if len(hours) > 1 else minutes)
        return [_rate_of_all(looks, name) for looks in spans]

    def total(self, name: str) -> int:
        """Of all keys of a statistic together, since the counts began."""
        minutes = self._looks[0]
        return _sum(minutes[-1].totals, name) if minutes else 0

    def since_midnight(self, name: str, midnight: Callable[[], float]) -> tuple[int, int]:
        """The total when the day began, as far as it is known, and now."""
        first = next((one for one in self._looks[2] if one.at >= midnight()), None)
        return (0 if first is None else _sum(first.totals, name)), self.total(name)


def _of_span(looks: Iterable[_Look], name: str, key: str) -> StatsOfSpan:
    """StatsItem#computeStatsData: sums of messages, so a message is one time."""
    known = list(looks)
    if len(known) < 2:
        return StatsOfSpan()
    first, last = known[0], known[-1]
    # What was not there yet at the first look has come since.
    total = max(0, last.totals.get((name, key), 0) - first.totals.get((name, key), 0))
    return StatsOfSpan(total, total / (last.at - first.at), 1.0 if total else 0.0)


def _sum(totals: Totals, name: str) -> int:
    return sum(count for (one, _), count in totals.items() if one == name)


def _rate_of_all(looks: Iterable[_Look], name: str) -> float:
    known = list(looks)
    if len(known) < 2:
        return 0.0
    first, last = known[0], known[-1]
    return max(0, _sum(last.totals, name) - _sum(first.totals, name)) / (last.at - first.at)
