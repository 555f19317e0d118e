"""The requests of each operation and how to read their replies, without threads or sockets.

An operation is a generator that yields calls and is sent their replies, so that the plain client
and the asyncio one run the same code. `FindPages` has the pages of a look-up by key.
"""

import logging
import zlib
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from keelog.client.messages import Message
from keelog.client.options import OnFoundDamage
from keelog.client.results import (
    Health,
    NodeStatus,
    PullResult,
    QueueBegin,
    QueueOffsets,
    TopicCreated,
    TopicDeleted,
    TopicInfo,
    TopicPurged,
    pull_result,
    record_sizes,
    split_records,
)
from keelog.client.transport.exchange import Call, NodeAnswer, NodeRole
from protocol.errors import BadRequest, StoreDamaged

log = logging.getLogger("keelog.client")

T = TypeVar("T")
Operation = Generator[Call, NodeAnswer, T]

DEFAULT_MAX_MESSAGES = 32
DEFAULT_MAX_BYTES = 262_144
WAIT_S_MAX = 30.0
TIME_MS_MAX = 2**63 - 1
FIND_PAGE = 64
COMMIT_QUEUES_AT_ONCE = 500
"""Well below what a header may hold."""
GET_FORMS = (
    *({"physical_offset"}, {"msg_id"}, {"topic", "unique_key"}, {"topic", "queue", "offset"}),
    {"topic", "queue", "offset", "generation"},
)
DEFAULT_WRITE_QUEUES = 8
"""The queues of a topic that a send creates."""


def milliseconds(time: "datetime | int | None", default: int) -> int:
    """A time as ms since 1970: datetimes without a zone are local time, integers are ms already."""
    if time is None:
        return default
    if isinstance(time, datetime):
        try:
            return int(time.timestamp() * 1000)
        except (ValueError, OverflowError) as error:  # local time before the year 1
            raise BadRequest(f"{time!r} is not a time: {error}", "give it a zone, or ms") from None
    if not isinstance(time, int) or isinstance(time, bool):
        raise BadRequest(f"{time!r} is not a time", "use a datetime, or whole ms since 1970")
    return time


def routes(deadline: float) -> Operation[NodeAnswer]:
    """The control socket's `routes`, as it answers."""
    return (yield Call(NodeRole.CONTROL, "routes", {}, deadline))


def status(deadline: float) -> Operation[NodeStatus]:
    """A snapshot of the node's processes, offsets and disk."""
    answer = yield Call(NodeRole.CONTROL, "status", {}, deadline)
    return NodeStatus.of(answer.header)


def health(deadline: float) -> Operation[Health]:
    """Whether the node is ready, check by check."""
    answer = yield Call(NodeRole.CONTROL, "health", {}, deadline)
    return Health.of(answer.header)


def topics(deadline: float, role: NodeRole = NodeRole.READER) -> Operation[list[TopicInfo]]:
    """All topics."""
    answer = yield Call(role, "topics", {}, deadline)
    return [TopicInfo.of(item) for item in answer.header["topics"]]


def create_topic(fields: dict[str, Any], deadline: float) -> Operation[TopicCreated]:
    """Makes a topic; doing it twice is harmless."""
    given = {name: value for name, value in fields.items() if value is not None}
    header = (yield Call(NodeRole.WRITER, "create_topic", given, deadline)).header
    return TopicCreated(header["topic"], header["queues"], header["created"])


def delete_topic(topic: str, deadline: float) -> Operation[TopicDeleted]:
    """Deletes a topic with its messages."""
    header = (yield Call(NodeRole.WRITER, "delete_topic", {"topic": topic}, deadline)).header
    left, until = header.get("left_in_log_bytes", 0), header.get("until")
    return TopicDeleted(topic, bool(header["deleted"]), left, until)


def purge_topic(fields: dict[str, Any], deadline: float) -> Operation[TopicPurged]:
    """Deletes the older messages of a topic; doing it twice is harmless."""
    given = {name: value for name, value in fields.items() if value is not None}
    header = (yield Call(NodeRole.WRITER, "purge_topic", given, deadline)).header
    queues = (QueueBegin(row["queue_id"], row["min_offset"]) for row in header["queues"])
    return TopicPurged(header["topic"], tuple(queues), header["left_in_log_bytes"])


def cursor_places(topic: str, name: str, deadline: float) -> Operation[dict[int, int]]:
    """Where a cursor goes on in each queue; empty for a new one."""
    fields = {"topic": topic, "group": name}
    header = (yield Call(NodeRole.WRITER, "cursor_get", fields, deadline)).header
    return dict(header["offsets"])


def commit_cursor(
    topic: str, name: str, places: Mapping[int, int], deadline: float, **more: int | str | None
) -> Operation[None]:
    """Notes how far a cursor has come; queues that are not named stay as they are. `more`: the
    `generation` of the places, and the `right` of the node's own processes."""
    given = {field: value for field, value in more.items() if value is not None}
    pairs = [[queue_id, offset] for queue_id, offset in places.items()]
    for first in range(0, len(pairs), COMMIT_QUEUES_AT_ONCE):
        some = pairs[first : first + COMMIT_QUEUES_AT_ONCE]
        fields = {"topic": topic, "group": name, "offsets": some, **given}
        yield Call(NodeRole.WRITER, "cursor_commit", fields, deadline)


def pull_call(fields: dict[str, Any], wait: float, timeout: float) -> Call:
    """A pull that may be held for `wait` seconds; its answer may take `timeout` longer."""
    if not 0 <= wait <= WAIT_S_MAX:
        raise BadRequest(f"wait is {wait} s, outside [0, {WAIT_S_MAX:g}]", "pull again")
    fields = {**fields, "wait_ms": int(wait * 1000)}
    # The same for all pulls of one queue.
    affinity = zlib.crc32(f"{fields['topic']}-{fields['queue']}".encode(errors="replace"))
    return Call(NodeRole.READER, "pull", fields, monotonic() + wait + timeout, affinity=affinity)


def pull(fields: dict[str, Any], wait: float, timeout: float) -> Operation[PullResult]:
    """One pull."""
    answer = yield pull_call(fields, wait, timeout)
    return pull_result(answer, fields["topic"], fields["queue"])


def get(fields: dict[str, Any], deadline: float) -> Operation[Message]:
    """One message by id, log offset, unique key or queue offset. NotFound when there is none.

    Raises BadRequest unless the fields that are not None are one of the four forms.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if set(given) not in GET_FORMS:
        raise BadRequest(
            "get needs msg_id, physical_offset, topic and unique_key, or topic and queue offset",
            "name one message",
        )
    answer = yield Call(NodeRole.READER, "get", given, deadline)
    return Message(bytes(answer.payload))


class FoundMessages(NamedTuple):
    """Messages with a key, newest first, the cursor of the next page, and what was damaged."""

    messages: list[Message]
    cursor: str | None
    damaged: list[StoreDamaged]


def find_page(
    fields: dict[str, Any], cursor: str | None, deadline: float
) -> Operation[FoundMessages]:
    """One page. Damaged records are passed over."""
    fields = {**fields, "skip_damaged": True}
    page = fields if cursor is None else {**fields, "cursor": cursor}
    answer = yield Call(NodeRole.READER, "find", page, deadline)
    messages = split_records(answer.payload, record_sizes(answer))
    damaged = [StoreDamaged(*one) for one in answer.header.get("damaged", ())]
    return FoundMessages(messages, answer.header.get("cursor"), damaged)


def offsets(
    topic: str, queue_id: int | None, deadline: float, sizes: bool = False
) -> Operation[list[QueueOffsets]]:
    """Where the queues of a topic begin and end; with `sizes` what they hold, too."""
    fields: dict[str, Any] = {"topic": topic}
    if sizes:
        fields["sizes"] = True
    if queue_id is not None:
        fields["queue"] = queue_id
    answer = yield Call(NodeRole.READER, "offsets", fields, deadline)
    generation = answer.header.get("generation")
    return [
        QueueOffsets(
            q["queue_id"],
            q["min_offset"],
            q["max_offset"],
            q.get("behind", False),
            generation,
            q.get("bytes"),
            q.get("oldest_ms"),
        )
        for q in answer.header["queues"]
    ]


def ages(topic: str, stored_at: Mapping[int, int], deadline: float) -> Operation[dict[int, int]]:
    """By queue: how many ms ago a message was stored, by the node's clock. `stored_at` has its
    offset in each queue; queues where it cannot be read are left out."""
    fields = {"topic": topic, "stored_at": [list(pair) for pair in stored_at.items()]}
    answer = yield Call(NodeRole.READER, "offsets", fields, deadline)
    return {
        q["queue_id"]: max(0, answer.header["now_ms"] - q["stored_ms"])
        for q in answer.header["queues"]
        if q.get("stored_ms", -1) >= 0
    }


def seek(fields: dict[str, Any], deadline: float) -> Operation[int]:
    """The queue offset at a store time."""
    answer = yield Call(NodeRole.READER, "seek", fields, deadline)
    return int(answer.header["offset"])


class FindPages:
    """The pages of one `find`: ask `page` until `done`."""

    def __init__(
        self,
        fields: dict[str, Any],
        limit: int | None,
        deadline: Callable[[float | None], float],
        timeout: float | None,
        on_damage: OnFoundDamage,
    ) -> None:
        self._fields = fields
        self._left = limit
        self._deadline = deadline
        self._timeout = timeout
        self._cursor: str | None = None
        self._on_damage = on_damage
        self._damage: StoreDamaged | None = None
        self._is_last = False
        self.done = limit is not None and limit <= 0

    def page(self) -> Operation[list[Message]]:
        """The next messages, perhaps none; each page has a timeout of its own.

        Raises StoreDamaged after the last messages, where the program wants that.
        """
        if self._damage is not None and self._is_last:
            raise self._damage
        size = FIND_PAGE if self._left is None else min(self._left, FIND_PAGE)
        fields = {**self._fields, "max_messages": size}
        deadline = self._deadline(self._timeout)
        messages, self._cursor, damaged = yield from find_page(fields, self._cursor, deadline)
        for error in damaged:
            self._meet(error)
        if self._left is not None:
            messages = messages[: self._left]
            self._left -= len(messages)
        self._is_last = self._cursor is None or self._left == 0
        self.done = self._is_last and self._damage is None
        return messages

    def _meet(self, error: StoreDamaged) -> None:
        if self._on_damage == "fail":
            self._damage = self._damage or error
        elif callable(self._on_damage):
            self._on_damage(error)
        else:
            log.warning("%s: passed over", error.reason)
