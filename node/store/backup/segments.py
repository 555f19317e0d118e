"""Copies the log into a backup, segment by segment, and checks each record that was copied.

Nothing here changes the store. A segment of the backup is complete once the manifest reaches its
end; after a kill the next backup goes on at the manifest's end.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from node.runtime import disk
from node.store.backup.manifest import BackupManifest, save_manifest, segment_path
from node.store.backup.source import BackupSource, HeldSegment
from node.store.file_cache import OpenFiles
from node.store.log.damage import Damage, columns_past_damage
from node.store.log.reader import Bounds, LogReader
from node.store.log.segment_list import SegmentList, list_folder
from protocol.errors import BackupRefused, BadRequest
from protocol.names import COMMIT_LOG_DIR
from protocol.record.columns import RecordColumns

Advance = Callable[[str, int, int], None]
"""Called with a stage, bytes of the log done, and all there are."""
Stretch = tuple[int, int]

COPY_STEP_BYTES = 16 << 20
_COMPARE_BYTES = 1 << 20
_OTHER_LOG = "take a backup into a new folder, and keep this one until that has come to its end"


def check_overlap(
    out: Path, known: BackupManifest, source: BackupSource, held: list[HeldSegment]
) -> dict[int, int]:
    """Compares what the backup has with the store, where the store's file was written since.

    Returns when the files that were compared were last written.

    Raises BackupRefused for a log that ends below the backup, or has other bytes.
    """
    if source.end < known.end:
        raise BackupRefused(
            f"the log of {source.root} ends at {source.end}, its backup at {known.end}: the store "
            "was rewound, repaired or restored since",
            _OTHER_LOG,
        )
    compared: dict[int, int] = {}
    for segment in held:
        stop = min(segment.start + known.segment_bytes, known.end)
        if not known.start <= segment.start < stop:
            continue
        if known.modified_ns.get(segment.start) == segment.modified_ns:
            continue
        path = segment_path(out, segment.start)
        differs = _first_difference(segment, path, stop - segment.start)
        if differs is not None:
            raise BackupRefused(
                f"the log of {source.root} has other bytes at {segment.start + differs} than its "
                "backup: the store was rewound, repaired or restored since",
                _OTHER_LOG,
            )
        compared[segment.start] = segment.modified_ns
    return compared


def _first_difference(segment: HeldSegment, path: Path, count: int) -> int | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(descriptor), os.fstat(segment.descriptor)):
            return None
        for at in range(0, count, _COMPARE_BYTES):
            size = min(_COMPARE_BYTES, count - at)
            ours, theirs = os.pread(segment.descriptor, size, at), os.pread(descriptor, size, at)
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=False))
                unequal = (number for number, (one, other) in pairs if one != other)
                return at + next(unequal, min(len(ours), len(theirs)))
    finally:
        os.close(descriptor)
    return None


class SegmentCopy:
    """One backup's work on the log; `manifest` is as far as it came, and is saved on the way."""

    def __init__(
        self, out: Path, manifest: BackupManifest, source: BackupSource, advance: Advance
    ) -> None:
        self.out = out
        self.manifest = manifest
        self._source = source
        self._advance = advance
        self._all = max(source.end - manifest.end, 0)
        self._begin = manifest.end
        self.copied_bytes = 0
        self.files = 0

    def copy(self, segment: HeldSegment, link: bool) -> None:
        """Copies what the backup lacks of a segment, checks it, and saves the manifest."""
        start = max(segment.start, self.manifest.end)
        stop = min(segment.start + self.manifest.segment_bytes, self._source.end)
        if start >= stop:
            return
        is_whole = stop - segment.start == self.manifest.segment_bytes
        if link and is_whole and start == segment.start:
            self._link(segment)
        else:
            self._copy(segment, start, stop)
        disk.sync_dir(self.out / COMMIT_LOG_DIR)
        self.copied_bytes += stop - start
        self.files += 1
        self.manifest = replace(
            self.manifest,
            end=stop,
            modified_ns={**self.manifest.modified_ns, segment.start: segment.modified_ns},
            damaged=self.manifest.damaged + tuple(self._damage(start, stop)),
        )
        save_manifest(self.out, self.manifest)

    def _link(self, segment: HeldSegment) -> None:
        path = segment_path(self.out, segment.start)
        disk.unlink(path, missing_ok=True)
        try:
            disk.link(segment.path.resolve(), path)
        except OSError as error:
            raise BadRequest(
                f"cannot link {segment.path}: {error.strerror}",
                "--link needs a folder on the store's file system; copy without it",
            ) from None
        if not os.path.samestat(path.stat(), os.fstat(segment.descriptor)):
            raise BackupRefused(f"{segment.path} was replaced meanwhile", "run the backup again")

    def _copy(self, segment: HeldSegment, start: int, stop: int) -> None:
        path = segment_path(self.out, segment.start)
        if start == segment.start:
            # Never into a file that is there: it may be a second name of the store's own segment.
            disk.unlink(path, missing_ok=True)
        target = disk.open_file(path, create=start == segment.start, own=True)
        try:
            if os.path.samestat(os.fstat(target), os.fstat(segment.descriptor)):
                reason = f"{path} is the store's own file: a backup never writes into one"
                raise BackupRefused(reason, "take a backup into a new folder")
            for at in range(start, stop, COPY_STEP_BYTES):
                count = min(COPY_STEP_BYTES, stop - at)
                place = at - segment.start
                disk.copy_range(segment.descriptor, target, place, count)
                self._advance("copy", at + count - self._begin, self._all)
            # A backup that broke off may have left records above the end.
            disk.set_length(target, stop - segment.start)
            disk.set_length(target, self.manifest.segment_bytes)
            disk.sync_with_length(target)
        finally:
            os.close(target)

    def _damage(self, start: int, stop: int) -> Iterator[Stretch]:
        """Reads what was copied, from the backup; yields the stretches without whole records."""
        with log_of(self.out, start, stop) as reader:
            for item in checked(reader, start, stop):
                if isinstance(item, RecordColumns):
                    self._advance("check", item.end - self._begin, self._all)
                else:
                    yield item


@contextmanager
def log_of(root: Path, start: int, stop: int) -> Iterator[LogReader]:
    """The log of a backup, or of a store that nobody writes to, between two offsets."""
    files = OpenFiles()
    try:
        listing = list_folder(root / COMMIT_LOG_DIR)
        listing.check()
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, files)
        yield LogReader(segments, Bounds(start, stop))
    finally:
        files.close()


def checked(reader: LogReader, start: int, stop: int) -> Iterator[RecordColumns | Stretch]:
    """Yields every record in [`start`, `stop`), its checksum verified, and each stretch that has
    none."""
    for item in columns_past_damage(reader, start, stop):
        if isinstance(item, Damage):
            yield item.torn.position, item.resumed_at
        else:
            yield item
    if reader.stopped is not None:
        yield reader.stopped.position, stop
