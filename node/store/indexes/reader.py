"""Looks up keys in the index files: as RocketMQ does, or every entry, page by page."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from node.store.file_cache import OpenFiles, refuse
from node.store.indexes.file import IndexFile, find_geometry, open_index_file
from node.store.indexes.listing import list_index_files
from protocol.derived.index_entry import IndexGeometry, IndexHeader, key_hash
from protocol.errors import StoreDamaged
from protocol.names import INDEX_DIR
from protocol.sizes import DEFAULT_INDEX_NUM, DEFAULT_SLOT_COUNT

MAX_MESSAGES_BATCH = 64
"""maxMsgsNumBatch: the cap of one query by key."""
END_OF_TIME = 2**63 - 1
CLOCK_SLACK_MS = 60_000
"""How far a store time may lie outside its file's range: a clock may have been set back."""


class Candidate(NamedTuple):
    """An entry with the right hash; only its record shows whether it has the right key."""

    file: str
    entry: int
    physical_offset: int


class IndexFolder:
    """The files in `index/`; their names are the times when they were made."""

    def __init__(self, root: Path, settings_geometry: IndexGeometry, files: OpenFiles) -> None:
        self.path = root / INDEX_DIR
        self._files = files
        self._likely = [settings_geometry, IndexGeometry(DEFAULT_SLOT_COUNT, DEFAULT_INDEX_NUM)]
        self._known: dict[str, IndexGeometry] = {}
        self._paths: dict[str, Path] = {}

    @property
    def geometry(self) -> IndexGeometry:
        """The geometry of the files; without files that of the settings."""
        return next(iter(self._known.values()), self._likely[0])

    def forget_files(self) -> None:
        """Closes the open files: their names may be those of others by now."""
        for path in self._paths.values():
            self._files.forget(path)

    def names(self) -> list[str]:
        """The names of the files, oldest first. Skips other names, as a broker does.

        Skips empty files too: a power loss may keep a name and lose the bytes.
        """
        return [entry.name for entry in list_index_files(self.path) if entry.size]

    def check_readable(self) -> None:
        """Reads every file once by `pread`; call it before reading all of them through maps.

        Raises StoreDamaged where the disk cannot read.
        """
        for name in self.names():
            path = self.path / name
            self._files.get(path, path.stat().st_size).check_readable()

    def open(self, names: list[str], trusts_slots: bool = False) -> list[IndexFile]:
        """Opens the files with these names. Raises StoreDamaged, StorePermission."""
        unclear = [name for name in reversed(names) if name not in self._known]
        while unclear:
            left = [name for name in unclear if not self._find_geometry(name)]
            if len(left) == len(unclear):
                self._known[left[0]] = self._geometry_by_length(left[0])
            unclear = [name for name in left if name not in self._known]
        if self._paths.keys() != set(names):
            self._paths = {name: self.path / name for name in names}
        return [
            open_index_file(self._paths[name], self._known[name], self._files, trusts_slots)
            for name in names
        ]

    def _find_geometry(self, name: str) -> bool:
        """Finds the sizes of a file, in it or in another one of its length; True if it did."""
        path = self.path / name
        try:
            size = path.stat().st_size
        except OSError as error:
            refuse(path, error)
        same = [known for known in self._known.values() if known.file_bytes == size]
        geometry = find_geometry(path, size, [*same, *self._likely], self._files)
        if geometry is None and same:
            geometry = same[0]
        if geometry is not None:
            self._known[name] = geometry
        return geometry is not None

    def _geometry_by_length(self, name: str) -> IndexGeometry:
        """Likely sizes that make the length of a file whose header and entries show none."""
        path = self.path / name
        size = path.stat().st_size
        for geometry in self._likely:
            if geometry.file_bytes == size:
                return geometry
        raise StoreDamaged(
            str(path),
            0,
            f"{size} bytes are no index file, or none whose sizes can be told",
            "name them with -X store.max_hash_slot_num=… -X store.max_index_num=…,"
            " or make it anew with: keelog store rebuild --index",
        )


class IndexReader:
    """The index of a store. `load` returns its files, oldest first; each look-up calls it."""

    def __init__(self, load: Callable[[], list[IndexFile]]) -> None:
        self._load = load

    def files(self) -> list[IndexFile]:
        """Oldest first. Raises StoreDamaged, StorePermission."""
        return self._load()

    def query(
        self,
        topic: str,
        key: str,
        max_num: int = MAX_MESSAGES_BATCH,
        begin: int = 0,
        end: int = END_OF_TIME,
        cap: int = MAX_MESSAGES_BATCH,
    ) -> list[int]:
        """Log offsets as RocketMQ's `queryOffset` returns them: by hash alone, newest first.

        `begin` and `end` are store times in ms, inclusive, compared as the index stores them: in
        seconds. `cap` is RocketMQ's maxMsgsNumBatch.
        """
        max_num = min(max_num, cap)
        wanted = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files()):
            header = file.header
            if begin <= header.end_timestamp and end >= header.begin_timestamp:
                file.select(found, wanted, max_num, begin, end)
            if header.begin_timestamp < begin or len(found) >= max_num:
                break
        return found

    def candidates(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = END_OF_TIME,
        after: Candidate | None = None,
    ) -> Iterator[Candidate]:
        """Yields every entry of the key's hash, newest first, without a cap; starts after `after`.

        Skips files whose store times lie outside [`begin`, `end`]. The caller checks the time of
        each record: an entry holds it in seconds only.
        """
        wanted, is_any_time = key_hash(topic, key), begin <= 0 and end >= END_OF_TIME
        for file in reversed(self.files()):
            if after is not None and file.name > after.file:
                continue
            if not is_any_time and not _overlaps(file.stated_header, begin, end):
                continue
            start = after.entry if after is not None and file.name == after.file else None
            for entry in file.chain(wanted, start):
                if entry.number != start:
                    yield Candidate(file.name, entry.number, entry.physical_offset)


def _overlaps(header: IndexHeader, begin: int, end: int) -> bool:
    """Whether a file may have store times in [`begin`, `end`]."""
    is_older = header.end_timestamp + CLOCK_SLACK_MS < begin
    return not is_older and header.begin_timestamp - CLOCK_SLACK_MS <= end
