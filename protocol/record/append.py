"""Requests checked and sealed: back to back in a buffer that stays, as they go into the log.

The compiled kernel does it where there is one (`kernel_append.c`): a request of one
queue in one pass, one of several in two, and a message of the node's own encoded, too. Where it has
any doubt, and where there is none, `record.patch` does the same record by record, and words what is
wrong.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from protocol.errors import MqError
from protocol.ids import IPV4_BYTES, NO_HOST, Host, Queue, queue_of
from protocol.kernel import loader
from protocol.kernel.loader import address
from protocol.names import check_topic_for_send
from protocol.record.codec import RECORD_BYTES_MIN
from protocol.record.encode import ANY_QUEUE
from protocol.record.patch import (
    AppendRules,
    PlainRow,
    SentRecords,
    StoreStamp,
    check_sent,
    patch_plain,
)

Places = Sequence[tuple[int, int]]
"""Of each part, in order: the queue's id, and the offset of the first record there."""

_REQUEST_WORDS = 20
_TIME, _HOST, _PARTS, _LAST_AT = 10, 11, 14, 19
_REQUEST = struct.Struct("=10q")
_PART_WORDS, _QUEUE_ID, _NEXT = 5, 2, 4
_BYTES_MIN, _ROWS_MIN = 256 * 1024, 64
_ROOM, _PUT = struct.Struct("=2q"), struct.Struct("=8q4i4s4x")


class AppendPart(NamedTuple):
    """Records of one request for one queue; the queue is -1 while it has to be chosen."""

    topic: str
    queue_id: int
    rows: int


class Put(NamedTuple):
    """A message whose fields are checked. `properties` as stored, without the checksum's."""

    topic: str
    body: bytes
    queue_id: int
    properties: bytes = b""
    born_timestamp: int = 0
    born_host: Host = NO_HOST
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0


class Sealer:
    """`begin`, then for each request `run`, or `check` and `seal`. Not for two threads.

    `records` is valid until the next `begin` or `put`.
    """

    def __init__(self, rules: AppendRules, store_host: bytes = bytes(8)) -> None:
        """`store_host`: IPv4 address and port, which all records get."""
        self._rules = rules
        self._store_host = store_host
        kernel = loader.kernel
        self.is_compiled = kernel is not None
        """Whether `run` and `put` ever take anything."""
        self._bytes = memoryview(b"")
        self._bytes_at = self._base = self._time = 0
        self.end = self.last_at = self.rows = 0
        """The bytes and the number of all records up to now, and where the last one begins."""
        self._plain: list[tuple[PlainRow, int]] | None = None
        """The records of the request that was checked last, each with the number of its part; None
        where the kernel has checked it."""
        if kernel is None:
            return
        self._run, self._check = kernel.functions["append_run"], kernel.functions["append_check"]
        self._seal, self._put = kernel.functions["append_seal"], kernel.functions["put_message"]
        request, message = np.zeros(_REQUEST_WORDS, np.int64), np.zeros(32 + _PUT.size, np.uint8)
        host = int.from_bytes(store_host, "big", signed=True)
        request[_HOST : _HOST + 3] = host, rules.max_message_bytes, rules.crc
        message[:16] = np.array((host, rules.crc), np.int64).view(np.uint8)
        self._words, self._at = memoryview(request.data), address(request)
        self._message, self._message_at = memoryview(message.data), address(message)
        self._make_rows(_ROWS_MIN)

    def _make_rows(self, rows: int) -> None:
        """Memory to check a request of up to `rows` records."""
        parts, part_of = np.empty(_PART_WORDS * rows, np.int64), np.empty(rows, np.int32)
        table = np.empty(1 << (2 * rows).bit_length(), np.int32)
        self._kept, self._parts, self._rows_max = (part_of, table), memoryview(parts.data), rows
        for word, value in enumerate(
            (address(parts), address(part_of), rows, address(table), len(table)), _PARTS
        ):
            self._words[word] = value

    @property
    def records(self) -> memoryview:
        """The sealed records of all requests since `begin`."""
        return self._bytes[: self.end]

    def begin(self, size: int, base: int, time: int) -> None:
        """Begins anew at log offset `base`, with room for `size` bytes. All records get the store
        time `time`, in ms."""
        if size > len(self._bytes):
            buffer = np.zeros(max(_BYTES_MIN, 1 << (size - 1).bit_length()), np.uint8)
            self._bytes, self._bytes_at = memoryview(buffer.data), address(buffer)
            if self.is_compiled:
                _ROOM.pack_into(self._message, 16, self._bytes_at, len(buffer))
        self.end = self.rows = 0
        self._base, self._time = base, time
        if self.is_compiled:
            self._words[_TIME] = time

    def run(self, sent: SentRecords, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Adds a request of one queue, unless another way has to look at it.

        `topic` is as stored, `queue_offset` the first record's.
        """
        records, count, sizes, any_queue, crc = (
            sent.records, sent.count, sent.sizes, sent.any_queue, sent.crc,
        )  # fmt: skip
        end, size = self.end, len(records)
        if not self.is_compiled or (sizes and len(sizes) != 4 * count):
            return False
        _REQUEST.pack_into(
            self._words, 0, size, count, -1 if crc is None else crc, any_queue, len(topic),
            queue_id, queue_offset, self._base + end, self._bytes_at + end, len(self._bytes) - end,
        )  # fmt: skip
        # A call of C takes bytes as they are.
        where = records if type(records) is bytes else _address_of(records)
        if self._run(self._at, where, sizes or None, topic) < 0:
            return False
        self.last_at = end + self._words[_LAST_AT]
        self.end = end + size
        self.rows += count
        return True

    def check(self, sent: SentRecords, inner: bool = False) -> list[AppendPart]:
        """The parts of a request, in the order of their first records.

        `inner`: it is one of the node's own processes. Raises BadRequest, IllegalMessage and its
        kinds.
        """
        found = self.check_compiled(sent) if self.is_compiled and not inner else None
        self._plain = None
        if found is not None:
            return found
        numbers: dict[Queue, int] = {}
        self._plain = []
        for row in check_sent(sent, self._rules._replace(inner=inner)):
            queue = queue_of(row.topic, ANY_QUEUE if sent.any_queue else row.queue_id)
            self._plain.append((row, numbers.setdefault(queue, len(numbers))))
        counts = Counter(number for _, number in self._plain)
        return [AppendPart(*queue, counts[number]) for queue, number in numbers.items()]

    def check_compiled(self, sent: SentRecords) -> list[AppendPart] | None:
        """None where the plain way has to look."""
        records, count, sizes = sent.records, sent.count, sent.sizes
        if count > len(records) // RECORD_BYTES_MIN or (sizes and len(sizes) != 4 * count):
            return None
        if count > self._rows_max:
            self._make_rows(1 << (count - 1).bit_length())
        self._describe(sent)
        found = self._check(self._at, _address_of(records), sizes or None)
        parts = []
        for at in range(0, _PART_WORDS * found, _PART_WORDS):
            start, length, queue_id, rows = self._parts[at : at + _NEXT].tolist()
            topic = topic_of(bytes(records[start : start + length]))
            if topic is None:
                return None
            parts.append(AppendPart(topic, queue_id, rows))
        return parts if found >= 0 else None

    def _describe(self, sent: SentRecords) -> None:
        end, crc = self.end, -1 if sent.crc is None else sent.crc
        _REQUEST.pack_into(
            self._words, 0, len(sent.records), sent.count, crc, sent.any_queue, 0, 0, 0,
            self._base + end, self._bytes_at + end, len(self._bytes) - end,
        )  # fmt: skip

    def seal(self, sent: SentRecords, places: Places) -> None:
        """Adds the request that was checked last, its parts at `places`."""
        end, size = self.end, len(sent.records)
        if self._plain is None:
            at = 0
            for queue_id, offset in places:
                self._parts[at + _QUEUE_ID], self._parts[at + _NEXT] = queue_id, offset
                at += _PART_WORDS
            self._describe(sent)
            sealed = self._seal(self._at, _address_of(sent.records))
            assert sealed == sent.count, "sealed a request that was not checked"
            self.last_at = end + self._words[_LAST_AT]
        else:
            self._bytes[end : end + size] = sent.records
            following, stamp = list(places), StoreStamp(self._time, self._store_host)
            for row, number in self._plain:
                queue_id, offset = following[number]
                following[number] = queue_id, offset + 1
                self.last_at = at = end + row.start
                placed = PlainRow(at, row.size, row.topic, queue_id, row.sys_flag)
                patch_plain(self._bytes, placed, offset, self._base + at, stamp, self._rules.crc)
        self.end = end + size
        self.rows += sent.count

    def put(
        self, put: Put, topic: bytes, queue_id: int, queue_offset: int, base: int, time: int
    ) -> memoryview | None:
        """A message encoded and sealed, for log offset `base`; None where another way has to do it.

        `topic` is as stored, and `queue_id` is not -1 as the message's may be. `time`: as `begin`
        has it.
        """
        _, body, _, properties, born_timestamp, (ip, port), flag, sys_flag, reconsumed = put
        if not self.is_compiled or len(ip) != IPV4_BYTES:
            return None
        try:
            _PUT.pack_into(
                self._message, 32, len(body), len(properties), len(topic), queue_id, queue_offset,
                base, time, born_timestamp, flag, sys_flag, port, reconsumed, ip,
            )  # fmt: skip
        except struct.error:
            return None  # a number that does not fit: it will be named
        size = self._put(self._message_at, body, topic, properties)
        return None if size < 0 else self._bytes[:size]


def _address_of(records: bytes | memoryview) -> int:
    return address(np.frombuffer(records, np.uint8))


@lru_cache(maxsize=4096)
def topic_of(raw: bytes) -> str | None:
    """A stored topic's name; None for bytes that no topic that clients may send to has."""
    try:
        name = raw.decode()
        check_topic_for_send(name)
    except (UnicodeDecodeError, MqError):
        return None
    return name
