"""Reads the messages of a topic in the order of the log, backwards or onwards, within a budget.

Each queue is read in windows, and all of them are merged by their places in the log. Where a look
ends is an offset of each queue, so that nothing shifts under a reader while more is stored. A
budget bounds each look, which says how much it looked at, and where to go on.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from keelog.client.client import Client
from keelog.client.messages import Message
from keelog.console.bodies.unpack import unpacked
from protocol.errors import BadRequest, CorruptError, MessageDamaged

ROWS_MAX = 500
"""Messages on one page."""
LOOKED_MAX = 20_000
LOOKED_BYTES_MAX = 64 * 1024 * 1024
LOOK_S_MAX = 5.0
"""One of the three ends a look for messages with a text or a tag."""
WINDOW_MAX = 500
"""Messages of one queue that one pull asks for."""
QUEUES_MAX = 64
"""Queues of a topic that are read together; of further ones one is chosen."""
_WINDOW_MIN = 8
_PULL_BYTES = 1024 * 1024
_ROWS_AT_ONCE = 72
"""Roughly what the first windows of all queues have together."""


class Row(NamedTuple):
    """A message of a list, or the place of a damaged one."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    message: Message | None
    damage: CorruptError | None = None


@dataclass(slots=True)
class Budget:
    """The cost that one look may have."""

    looked_max: int = LOOKED_MAX
    bytes_max: int = LOOKED_BYTES_MAX
    seconds: float = LOOK_S_MAX
    began: float = field(default_factory=time.monotonic)
    looked: int = 0
    looked_bytes: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the look has to end here."""
        return (
            self.looked >= self.looked_max
            or self.looked_bytes >= self.bytes_max
            or time.monotonic() - self.began >= self.seconds
        )

    def take(self, row: Row) -> None:
        """Counts a message that was looked at."""
        self.looked += 1
        self.looked_bytes += 0 if row.message is None else row.message.store_size


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a look. `places`: where each queue goes on; `is_done`: nothing is left."""

    rows: list[Row]
    places: dict[int, int]
    looked: int
    is_done: bool


Matches = Callable[[Row], bool]


def read(
    rows: Iterable[Row], places: Mapping[int, int], want: int, matches: Matches, budget: Budget,
    step: int,
) -> Found:  # fmt: skip
    """Takes rows until `want` of them match. `step`: 1 where they come onwards, 0 backwards."""
    found: list[Row] = []
    on = dict(places)
    for row in rows:
        on[row.queue_id] = row.queue_offset + step
        budget.take(row)
        if matches(row):
            found.append(row)
        if len(found) >= want or budget.is_spent:
            return Found(found, on, budget.looked, is_done=False)
    return Found(found, on, budget.looked, is_done=True)


def backwards(
    client: Client, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Row]:
    """All before `ends`, the newest first. Raises as `Client.pull`, but for damaged messages."""
    first = _first_window(len(ends))
    streams = (
        _down(client, topic, queue, begins.get(queue, 0), end, first) for queue, end in ends.items()
    )
    return heapq.merge(*streams, key=lambda row: row.physical_offset, reverse=True)


def onwards(
    client: Client, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Row]:
    """All from `begins` on, the oldest first. Raises as `Client.pull`, but for damaged messages."""
    first = _first_window(len(begins))
    streams = (
        _up(client, topic, queue, begin, ends.get(queue, begin), first)
        for queue, begin in begins.items()
    )
    return heapq.merge(*streams, key=lambda row: row.physical_offset)


def _first_window(queues: int) -> int:
    return min(WINDOW_MAX, max(_WINDOW_MIN, _ROWS_AT_ONCE // max(1, queues)))


def _down(
    client: Client, topic: str, queue: int, begin: int, end: int, window: int
) -> Iterator[Row]:
    while end > begin:
        start = max(begin, end - window)
        rows = list(_window(client, topic, queue, start, end))
        yield from reversed(rows)
        end, window = start, min(WINDOW_MAX, 2 * window)


def _up(client: Client, topic: str, queue: int, begin: int, end: int, window: int) -> Iterator[Row]:
    while begin < end:
        stop = min(end, begin + window)
        yield from _window(client, topic, queue, begin, stop)
        begin, window = stop, min(WINDOW_MAX, 2 * window)


def _window(client: Client, topic: str, queue: int, start: int, stop: int) -> Iterator[Row]:
    """The messages of one queue in [start, stop), in their order."""
    last = 0
    while start < stop:
        try:
            result = client.pull(
                topic, queue, start, max_messages=stop - start, max_bytes=_PULL_BYTES
            )
        except MessageDamaged as error:
            last = max(last, error.offset)
            yield Row(queue, start, last, None, error)
            start = max(start + 1, error.next_offset)
            continue
        for message in result.below(stop).messages:
            last = message.physical_offset
            yield Row(queue, message.queue_offset, last, message)
        if result.next_begin_offset <= start:
            return
        start = result.next_begin_offset


def places_text(places: Mapping[int, int]) -> str:
    """Places as an address has them: `0-1741.3-12`."""
    return ".".join(f"{queue}-{offset}" for queue, offset in sorted(places.items()))


def parse_places(text: str) -> dict[int, int]:
    """The places that an address has. Raises BadRequest."""
    found = {}
    for one in text.split("."):
        queue, dash, offset = one.partition("-")
        if not (dash and one.isascii() and queue.isdigit() and offset.isdigit()) or len(one) > 30:
            raise BadRequest(f"{text[:60]!a} names no places", "begin anew at the topic's page")
        found[int(queue)] = int(offset)
    return found


def text_matcher(text: str, tag: str) -> Matches:
    """Whether a message has a text in its body, keys or properties, and one of the tags
    `a || b`."""
    tags = {one.strip() for one in tag.split("||") if one.strip()} if tag not in ("", "*") else None
    wanted = text.encode("utf-8", "surrogateescape")

    def matches(row: Row) -> bool:
        message = row.message
        if message is None:
            return not wanted and tags is None
        if tags is not None and message.tags not in tags:
            return False
        return not wanted or has_text(message, wanted)

    return matches


def has_text(message: Message, wanted: bytes) -> bool:
    """Whether the body, unpacked up to a bound, or a property holds these bytes."""
    if wanted in message.record.properties_raw:
        return True
    return wanted in unpacked(message.raw_body, message.sys_flag).data
