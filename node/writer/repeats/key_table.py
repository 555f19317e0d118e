"""Unique keys as hashes, with the log offsets of their records: the newest ones, in bounded memory.

A hash names candidates only. The caller compares them with the records in the log, so that two keys
of one hash cost a read and nothing else.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.derived.index_build import EMPTY_HEADER, put_keys
from protocol.derived.index_entry import (
    INDEX_ENTRY,
    INDEX_SLOT,
    IndexGeometry,
    KeyBatch,
)

PARTS = 4
"""A table forgets a part at a time: it holds its keys, and up to a quarter more."""
RECENT_KEYS_MAX = 4_096
"""New keys wait in a dict, 150 bytes each, until a part takes all of them at once."""
CHAIN_MAX = 256
"""Entries of one slot that a look-up follows, newest first, in each part."""
ONE_BY_ONE_MAX = 32
"""Up to here the plain look-up is the faster one."""


class FoundKey(NamedTuple):
    """An entry with the hash of row `row` of those that were asked for."""

    row: int
    physical_offset: int


class TablePart:
    """Keys in the order in which they came, chained by slot, as in an index file."""

    def __init__(self, keys: int) -> None:
        self._geometry = IndexGeometry(slot_count=2 * keys, index_num=keys + 1)
        self._header = EMPTY_HEADER
        self._slots = np.zeros(self._geometry.slot_count, INDEX_SLOT.dtype["newest_entry"])
        self._entries = np.zeros(self._geometry.index_num, INDEX_ENTRY.dtype)

    def put(self, batch: KeyBatch) -> int:
        """Enters keys until the part is full; returns how many."""
        done = put_keys(self._header, self._geometry, self._slots, batch)
        self._entries[done.first_entry : done.first_entry + done.taken] = done.entries
        self._header = done.header
        return done.taken

    def find(self, hashes: Sequence[int]) -> list[FoundKey]:
        """The entries of each hash."""
        if len(hashes) > ONE_BY_ONE_MAX:
            return self.find_many(np.array(hashes, np.int64))
        return self.find_few(hashes)

    def find_few(self, hashes: Sequence[int]) -> list[FoundKey]:
        """As `find`, hash by hash: the oracle for `find_many`."""
        found = []
        for row, key_hash in enumerate(hashes):
            number = int(self._slots[key_hash % self._geometry.slot_count])
            for _ in range(CHAIN_MAX):
                if not number:
                    break
                own, offset, _, number = self._entries[number].item()
                if own == key_hash:
                    found.append(FoundKey(row, offset))
        return found

    def find_many(self, hashes: NDArray[np.int64]) -> list[FoundKey]:
        """As `find`, one entry of each chain at a time."""
        found: list[FoundKey] = []
        rows = np.arange(len(hashes))
        numbers = self._slots[hashes % self._geometry.slot_count].astype(np.int64)
        for _ in range(CHAIN_MAX):
            there = numbers > 0
            rows, numbers = rows[there], numbers[there]
            if not len(rows):
                break
            entries = self._entries[numbers]
            same = entries["key_hash"] == hashes[rows]
            offsets = entries["physical_offset"][same].tolist()
            found += map(FoundKey, rows[same].tolist(), offsets)
            numbers = entries["prev"].astype(np.int64)
        return found


class KeyTable:
    """The newest `keys_max` keys, and up to a quarter more."""

    def __init__(self, keys_max: int) -> None:
        self._part_keys = -(-keys_max // PARTS)
        self._parts: deque[TablePart] = deque([TablePart(self._part_keys)], maxlen=PARTS + 1)
        self._recent: dict[int, list[int]] = {}
        self._recent_rows: list[tuple[int, int]] = []

    def put(self, key_hash: int, physical_offset: int) -> None:
        """Enters one key. Log offsets rise from call to call."""
        self._recent.setdefault(key_hash, []).append(physical_offset)
        self._recent_rows.append((key_hash, physical_offset))
        if len(self._recent_rows) >= RECENT_KEYS_MAX:
            self._settle()

    def put_many(self, key_hash: NDArray[np.int32], physical_offset: NDArray[np.int64]) -> None:
        """Enters many, in order."""
        self._settle()
        times = np.zeros(len(key_hash), np.int64)
        batch = KeyBatch(key_hash, physical_offset, times)
        done = self._parts[-1].put(batch)
        while done < len(key_hash):
            self._parts.append(TablePart(self._part_keys))
            done += self._parts[-1].put(batch.rows(done, len(key_hash)))

    def _settle(self) -> None:
        if self._recent_rows:
            rows = np.array(self._recent_rows, np.int64)
            self._recent, self._recent_rows = {}, []
            self.put_many(rows[:, 0].astype(np.int32), rows[:, 1])

    def find(self, hashes: Sequence[int]) -> list[FoundKey]:
        """The entries that have one of these hashes, which are not negative; by log offset."""
        found = [
            FoundKey(row, offset)
            for row, key_hash in enumerate(hashes)
            for offset in self._recent.get(key_hash, ())[-CHAIN_MAX:]
        ]
        for part in self._parts:
            found += part.find(hashes)
        found.sort(key=lambda one: one.physical_offset)
        return found
