"""Records checked and sealed by the compiled kernel: groups, runs, and the node's own messages.

A group of appends in one buffer is checked and sealed by `kernel_append.c`; requests of one queue
each in one pass, by `kernel_append_run.c`. Both take what `record.patch` takes and write the same
bytes; where they have any doubt they say so and leave the decision, and the words, to it.

Messages of the node's own are each encoded and sealed by one call, of `kernel_put.c`. The bytes are
those of `record.encode` and `record.patch`, which do what it leaves to them.
"""

import struct
from typing import NamedTuple

import numpy as np

from protocol.ids import IPV4_BYTES, NO_HOST, Host
from protocol.kernel.loader import Kernel, address
from protocol.names import TOPIC_BYTES_MAX
from protocol.record.codec import RECORD_BYTES_MIN
from protocol.record.patch import AppendRules, StoreStamp
from protocol.record.properties import PROPERTIES_BYTES_MAX

ANY_QUEUE_FLAG = 1
"""One queue for all records of the request, that the caller will choose."""
CHECKED_FLAG = 2
"""The caller has encoded the records itself."""

_REQUEST_WORDS, _SIZES_AT, _FIRST, _PARTS_OF = 7, 3, 5, 6
_REQUEST = struct.Struct(f"={_REQUEST_WORDS}q")
_PART_WORDS, _QUEUE_ID, _NEXT = 5, 2, 4
_GROUP_WORDS = 17
_DATA, _BYTES, _REQUESTS, _COUNT, _PARTS, _PARTS_MAX, _PART_OF, _ROWS_MAX = range(8)
_TABLE, _SLOTS, _BODY_MAX, _CRC, _BASE, _TIME, _HOST, _ROWS, _LAST_AT = range(8, _GROUP_WORDS)
_BYTES_MIN = 256 * 1024
_REQUESTS_MIN = 64
_RUN_WORDS, _RUN_LAST_AT = 15, 14
_RUN = struct.Struct(f"={_RUN_WORDS}q")
_RULES, _DRAFT = struct.Struct("=4q"), struct.Struct("=8q4i4s4x")
_RECORD_BYTES_MAX = RECORD_BYTES_MIN + TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX


class AppendPart(NamedTuple):
    """Records of one request for one queue: topic as stored, -1 for a queue still to choose."""

    topic: bytes
    queue_id: int
    rows: int


class AppendGroup:
    """Requests back to back in a buffer that stays: `clear`, `add` each, `check`, then `seal`.

    Not for two threads. `records` is valid until the next `clear`.
    """

    def __init__(self, kernel: Kernel, rules: AppendRules) -> None:
        self.kernel = kernel
        self._check, self._seal = kernel.function("append_check"), kernel.function("append_seal")
        self._group = np.zeros(_GROUP_WORDS, np.int64)
        self._words = memoryview(self._group.data)
        self._words[_BODY_MAX], self._words[_CRC] = rules.max_message_bytes, rules.crc
        self._at = address(self._group)
        self._sizes: list[tuple[int, bytes]] = []
        self._count = self._end = 0
        self._make_buffer(_BYTES_MIN)
        self._make_requests(_REQUESTS_MIN)

    def _make_buffer(self, size: int) -> None:
        """Memory for `size` bytes of records, and for as many records as these can be."""
        rows = size // RECORD_BYTES_MIN + 1
        self._buffer = np.zeros(size, np.uint8)
        self._bytes = memoryview(self._buffer.data)
        self._part_of = np.empty(rows, np.int32)
        self._table = np.empty(1 << (2 * rows).bit_length(), np.int32)
        self._part_array = np.empty(_PART_WORDS * rows, np.int64)
        self._parts = memoryview(self._part_array.data)
        words = self._words
        words[_DATA] = address(self._buffer)
        words[_PART_OF], words[_ROWS_MAX] = address(self._part_of), rows
        words[_TABLE], words[_SLOTS] = address(self._table), len(self._table)
        words[_PARTS], words[_PARTS_MAX] = address(self._part_array), rows

    def _make_requests(self, count: int) -> None:
        self._request_array = np.zeros(_REQUEST_WORDS * count, np.int64)
        self._requests = memoryview(self._request_array.data)
        self._requests_max = count
        self._words[_REQUESTS] = address(self._request_array)

    def clear(self, requests: int, size: int) -> None:
        """Begins a group of up to `requests` requests, with `size` bytes of records and sizes."""
        if size > len(self._bytes):
            self._make_buffer(1 << (size - 1).bit_length())
        if requests > self._requests_max:
            self._make_requests(1 << (requests - 1).bit_length())
        self._count = self._end = 0
        self._sizes.clear()

    def add(
        self, records: bytes | memoryview, count: int, crc: int, sizes: bytes, flags: int
    ) -> int:
        """Copies one request into the buffer; returns where it begins there.

        `crc` is that of all its records, -1 to leave it unchecked; `sizes` may be empty.
        """
        start, self._end = self._end, self._end + len(records)
        self._bytes[start : self._end] = records
        request = _REQUEST_WORDS * self._count
        _REQUEST.pack_into(self._requests, 8 * request, len(records), count, crc, -1, flags, 0, 0)
        if sizes:
            self._sizes.append((request, sizes))
        self._count += 1
        return start

    def check(self) -> list[list[AppendPart]] | None:
        """The parts of each request, in order; None where the plain way has to look."""
        words, requests, end = self._words, self._requests, self._end
        for request, sizes in self._sizes:
            self._bytes[end : end + len(sizes)] = sizes
            requests[request + _SIZES_AT] = end
            end += len(sizes)
        words[_BYTES], words[_COUNT] = end, self._count
        count = self._check(self._at)
        if count < 0:
            return None
        words[_BYTES] = self._end
        data = self._bytes
        if count == self._count == 1:
            at, length, queue_id, rows = self._parts[:_NEXT].tolist()
            return [[AppendPart(bytes(data[at : at + length]), queue_id, rows)]]
        numbers = self._parts[: _PART_WORDS * count].tolist()
        parts = [
            AppendPart(bytes(data[at : at + length]), queue_id, rows)
            for at, length, queue_id, rows in zip(
                *(numbers[word::_PART_WORDS] for word in range(_NEXT)), strict=True
            )
        ]
        found = requests[: _REQUEST_WORDS * self._count].tolist()
        firsts, counts = found[_FIRST::_REQUEST_WORDS], found[_PARTS_OF::_REQUEST_WORDS]
        return [parts[first : first + own] for first, own in zip(firsts, counts, strict=True)]

    def seal(self, places: list[tuple[int, int]], base: int, stamp: StoreStamp) -> None:
        """Fills in the records. `places`: queue id and first queue offset of each part in order;
        `base`: log offset of the first record."""
        parts, words = self._parts, self._words
        at = 0
        for queue_id, offset in places:
            parts[at + _QUEUE_ID], parts[at + _NEXT] = queue_id, offset
            at += _PART_WORDS
        words[_BASE], words[_TIME] = base, stamp.store_timestamp
        words[_HOST] = int.from_bytes(stamp.store_host, "big", signed=True)
        sealed = self._seal(self._at)
        assert sealed == words[_ROWS], "sealed a group that was not checked"

    @property
    def records(self) -> memoryview:
        """The records of all requests."""
        return self._bytes[: self._end]

    @property
    def rows(self) -> int:
        """How many records `check` found."""
        return self._words[_ROWS]

    @property
    def last_at(self) -> int:
        """Where the last record begins."""
        return self._words[_LAST_AT]


class SealedRuns:
    """Sealed requests back to back in a buffer that stays: `clear`, then `add` each.

    Not for two threads. `records` is valid until the next `clear`.
    """

    def __init__(self, kernel: Kernel, rules: AppendRules) -> None:
        self.kernel = kernel
        self._seal = kernel.function("append_run")
        self._rules = rules.max_message_bytes, int(rules.crc)
        self._base = self._time = self._host = 0
        run = np.zeros(_RUN_WORDS, np.int64)
        self._words = memoryview(run.data)
        self._at = address(run)
        self._make_buffer(_BYTES_MIN)

    def _make_buffer(self, size: int) -> None:
        buffer = np.zeros(size, np.uint8)
        self._bytes, self._size = memoryview(buffer.data), size
        self._bytes_at = address(buffer)
        self.end = self.last_at = 0
        """The bytes of all requests up to now, and where the last record begins."""

    def clear(self, size: int, base: int, stamp: StoreStamp) -> None:
        """Begins anew at log offset `base`, with room for `size` bytes. All records get `stamp`."""
        if size > self._size:
            self._make_buffer(1 << (size - 1).bit_length())
        self.end, self._base, self._time = 0, base, stamp.store_timestamp
        self._host = int.from_bytes(stamp.store_host, "big", signed=True)

    def add(
        self,
        records: bytes | memoryview,
        count: int,
        crc: int,
        sizes: bytes,
        flags: int,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
    ) -> bool:
        """Adds a request, unless another way has to look at it.

        The first five are as `AppendGroup.add` takes them; `topic` is as stored, `queue_offset`
        the first record's.
        """
        end, size = self.end, len(records)
        _RUN.pack_into(
            self._words, 0, size, count, crc, flags, len(topic), queue_id, queue_offset,
            self._base + end, self._time, self._host, *self._rules,
            self._bytes_at + end, self._size - end, 0,
        )  # fmt: skip
        if sizes and len(sizes) != 4 * count:
            return False
        place = records if type(records) is bytes else address(np.frombuffer(records, np.uint8))
        if self._seal(self._at, place, sizes or None, topic) < 0:
            return False
        self.last_at = end + self._words[_RUN_LAST_AT]
        self.end = end + size
        return True

    @property
    def records(self) -> memoryview:
        """The sealed records of all requests."""
        return self._bytes[: self.end]


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


class PutKernel:
    """Makes one record after the other in a buffer that stays. Not for two threads."""

    def __init__(self, kernel: Kernel, rules: AppendRules, store_host: bytes) -> None:
        self.kernel = kernel
        self._put = kernel.function("put_message")
        buffer = np.zeros(rules.max_message_bytes + _RECORD_BYTES_MAX, np.uint8)
        self._bytes = memoryview(buffer.data)
        draft = np.zeros(_RULES.size + _DRAFT.size, np.uint8)
        self._draft, self._at = memoryview(draft.data), address(draft)
        host = int.from_bytes(store_host, "big", signed=True)
        _RULES.pack_into(self._draft, 0, host, rules.crc, address(buffer), len(buffer))

    def record(
        self,
        put: Put,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
    ) -> memoryview | None:
        """The sealed record, valid until the next; None where the plain way has to make it.

        `topic` is as stored, and `queue_id` is not -1 as the message's may be.
        """
        _, body, _, properties, born_timestamp, born_host, flag, sys_flag, reconsumed = put
        ip, port = born_host
        if len(ip) != IPV4_BYTES:
            return None
        try:
            _DRAFT.pack_into(
                self._draft, _RULES.size, len(body), len(properties), len(topic),
                queue_id, queue_offset, physical_offset,
                store_timestamp, born_timestamp, flag, sys_flag, port, reconsumed, ip,
            )  # fmt: skip
        except struct.error:
            return None  # a number that does not fit: it will be named
        size = self._put(self._at, body, topic, properties)
        return None if size < 0 else self._bytes[:size]
