"""The common request, in one pass of the kernel: all its records go to one queue.

Which queue that is stands in the first record, which nobody has checked yet. It is read as a guess:
the kernel takes the request only when every record agrees with it.
"""

from collections.abc import Sequence
from functools import lru_cache

from node.writer.append_request import AppendRequest
from node.writer.topic_table import TopicTable
from protocol.errors import MqError
from protocol.ids import Queue, queue_of
from protocol.kernel.loader import Kernel
from protocol.names import check_topic_for_send
from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import ANY_QUEUE
from protocol.record.kernel_append import ANY_QUEUE_FLAG, CHECKED_FLAG
from protocol.record.kernel_append_run import SealedRuns
from protocol.record.patch import AppendRules, StoreStamp

_QUEUE_ID_AT, _BODY_LENGTH_AT = (SHORT_HEAD.offsets[name] for name in ("queue_id", "body_length"))
_BODY_AT = SHORT_HEAD.size


class Runs:
    """Seals requests of this kind; which offsets they get is written into `tails`."""

    def __init__(
        self, compiled: Kernel, rules: AppendRules, topics: TopicTable, tails: dict[Queue, int]
    ) -> None:
        self.sealed = SealedRuns(compiled, rules)
        self.rows = 0
        """Records of the requests that `take` took last."""
        self._topics = topics
        self._tails = tails

    def take(
        self, requests: Sequence[AppendRequest], base: int, bytes_max: int, stamp: StoreStamp
    ) -> int:
        """Seals the first of the requests, for log offset `base`; returns how many it took.

        It stops before one that is of another kind, may be bad, or goes beyond `bytes_max`.
        """
        sealed, taken = self.sealed, 0
        self.rows = 0
        if len(requests) == 1:
            sealed.clear(len(requests[0].records), base, stamp)
        else:
            sealed.clear(sum([len(request.records) for request in requests]), base, stamp)
        for request in requests:
            if sealed.end + len(request.records) > bytes_max:
                break
            if not self._add(request, base, stamp):
                break
            taken += 1
        return taken

    def _add(self, request: AppendRequest, base: int, stamp: StoreStamp) -> bool:
        records, count, sealed = request.records, request.count, self.sealed
        raw = _topic_in(records)
        topic = _topic_of(raw)
        if topic is None:
            return False
        flags = CHECKED_FLAG if request.checked_rows is not None else 0
        wanted = ANY_QUEUE
        if request.any_queue:
            flags |= ANY_QUEUE_FLAG
        else:
            named = records[_QUEUE_ID_AT : _QUEUE_ID_AT + 4]
            wanted = int.from_bytes(named, "big", signed=True)
            if wanted == ANY_QUEUE:
                return False
        queue_id = self._topics.queue_for(topic, wanted)
        if queue_id is None:
            return False
        queue, start = queue_of(topic, queue_id), base + sealed.end
        offset = self._tails.get(queue, 0)
        crc = -1 if request.crc is None else request.crc
        if not sealed.add(records, count, crc, request.sizes, flags, raw, queue_id, offset):
            return False
        self._tails[queue] = offset + count
        self.rows += count
        request.physical_offset = start
        request.store_timestamp = stamp.store_timestamp
        request.queues = ((topic, queue_id, offset, count),)
        return True


def _topic_in(records: bytes | memoryview) -> bytes:
    """The topic of the first record, if its head is the common one; else anything."""
    at = _BODY_AT + int.from_bytes(records[_BODY_LENGTH_AT:_BODY_AT], "big")
    return bytes(records[at + 1 : at + 1 + records[at]]) if at < len(records) else b""


@lru_cache(maxsize=4096)
def _topic_of(raw: bytes) -> str | None:
    """The name, None for what is none."""
    try:
        name = raw.decode()
        check_topic_for_send(name)
    except (UnicodeDecodeError, MqError):
        return None
    return name
