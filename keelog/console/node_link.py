"""The console's client of a node, and the looks at it that all viewers share.

The node is asked while somebody looks, at most once a second, however many look. When it does not
answer, the last look stays, with its age: a page is never empty because a node is away.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from keelog.cli.node.top import figures
from keelog.client import groups, operations
from keelog.client.client import Client, run
from keelog.client.core import ClientCore
from keelog.client.operations import Operation
from keelog.client.results import Health, NodeStatus, TopicInfo
from keelog.client.transport.exchange import Call, NodeRole
from keelog.client.transport.keys import client_keys
from protocol.errors import MqError

T = TypeVar("T")
LOOK_EVERY_S = 1.0
LOOK_S_MAX = 2.0
"""How long a look may wait for the node: a page that waits longer shows the look before."""
TRY_AGAIN_S = 2.0
"""The pause after a look without an answer."""
ASK_S = 5.0
"""How long one request of a page may take."""
POINTS_MAX = 300
"""Looks that are kept for the lines on the start page, at most one a second."""
TOPICS_KEPT_S = 3.0
"""How long a list of all topics counts for the next page."""
GROWTHS_MAX = 5_000
"""Topics and groups whose last figure is kept, to show how fast it grows."""
GROWTH_S_MAX = 60.0
"""An older figure says nothing about now."""


@dataclass(frozen=True, slots=True)
class Look:
    """The status of the node, and when it came, by both clocks."""

    status: NodeStatus
    health: Health
    at: float
    at_ms: int


_USUAL: dict[str, Any] = {
    "log": {"appended": 0, "flushed": 0, "min": 0},
    "disk": {"used_ratio": None, "free_bytes": None, "shortage": None},
    "retention": {"oldest_ms": None, "next": None},
    "damage": {"places": []},
    "groups": {"groups": 0, "lag": 0, "rows": []},
    "timers": {"pending": 0},
    "transactions": {"open": 0},
    "followers": {"followers": []},
    "following": None,
    "processes": [],
}


def whole(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A status with what a node of an earlier version does not say."""
    return {**_USUAL, **raw}


class Sample(NamedTuple):
    """One look in figures, for the lines on the start page."""

    at_ms: int
    in_per_s: float
    p99_ms: float | None
    unflushed_bytes: int
    disk_ratio: float
    cpu_percent: float


class State(NamedTuple):
    """The node as it was at the last look. `figures` is None before there are two looks."""

    look: Look | None
    figures: dict[str, Any] | None
    age_s: float
    trouble: MqError | None
    """Why there is no later look."""


class QueueEnds(NamedTuple):
    """Where a queue begins and ends."""

    queue_id: int
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> int:
        """Messages that can be read."""
        return self.max_offset - self.min_offset


@dataclass(slots=True)
class Growths:
    """How fast counts grow, from one look of any viewer to the next."""

    _last: OrderedDict[str, tuple[float, int, float | None]] = field(default_factory=OrderedDict)

    def note(
        self, name: str, count: int, now: float, least_s: float = LOOK_EVERY_S / 2
    ) -> float | None:
        """The growth a second since a look of `least_s` ago at least; None without one that counts.

        A figure that the node makes anew every few seconds needs several of them.
        """
        before = self._last.pop(name, None)
        speed: float | None = None
        if before is not None and now - before[0] < GROWTH_S_MAX:
            at, value, speed = before
            if now - at < least_s:
                self._last[name] = before
                return speed
            speed = (count - value) / (now - at)
        self._last[name] = now, count, speed
        if len(self._last) > GROWTHS_MAX:
            self._last.popitem(last=False)
        return speed


class NodeLink:
    """One node, for the threads that make pages. `address` is its control address."""

    def __init__(
        self,
        address: str,
        key: str = "",
        server_key: str = "",
        shown: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.shown = shown or address
        """The address for people and their commands."""
        self._keys = client_keys(key or None, server_key or None)
        self._clock = clock
        self._lock = threading.Lock()
        self._core: ClientCore | None = None
        self._look_lock = threading.Lock()
        self._before: Look | None = None
        self._last: Look | None = None
        self._tried_at = float("-inf")
        self._trouble: MqError | None = None
        self._points: deque[Sample] = deque(maxlen=POINTS_MAX)
        self._topics: tuple[float, list[TopicInfo]] | None = None
        self.growths = Growths()
        self.looks = 0
        """How often the node was asked for its status."""

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            if self._core is not None:
                self._core.close()
                self._core = None

    @property
    def core(self) -> ClientCore:
        """The connection, made when it is first needed. Raises NotConnected."""
        with self._lock:
            if self._core is None:
                core = ClientCore(self.address, ASK_S, None, None, self._keys)
                try:
                    run(core, core.open())
                except BaseException:
                    core.close()
                    raise
                self._core = core
            return self._core

    @property
    def client(self) -> Client:
        """A client over that connection; it must not be closed. Raises NotConnected."""
        return Client(self.core)

    def ask(self, operation: Callable[[float], Operation[T]], seconds: float = ASK_S) -> T:
        """Carries out an operation that takes its deadline last."""
        core = self.core
        return run(core, operation(core.deadline(seconds)))

    # -- looks --------------------------------------------------------------------------------

    def state(self) -> State:
        """The node now, or as it was when it answered last. Never raises for a node that is away.

        One thread looks; the others take what is there meanwhile.
        """
        now = self._clock()
        pause = TRY_AGAIN_S if self._trouble is not None else LOOK_EVERY_S
        if now - self._tried_at >= pause and self._look_lock.acquire(blocking=self._last is None):
            try:
                if self._clock() - self._tried_at >= pause:
                    self._take_a_look()
            finally:
                self._look_lock.release()
        last, before = self._last, self._before
        age_s = 0.0 if last is None else self._clock() - last.at
        shown = None
        if last is not None and before is not None and last.at - before.at < GROWTH_S_MAX:
            shown = figures(dict(before.status.raw), dict(last.status.raw), last.at - before.at)
        return State(last, shown, age_s, self._trouble)

    def _take_a_look(self) -> None:
        try:
            client = self.client
            found = Look(
                client.status(LOOK_S_MAX),
                client.health(LOOK_S_MAX),
                self._clock(),
                int(time.time() * 1000),
            )
        except MqError as error:
            self._trouble, self._tried_at = error, self._clock()
            return
        self.looks += 1
        self._before, self._last, self._trouble = self._last, found, None
        self._tried_at = found.at
        if self._before is not None:
            self._points.append(_point(self._before, found))

    def points(self) -> list[Sample]:
        """The looks of the last minutes, the oldest first."""
        return list(self._points)

    # -- what pages ask -----------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """All topics, by name; for a moment the same for all viewers. Raises as `Client.topics`."""
        now, known = self._clock(), self._topics
        if known is None or now - known[0] > TOPICS_KEPT_S:
            found = sorted(self.client.topics(), key=lambda one: one.topic)
            known = self._topics = now, found
        return known[1]

    def spans(self, topics: Sequence[str]) -> dict[str, list[QueueEnds]]:
        """Where the queues of these topics begin and end. Queues without a file are left out: they
        never had a message."""
        found: dict[str, list[QueueEnds]] = {topic: [] for topic in topics}
        for topic, number, low, high in self.ask(lambda deadline: _layout(topics, deadline)):
            found.setdefault(topic, []).append(QueueEnds(number, low, high))
        return found

    def committed(self, group: str | None = None) -> groups.ByQueue:
        """The places of all groups, or of one."""
        return self.ask(lambda deadline: groups.committed(group, deadline))[0]

    def members(self) -> dict[str, Any]:
        """The members of each group now, as the gateway knows it."""
        answer = self.core.ask(Call(NodeRole.CONTROL, "members", {}, self.core.deadline(None)))
        return dict(answer.header["groups"])

    def find_page(self, topic: str, key: str, **fields: Any) -> list[Any]:
        """The newest messages with a key, at most one page."""
        asked = {"topic": topic, "key": key, **fields}
        return self.ask(lambda deadline: operations.find_page(asked, None, deadline))[0]


def _layout(topics: Iterable[str], deadline: float) -> Operation[list[tuple[str, int, int, int]]]:
    """Topic, queue, first and last offset of each queue that has a file."""
    fields: dict[str, Any] = {"known": "", "index": False, "topics": list(topics)}
    rows: list[tuple[str, int, int, int]] = []
    cursor: Any = None
    while True:
        more = fields if cursor is None else {**fields, "cursor": cursor}
        page = (yield Call(NodeRole.READER, "layout", more, deadline)).header
        rows += [(topic, number, low, high) for topic, number, _, low, high, _ in page["queues"]]
        cursor = page["cursor"]
        if cursor is None:
            return rows


def _point(before: Look, after: Look) -> Sample:
    shown = figures(dict(before.status.raw), dict(after.status.raw), after.at - before.at)
    log, disk = shown["log"], shown["disk"]
    sends = [one["p99_ms"] for one in shown["operations"] if one["op"] in ("append", "send")]
    known = [one for one in sends if one is not None]
    return Sample(
        after.at_ms,
        shown["rates"]["records_per_s"],
        max(known, default=None),
        max(0, log["appended"] - log["flushed"]),
        disk["used_ratio"] or 0.0,
        sum(one["cpu_percent"] or 0.0 for one in shown["processes"]),
    )
