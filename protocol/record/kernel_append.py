"""A group of appends in one buffer, checked and sealed by the compiled kernel (`kernel_append.c`).

It takes what `record.patch` takes and writes the same bytes; where it has any doubt it says so
and leaves the decision, and the words, to that module.
"""

import struct
from typing import NamedTuple

import numpy as np

from protocol.kernel.loader import Kernel, address
from protocol.record.codec import RECORD_BYTES_MIN
from protocol.record.patch import AppendRules, StoreStamp

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
