"""The result of a pull: records in one piece, to be read as bytes, as columns or as messages."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from keelog.client.messages import Message
from keelog.client.transport.request import NodeAnswer
from protocol.derived.kernel_calls import whole_records
from protocol.errors import BadRequest, StoreDamaged
from protocol.kernel import loader
from protocol.layout import Readable
from protocol.record.codec import SHORT_HEAD, Torn, stated_offset
from protocol.record.columns import Gather, RecordColumns, scan

_COMPILED_ABOVE = 4
"""So few messages are each looked at when it is used, even where there is the compiled kernel."""
_FEW = 32
"""So few numbers are added up faster without numpy."""
_QUEUE_OFFSET_AT = SHORT_HEAD.offsets["queue_offset"]


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
        at = Gather(np.frombuffer(self.payload, np.uint8))
        count = int(np.searchsorted(at(ends - self.sizes + _QUEUE_OFFSET_AT, ">i8"), queue_offset))
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
    compiled = loader.active()
    if compiled is not None and len(sizes) > _COMPILED_ABOVE:
        whole = whole_records(compiled, np.frombuffer(data, np.uint8), sizes)
    places = pairwise(accumulate(sizes.tolist(), initial=0))
    records = [data[start:end] for start, end in places]
    messages = list(map(Message, records[:whole], repeat(True)))
    messages.extend(map(Message, records[whole:]))
    return messages
