"""The results of calls: small immutable values, named as the command line prints them.

That of a pull has its records in one piece, to be read as bytes, as columns or as messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keelog.client.messages import Message
from keelog.client.transport.exchange import NodeAnswer
from protocol.errors import BadRequest, StoreDamaged
from protocol.kernel import loader
from protocol.layout import Readable
from protocol.record.check import whole_records
from protocol.record.codec import SHORT_HEAD, Torn, stated_offset
from protocol.record.columns import RecordColumns, numbers_at, scan
from protocol.status import DiskStatus, FoundDamage, HealthCheck, LogStatus, ProcessStatus

Fields = Mapping[str, Any]
_COMPILED_ABOVE = 4
"""So few messages are each looked at when it is used, even where there is the compiled kernel."""
_FEW = 32
"""So few numbers are added up faster without numpy."""
_QUEUE_OFFSET_AT = SHORT_HEAD.offsets["queue_offset"]


class Receipt(NamedTuple):
    """What the node says about one stored message.

    `status` is RocketMQ's PutMessageStatus; `flushed` whether it was on disk when it answered.
    `FLUSH_DISK_TIMEOUT` means stored, flush not confirmed in time; `FLUSH_SLAVE_TIMEOUT` and
    `SLAVE_NOT_AVAILABLE` stored, and not acknowledged by enough followers in time.
    """

    status: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    msg_id: str
    unique_key: str
    flushed: bool
    store_timestamp: int
    deliver_ms: int = 0
    """Of a message that waits for a time: that time, ms since 1970; 0 for others."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dict."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic; `queues` counts what may be read, of whatever origin.

    `retention_hours`: 0 where the node's `file_reserved_time` counts.
    """

    topic: str
    queues: int
    read_queues: int
    write_queues: int
    perm: int
    retention_hours: int = 0

    @classmethod
    def of(cls, fields: Fields) -> "TopicInfo":
        """From an item of `topics`; the writer's has no `queues`."""
        read = int(fields.get("read_queues", 0))
        write = int(fields.get("write_queues", 0))
        queues = int(fields.get("queues", max(read, write)))
        perm, hours = int(fields.get("perm", 6)), int(fields.get("retention_hours", 0))
        return cls(str(fields["topic"]), queues, read, write, perm, hours)


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """`created` is False when the topic was there already."""

    topic: str
    queues: int
    created: bool


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """True unless there was no such topic: `if client.delete_topic("melons"): …`.

    The log keeps `left_in_log_bytes` of its messages, which nobody can read, until retention
    deletes them: at the latest at `until`, in ms; None while that is not known.
    """

    topic: str
    deleted: bool
    left_in_log_bytes: int = 0
    until: int | None = None

    def __bool__(self) -> bool:
        return self.deleted


class QueueBegin(NamedTuple):
    """The first offset of a queue."""

    queue_id: int
    min_offset: int


@dataclass(frozen=True, slots=True)
class TopicPurged:
    """Where the queues begin now, and the bytes of purged messages that the log still keeps."""

    topic: str
    queues: tuple[QueueBegin, ...]
    left_in_log_bytes: int


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """Where a queue begins and ends: messages have offsets in [min_offset, max_offset).

    `is_behind`: its queue worker has not placed all of the log, so there may be more of them.
    `generation`: which topic of the name this is. It rises when the topic is removed, and then no
    offset of before counts any more; 0 for one that never was. None: the node is too old to say.

    `bytes` and `oldest_ms` are known where they were asked for: what the messages take in the log,
    an estimate for a queue of more than some thousand messages, and when the first was stored.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    is_behind: bool = False
    generation: int | None = None
    bytes: int | None = None
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A snapshot of the node. `raw` is the answer as it came, later fields included.

    `mode` is `normal`, or why appends are refused: `read_only`, `disk_full` or `no_resources`, for
    the `cause`.
    """

    ready: bool
    store: str
    processes: tuple[ProcessStatus, ...]
    log: LogStatus
    disk: DiskStatus
    raw: dict[str, Any] = field(repr=False)
    mode: str = "normal"
    cause: str | None = None
    damage: tuple[FoundDamage, ...] = ()
    """The damaged places that were met since the node's start, the last one first."""

    @classmethod
    def of(cls, fields: Fields) -> "NodeStatus":
        """Of an answer to `status`."""
        return cls(
            ready=bool(fields.get("ready")),
            store=str(fields.get("store", "")),
            processes=tuple(_known(ProcessStatus, p) for p in fields.get("processes", ())),
            log=_known(LogStatus, fields.get("log") or {}),
            disk=_known(DiskStatus, fields.get("disk") or {}),
            raw=_without_envelope(fields),
            mode=str(fields.get("mode", "normal")),
            cause=fields.get("cause"),
            damage=tuple(
                _known(FoundDamage, place)
                for place in (fields.get("damage") or {}).get("places", ())
            ),
        )


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node takes appends and serves reads, and why not."""

    ready: bool
    checks: tuple[HealthCheck, ...]
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, fields: Fields) -> "Health":
        """Of an answer to `health`."""
        checks = tuple(
            HealthCheck(c["name"], bool(c["ok"]), str(c.get("detail", "")), bool(c.get("needed")))
            for c in fields.get("checks", ())
        )
        return cls(bool(fields.get("ready")), checks, _without_envelope(fields))


def _known(kind: Any, fields: Fields) -> Any:
    """`kind` from the fields that it has; others are of a later version."""
    names = kind.__dataclass_fields__
    return kind(**{name: value for name, value in fields.items() if name in names})


def _without_envelope(fields: Fields) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("v", "id", "ok")}


@dataclass(frozen=True, eq=False)
class PullResult:
    """One pull's answer; `status` is RocketMQ's GetMessageStatus.

    `payload` are the records as stored, back to back, in the order of the queue; `sizes` has the
    bytes of each. Nothing is made of them before `messages` or `columns` is asked for.
    """

    topic: str
    queue_id: int
    status: str
    next_begin_offset: int
    min_offset: int
    max_offset: int
    sizes: NDArray[np.uint32]
    payload: Readable
    generation: int | None = None
    """Of the topic, as the pull named it."""

    def __repr__(self) -> str:
        place = f"{self.topic!r}, queue {self.queue_id}, next {self.next_begin_offset}"
        return f"<PullResult {place}: {self.status}, {self.count} messages>"

    @property
    def count(self) -> int:
        """How many records."""
        return len(self.sizes)

    @cached_property
    def messages(self) -> list[Message]:
        """The records as messages, each with its own bytes."""
        return split_records(self.payload, self.sizes)

    def columns(self, verify: bool = False) -> RecordColumns:
        """The fields of all records as numpy arrays; bodies and properties stay in `payload`, the
        body of a row is `columns.body(row)`.

        The node has verified each checksum when it read the record; `verify` does it once more
        here. Raises StoreDamaged when these are no whole records.
        """
        found = scan(self.payload, None, verify=verify)
        if found.stop is not None or not np.array_equal(found.columns.size, self.sizes):
            why = found.stop.why if isinstance(found.stop, Torn) else "other sizes than it says"
            place = stated_offset(self.payload, found.end)
            raise StoreDamaged("commitlog", place, why)
        return found.columns

    def below(self, queue_offset: int) -> "PullResult":
        """Without the records at and after a queue offset."""
        if self.next_begin_offset <= queue_offset or not self.count:
            return self
        ends = np.cumsum(self.sizes, dtype=np.int64)
        places = ends - self.sizes + _QUEUE_OFFSET_AT
        offsets = numbers_at(np.frombuffer(self.payload, np.uint8), places, ">i8")
        count = int(np.searchsorted(offsets, queue_offset))
        size = int(ends[count - 1]) if count else 0
        shorter = {**vars(self), "sizes": self.sizes[:count], "payload": self.payload[:size]}
        shorter["next_begin_offset"] = queue_offset
        shorter.pop("messages", None)
        return PullResult(**shorter)


def pull_result(
    answer: NodeAnswer, topic: str, queue_id: int, generation: int | None = None
) -> PullResult:
    """The answer to `pull`. Raises BadRequest when it contradicts itself."""
    header = answer.header
    return PullResult(
        topic,
        queue_id,
        status=header["status"],
        next_begin_offset=header["next_begin_offset"],
        min_offset=header["min_offset"],
        max_offset=header["max_offset"],
        sizes=record_sizes(answer),
        payload=answer.payload,
        generation=generation,
    )


def record_sizes(answer: NodeAnswer) -> NDArray[np.uint32]:
    """The sizes of an answer's records, which have four bytes each there, little-endian.

    Raises BadRequest when they and the payload disagree, or one has no room for a record's head.
    """
    sizes = answer.header.get("sizes", b"")
    if len(sizes) % 4:
        raise BadRequest(f"the answer's sizes have {len(sizes)} bytes, not four each")
    each = np.frombuffer(sizes, "<u4")
    if len(each) <= _FEW:
        few = each.tolist()
        total, least = sum(few), min(few, default=SHORT_HEAD.size)
    else:
        total, least = int(each.sum(dtype=np.int64)), int(each.min())
    size = len(answer.payload)
    if total != size:
        raise BadRequest(f"the answer's sizes add up to {total}, it has {size} bytes")
    if least < SHORT_HEAD.size:
        raise BadRequest(f"the answer has a record of {least} bytes")
    return each


def split_records(payload: Readable, sizes: NDArray[np.uint32]) -> list[Message]:
    """The records as messages. Where there is the compiled kernel it verifies them at once."""
    data = bytes(payload)
    whole = 0
    compiled = loader.kernel
    if compiled is not None and len(sizes) > _COMPILED_ABOVE:
        whole = whole_records(compiled, np.frombuffer(data, np.uint8), sizes)
    places = pairwise(accumulate(sizes.tolist(), initial=0))
    records = [data[start:end] for start, end in places]
    messages = list(map(Message, records[:whole], repeat(True)))
    messages.extend(map(Message, records[whole:]))
    return messages
