"""The index's part of `verify`: chains, headers, and every entry against its record."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from node.runtime.store_paths import no_file
from node.store.indexes import IndexFile, IndexFolder, list_index_names
from node.store.verify import findings
from protocol.derived.dispatch_request import DispatchRequests, index_keys
from protocol.derived.index_build import order_by_slot
from protocol.errors import StoreDamaged
from protocol.names import INDEX_DIR, is_index_file_name
from protocol.record.codec import Record

Ints = NDArray[np.int64]
_HASH_BITS = 31
_CHUNK_ENTRIES = 1 << 20


class IndexCheck:
    """Compares index entries with records; `entries` counts those on disk."""

    def __init__(self, store: findings.CheckedStore, into: findings.Findings) -> None:
        self._store = store
        self._findings = into
        self._lenient = findings.mended_by_recovery(store.condition)
        self.opened: list[IndexFile] = []
        """Files that can be read, oldest first."""
        self.lacks_entries = False
        self.told: set[tuple[str, int]] = set()
        """Entries, by file and row, that a finding names."""
        self.odd_firsts: set[str] = set()
        """Files whose first entry has not the time that follows from the file before."""
        self.vouched: dict[str, int] = {}
        """Entries of each file that the worker's checkpoint covers: no start repairs those."""
        self.done = store.log.min_offset
        """The log offset below which entries have been compared with the records."""
        self._reported_missing = False
        self.files = 0
        self.entries = 0

    def _add(
        self, kind: str, file: str, offset: int, detail: str, severity: findings.Severity = "error"
    ) -> None:
        where = str(self._store.root / INDEX_DIR / file)
        self._findings.add(findings.Finding(severity, kind, where, offset, detail))

    def _note_vouched(self) -> None:
        """After a crash our worker drops the entries that its checkpoint does not cover."""
        condition = self._store.condition
        done = condition.index_done if condition.is_ours and not condition.is_clean else None
        if done is None:
            return
        for file in self.opened:
            self.vouched[file.name] = _covered_entries(file, done)

    def _add_entry(self, kind: str, file: str, row: int, detail: str) -> None:
        self.told.add((file, row))
        is_vouched = row < self.vouched.get(file, row + 1)
        self._add(kind, file, row + 1, detail, "error" if is_vouched else "warning")

    def structure(self, folder: IndexFolder) -> None:
        """Checks names and lengths, and headers against the first and last entries."""
        if folder.path.is_dir():
            for path in sorted(folder.path.iterdir()):
                if not is_index_file_name(path.name):
                    detail = "is no index file; a broker passes it over"
                    self._add("foreign_file", path.name, 0, detail, "warning")
        for entry in list_index_names(folder.path):
            if not entry.is_file:
                self._add("foreign_file", entry.name, 0, no_file(entry.path))
        folder.check_readable()
        names = folder.names()
        self.files = len(names)
        # The newest first: a whole file shows the sizes of the others.
        for name in reversed(names):
            try:
                self.opened[:0] = folder.open([name])
            except StoreDamaged as damage:
                self._add("wrong_length", name, 0, damage.found)
        self._note_vouched()
        for file in self.opened:
            self.entries += len(file.entries())
            self._check_header(file)

    def _check_header(self, file: IndexFile) -> None:
        header, entries = file.header, file.entries()
        stated = file.stated_header.index_count
        if stated not in (0, header.index_count):
            detail = f"index_count is {stated}, of {file.geometry.index_num} at most"
            self._add("header_mismatch", file.name, 0, detail)
        if not len(entries):
            return
        for name, end in (("begin", 0), ("end", -1)):
            offset = int(entries[end]["physical_offset"])
            said = getattr(header, f"{name}_physical_offset")
            if offset != said:
                detail = f"{name}_physical_offset is {said}, the entry says {offset}"
                self._add("header_mismatch", file.name, 0, detail, self._lenient)
                continue
            log = self._store.log
            if not log.min_offset <= offset < log.end or log.segments.find(offset) is None:
                continue
            record = log.peek(offset)
            said = getattr(header, f"{name}_timestamp")
            if isinstance(record, Record) and record.head.store_timestamp != said:
                detail = f"{name}_timestamp is {said}, the record's {record.head.store_timestamp}"
                self._add("header_mismatch", file.name, 0, detail)

    def chains(self) -> None:
        """Checks slots, chains and order of each file against its entries."""
        self.first_times()
        for file in self.opened:
            self.order(file.name, disorder(file))
            self.chain(file)

    def first_times(self) -> None:
        """Reports wrong times of first entries, unless a missing file before may explain them."""
        for file in self.opened:
            if file.name in self.odd_firsts and not self.lacks_entries:
                self._add_entry("entry_mismatch", file.name, 0, "its time is not its record's")

    def chain(self, file: IndexFile) -> None:
        """Checks that each entry leads to the one before in its slot, and slots to the newest."""
        entries, slot_count = file.entries(), file.geometry.slot_count
        newest = np.zeros(slot_count, np.int64)
        negative = broken = 0
        for first in range(0, len(entries), _CHUNK_ENTRIES):
            chunk = entries[first : first + _CHUNK_ENTRIES]
            hashes = chunk["key_hash"].astype(np.int64)
            for row in np.flatnonzero(hashes < 0)[: findings.ALIKE_MAX - negative].tolist():
                negative += 1
                self._add_entry("entry_mismatch", file.name, first + row, "its hash is negative")
            prev = _chained(hashes % slot_count, first + 1, newest)
            for row in np.flatnonzero(prev != chunk["prev"])[
                : findings.ALIKE_MAX - broken
            ].tolist():
                broken += 1
                detail = f"leads to entry {int(chunk['prev'][row])}, should to {int(prev[row])}"
                self._add_entry("chain_broken", file.name, first + row, detail)
        table = file.slots()
        for number in np.flatnonzero(table != newest)[: findings.ALIKE_MAX].tolist():
            detail = f"slot {number} names entry {int(table[number])}, not {int(newest[number])}"
            self._add("chain_broken", file.name, int(newest[number]), detail, self._lenient)
        used = int(np.count_nonzero(newest))
        if file.header.slot_count != used:
            detail = f"slot_count is {file.header.slot_count}, {used} slots are in use"
            self._add("header_mismatch", file.name, 0, detail, self._lenient)

    def order(self, name: str, rows: Iterable[tuple[int, int, int]]) -> None:
        """Reports entries out of log order: somebody moved them to another record."""
        for row, before, found in rows:
            if not self.told.intersection(((name, row - 1), (name, row))):
                detail = f"names offset {found}, the entry before it {before}"
                self._add_entry("entry_mismatch", name, row, detail)

    def records(self, requests: DispatchRequests, stop: int, damaged: findings.Stretches) -> None:
        """Compares a window's records, which end at `stop`, with the entries that name the window,
        or a place between it and the window before. An entry that names damage is right."""
        starts = requests.columns.physical_offset
        if not len(starts):
            return
        everything = index_keys(requests, with_tags=True)
        needed = index_keys(requests, with_tags=False)
        expected = _codes(everything.row, everything.key_hash)
        required = _codes(needed.row, needed.key_hash)
        found_codes: list[Ints] = []
        for file in self.opened:
            header = file.header
            if header.end_physical_offset < self.done or header.begin_physical_offset >= stop:
                continue
            found_codes.append(self._check_file(file, requests, stop, damaged, expected))
        self.done = stop
        found = np.concatenate([*found_codes, np.empty(0, np.int64)])
        self.missing(starts[np.unique(_lacking(required, found) >> _HASH_BITS)])

    def _check_file(
        self,
        file: IndexFile,
        requests: DispatchRequests,
        stop: int,
        damaged: findings.Stretches,
        expected: Ints,
    ) -> Ints:
        """Checks the file's entries that name the window; returns their codes."""
        entries = file.entries()
        offsets = entries["physical_offset"].astype(np.int64)
        starts = requests.columns.physical_offset
        numbers = np.flatnonzero((offsets >= self.done) & (offsets < stop))
        row = np.searchsorted(starts, offsets[numbers])
        exact = (row < len(starts)) & (starts[np.minimum(row, len(starts) - 1)] == offsets[numbers])
        odd = [
            row
            for row in numbers[~exact].tolist()
            if not findings.is_within(damaged, int(offsets[row]))
        ]
        for number in odd[: findings.ALIKE_MAX]:
            self.add_dangling(file.name, number, int(offsets[number]))
        numbers, row = numbers[exact], row[exact]
        codes = _codes(row, entries["key_hash"][numbers])
        for number in numbers[~np.isin(codes, expected)][: findings.ALIKE_MAX].tolist():
            detail = f"no key of the record at {int(offsets[number])} has its hash"
            self._add_entry("entry_mismatch", file.name, number, detail)
        diffs, known = self.time_diffs(file, numbers, requests.columns.store_timestamp[row])
        wrong = known & (diffs != entries["time_diff_s"][numbers])
        if (wrong & (numbers == 0)).any():
            self.odd_firsts.add(file.name)
        for number in numbers[wrong & (numbers > 0)][: findings.ALIKE_MAX].tolist():
            self._add_entry("entry_mismatch", file.name, number, "its time is not its record's")
        return codes

    def add_dangling(self, name: str, row: int, offset: int) -> None:
        """Reports an entry that names an offset where no record starts."""
        detail = f"names offset {offset}, where no record starts"
        self._add_entry("entry_dangling", name, row, detail)

    def time_diffs(
        self, file: IndexFile, numbers: Ints, store_timestamp: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The correct times of the entries, and which of them are known.

        RocketMQ counts the time of a file's first entry from the end of the file before, which
        retention may have deleted.
        """
        begin = np.full(len(numbers), file.header.begin_timestamp)
        known = np.ones(len(numbers), np.bool_)
        is_first = numbers == 0
        place = self.opened.index(file)
        if place:
            begin[is_first] = max(self.opened[place - 1].header.end_timestamp, 0)
        else:
            begin[is_first] = 0
            known[is_first] = self._store.log.min_offset == 0
        known[is_first] &= len(self.opened) == self.files
        diffs = np.clip((store_timestamp - begin) // 1000, 0, 2**31 - 1)
        diffs[begin <= 0] = 0
        return diffs, known

    def missing(self, offsets: Ints) -> None:
        """Reports records, by offset, of which a key is in no file."""
        if not len(offsets):
            return
        self.lacks_entries = True
        if not self.opened:
            if not self._reported_missing:
                detail = "there are no index files at all; a node makes them anew from the log"
                self._add("entry_missing", "", 0, detail, "warning")
            self._reported_missing = True
            return
        where = str(self._store.root / INDEX_DIR)
        finding = findings.Finding(
            self._lenient,
            "entry_missing",
            where,
            int(offsets[0]),
            findings.NO_ENTRY,
            count=len(offsets),
        )
        self._findings.add(finding)

    def presence(self, requests: DispatchRequests) -> None:
        """Reports a missing index, for records that may be damaged."""
        if self.opened or self._reported_missing:
            return
        keys = index_keys(requests, with_tags=False)
        self.missing(requests.columns.physical_offset[keys.row[:1]])

    def beyond(self) -> None:
        """Reports entries that name offsets beyond the log's end."""
        end = self._store.log.end
        for file in self.opened:
            offsets = file.entries()["physical_offset"]
            for row in np.flatnonzero(offsets >= end)[: findings.ALIKE_MAX].tolist():
                detail = f"names offset {int(offsets[row])}, the log ends at {end}"
                self.told.add((file.name, row))
                self._add("entry_dangling", file.name, row + 1, detail, self._lenient)


def disorder(file: IndexFile) -> list[tuple[int, int, int]]:
    """Entries out of log order: (row, the offset of the entry before, its own offset)."""
    entries = file.entries()
    found: list[tuple[int, int, int]] = []
    for first in range(0, len(entries), _CHUNK_ENTRIES):
        start = max(first - 1, 0)
        chunk = entries["physical_offset"][start : first + _CHUNK_ENTRIES].astype(np.int64)
        rows = np.flatnonzero(np.diff(chunk) < 0)[: findings.ALIKE_MAX - len(found)].tolist()
        found += [(start + row + 1, int(chunk[row]), int(chunk[row + 1])) for row in rows]
    return found


def _chained(slot: Ints, first: int, newest: Ints) -> Ints:
    """The entry that each one leads to, by slots of the entries from `first` on; moves `newest`."""
    count = len(slot)
    order, grouped = order_by_slot(slot)
    opens = np.concatenate([[True], grouped[1:] != grouped[:-1]])[:count]
    prev = np.zeros(count, np.int64)
    prev[order[1:]] = order[:-1] + first
    prev[order[opens]] = newest[grouped[opens]]
    closes = np.append(opens[1:], True)[:count]
    newest[grouped[closes]] = order[closes] + first
    return prev


def _covered_entries(file: IndexFile, done: int) -> int:
    """The number of the last entry of a record below `done`; all entries before it are synced.

    It must follow another one in order: of an entry that was just written any part may be missing.
    """
    entries = file.entries()
    offsets = entries["physical_offset"].astype(np.int64)
    covered = (offsets < done) & ((offsets > 0) | (entries["key_hash"] != 0))
    covered[1:] &= (offsets[1:] >= offsets[:-1]) & covered[:-1]
    rows = np.flatnonzero(covered)
    return int(rows[-1]) + 1 if len(rows) else 0


def _lacking(required: Ints, found: Ints) -> Ints:
    """Codes that are found less often than required: a key named twice is entered twice."""
    codes, counts = np.unique(required, return_counts=True)
    there, there_counts = np.unique(found, return_counts=True)
    if not len(there):
        return codes
    place = np.minimum(np.searchsorted(there, codes), len(there) - 1)
    return codes[np.where(there[place] == codes, there_counts[place], 0) < counts]


def _codes(row: Ints, key_hash: NDArray[np.int32]) -> Ints:
    """One number for each (record of the window, key hash)."""
    codes: Ints = (row.astype(np.int64) << _HASH_BITS) | key_hash.astype(np.int64)
    return codes
