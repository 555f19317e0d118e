"""The requests of each operation and how to read their replies, without threads or sockets.

An operation is a generator that yields calls and is sent their replies, so that the plain client
and the asyncio one run the same code. `FindPages` has the pages of a look-up by key.
"""

import logging
import zlib
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

from keelog.client import results
from keelog.client.messages import Message
from keelog.client.options import (
    CreateTopicOptions,
    FindOptions,
    GetOptions,
    OnFoundDamage,
    PullOptions,
    PurgeOptions,
    SeekOptions,
    Time,
    check_limit,
    check_names,
    check_on_damage,
    check_seconds,
    pass_over,
)
from keelog.client.transport.exchange import Call, NodeAnswer, NodeRole
from keelog.client.transport.routes import Routes
from protocol.errors import BadRequest, StoreDamaged
from protocol.request_fields import INT64_MAX
from protocol.requests import (
    BOUNDARY_LOWER,
    FIND_MESSAGES_DEFAULT,
    PULL_BYTES_DEFAULT,
    PULL_MESSAGES_DEFAULT,
)

log = logging.getLogger("keelog.client")

T = TypeVar("T")
Operation = Generator[Call, NodeAnswer, T]

WAIT_S_MAX = 30.0
COMMIT_QUEUES_AT_ONCE = 500
"""Well below what a header may hold."""
_PULL_OPTIONS = PullOptions.__annotations__.keys()
GET_FORMS = (
    *({"physical_offset"}, {"msg_id"}, {"topic", "unique_key"}, {"topic", "queue", "offset"}),
    {"topic", "queue", "offset", "generation"},
)
DeadlineOf = Callable[[float | None], float]
"""`ClientCore.deadline`: when a call with this option `timeout` must be over."""


def given(**fields: Any) -> dict[str, Any]:
    """The fields of a request without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


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


def routes(deadline: float) -> Operation[Routes]:
    return Routes.of((yield Call(NodeRole.CONTROL, "routes", {}, deadline)).header)


def status(deadline: float) -> Operation[results.NodeStatus]:
    answer = yield Call(NodeRole.CONTROL, "status", {}, deadline)
    return results.NodeStatus.of(answer.header)


def health(deadline: float) -> Operation[results.Health]:
    answer = yield Call(NodeRole.CONTROL, "health", {}, deadline)
    return results.Health.of(answer.header)


def topics(deadline: float, role: NodeRole = NodeRole.READER) -> Operation[list[results.TopicInfo]]:
    answer = yield Call(role, "topics", {}, deadline)
    return [results.TopicInfo.of(item) for item in answer.header["topics"]]


def make_topic(
    topic: str, queues: int | None, options: CreateTopicOptions, deadline_of: DeadlineOf
) -> Operation[results.TopicCreated]:
    """See Client.create_topic."""
    check_names("create_topic", options, CreateTopicOptions)
    deadline = deadline_of(options.get("timeout"))
    if not options.get("exist_ok", True):
        # Asked before: a topic that is there would be changed.
        known = yield from topics(deadline, NodeRole.WRITER)
        if topic in {one.topic for one in known}:
            raise BadRequest(f"topic {topic} exists", "leave exist_ok out")
    perm, hours = options.get("perm"), options.get("retention_hours")
    fields = given(topic=topic, queues=queues, perm=perm, retention_hours=hours)
    return (yield from create_topic(fields, deadline))


def create_topic(fields: dict[str, Any], deadline: float) -> Operation[results.TopicCreated]:
    """Makes a topic; doing it twice is harmless."""
    header = (yield Call(NodeRole.WRITER, "create_topic", fields, deadline)).header
    return results.TopicCreated(header["topic"], header["queues"], header["created"])


def delete_topic(topic: str, deadline: float) -> Operation[results.TopicDeleted]:
    header = (yield Call(NodeRole.WRITER, "delete_topic", {"topic": topic}, deadline)).header
    left, until = header.get("left_in_log_bytes", 0), header.get("until")
    return results.TopicDeleted(topic, bool(header["deleted"]), left, until)


def purge_topic(
    topic: str, options: PurgeOptions, deadline_of: DeadlineOf
) -> Operation[results.TopicPurged]:
    """See Client.purge_topic; doing it twice is harmless."""
    check_names("purge_topic", options, PurgeOptions)
    offset, time = options.get("before_offset"), options.get("before_time")
    if (offset is None) == (time is None):
        raise BadRequest("purge_topic needs before_offset or before_time", "give one of them")
    before = None if time is None else milliseconds(time, 0)
    fields = given(topic=topic, queue=options.get("queue_id"), offset=offset, timestamp=before)
    deadline = deadline_of(options.get("timeout"))
    header = (yield Call(NodeRole.WRITER, "purge_topic", fields, deadline)).header
    queues = (results.QueueBegin(row["queue_id"], row["min_offset"]) for row in header["queues"])
    return results.TopicPurged(header["topic"], tuple(queues), header["left_in_log_bytes"])


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
    rest = given(**more)
    pairs = [[queue_id, offset] for queue_id, offset in places.items()]
    for first in range(0, len(pairs), COMMIT_QUEUES_AT_ONCE):
        some = pairs[first : first + COMMIT_QUEUES_AT_ONCE]
        fields = {"topic": topic, "group": name, "offsets": some, **rest}
        yield Call(NodeRole.WRITER, "cursor_commit", fields, deadline)


def pull_call(fields: dict[str, Any], wait: float, timeout: float) -> Call:
    """A pull that may be held for `wait` seconds; its answer may take `timeout` longer."""
    if not 0 <= wait <= WAIT_S_MAX:
        raise BadRequest(f"wait is {wait} s, outside [0, {WAIT_S_MAX:g}]", "pull again")
    fields = {**fields, "wait_ms": int(wait * 1000)}
    # The same for all pulls of one queue.
    affinity = zlib.crc32(f"{fields['topic']}-{fields['queue']}".encode(errors="replace"))
    return Call(NodeRole.READER, "pull", fields, monotonic() + wait + timeout, affinity=affinity)


def pull(fields: dict[str, Any], wait: float, timeout: float) -> Operation[results.PullResult]:
    answer = yield pull_call(fields, wait, timeout)
    return results.pull_result(answer, fields["topic"], fields["queue"])


def pull_with(topic: str, queue_id: int, offset: int, options: PullOptions, timeout: float) -> Call:
    """The request of Client.pull, whose answer `results.pull_result` reads. `timeout`: the
    client's."""
    if not options.keys() <= _PULL_OPTIONS:
        check_names("pull", options, PullOptions)
    fields = {
        "topic": topic,
        "queue": queue_id,
        "offset": offset,
        "max_messages": options.get("max_messages", PULL_MESSAGES_DEFAULT),
        "max_bytes": options.get("max_bytes", PULL_BYTES_DEFAULT),
    }
    if tags := options.get("tags"):
        fields["tags"] = tags
    if (generation := options.get("generation")) is not None:
        fields["generation"] = generation
    wait, own = options.get("wait", 0.0), options.get("timeout")
    if wait != 0.0:
        check_seconds("wait", wait)
    if own is not None:
        check_seconds("timeout", own)
    return pull_call(fields, wait, timeout if own is None else own)


def get(msg_id: str | None, options: GetOptions, deadline_of: DeadlineOf) -> Operation[Message]:
    """See Client.get. Raises BadRequest unless the fields are one of the forms."""
    check_names("get", options, GetOptions)
    fields = given(
        msg_id=msg_id,
        physical_offset=options.get("physical_offset"),
        topic=options.get("topic"),
        unique_key=options.get("unique_key"),
        queue=options.get("queue_id"),
        offset=options.get("queue_offset"),
        generation=options.get("generation"),
    )
    deadline = deadline_of(options.get("timeout"))
    if set(fields) not in GET_FORMS:
        raise BadRequest(
            "get needs msg_id, physical_offset, topic and unique_key, or topic and queue offset",
            "name one message",
        )
    answer = yield Call(NodeRole.READER, "get", fields, deadline)
    return Message(bytes(answer.payload))


def find_page(
    fields: dict[str, Any], cursor: str | None, deadline: float
) -> Operation[tuple[list[Message], str | None, list[StoreDamaged]]]:
    """One page: messages with a key, newest first, the cursor of the next page, and what was
    damaged and passed over."""
    fields = {**fields, "skip_damaged": True}
    page = fields if cursor is None else {**fields, "cursor": cursor}
    answer = yield Call(NodeRole.READER, "find", page, deadline)
    messages = results.split_records(answer.payload, results.record_sizes(answer))
    damaged = [StoreDamaged(*one) for one in answer.header.get("damaged", ())]
    return messages, answer.header.get("cursor"), damaged


def offsets(
    topic: str, queue_id: int | None, deadline: float, sizes: bool = False
) -> Operation[list[results.QueueOffsets]]:
    """Where the queues of a topic begin and end; with `sizes` what they hold, too."""
    fields = given(topic=topic, sizes=sizes or None, queue=queue_id)
    answer = yield Call(NodeRole.READER, "offsets", fields, deadline)
    generation = answer.header.get("generation")
    return [
        results.QueueOffsets(
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


def seek(
    topic: str, queue_id: int, time: Time, options: SeekOptions, deadline_of: DeadlineOf
) -> Operation[int]:
    check_names("seek", options, SeekOptions)
    fields = {
        "topic": topic,
        "queue": queue_id,
        "timestamp": milliseconds(time, 0),
        "boundary": options.get("boundary", BOUNDARY_LOWER),
    }
    answer = yield Call(NodeRole.READER, "seek", fields, deadline_of(options.get("timeout")))
    return int(answer.header["offset"])


class FindPages:
    """The pages of one `find`: ask `page` until `done`."""

    def __init__(self, topic: str, key: str, options: FindOptions, deadline_of: DeadlineOf) -> None:
        """Raises BadRequest for options that make no sense."""
        check_names("find", options, FindOptions)
        check_limit(options.get("limit"))
        self._on_damage: OnFoundDamage = options.get("on_damage", "fail")
        check_on_damage(self._on_damage)
        self._fields: dict[str, Any] = {
            "topic": topic,
            "key": key,
            "begin": milliseconds(options.get("since"), 0),
            "end": milliseconds(options.get("until"), INT64_MAX),
            **given(unique=options.get("unique") or None),
        }
        self._left = options.get("limit")
        self._deadline_of = deadline_of
        self._timeout = options.get("timeout")
        self._cursor: str | None = None
        self._damage: StoreDamaged | None = None
        self._is_last = False
        self.done = self._left is not None and self._left <= 0

    def page(self) -> Operation[list[Message]]:
        """The next messages, perhaps none; each page has a timeout of its own.

        Raises StoreDamaged after the last messages, where the program wants that.
        """
        if self._damage is not None and self._is_last:
            raise self._damage
        most = FIND_MESSAGES_DEFAULT
        size = most if self._left is None else min(self._left, most)
        fields = {**self._fields, "max_messages": size}
        deadline = self._deadline_of(self._timeout)
        messages, self._cursor, damaged = yield from find_page(fields, self._cursor, deadline)
        for error in damaged:
            if self._on_damage == "fail":
                self._damage = self._damage or error
            else:
                pass_over(error, self._on_damage, log)
        if self._left is not None:
            messages = messages[: self._left]
            self._left -= len(messages)
        self._is_last = self._cursor is None or self._left == 0
        self.done = self._is_last and self._damage is None
        return messages
