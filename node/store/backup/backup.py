"""One backup: what the folder lacks of a store's log is copied and checked, then published.

Segment by segment is copied, and each record that was copied is checked. Nothing here changes the
store. The manifest is replaced after each segment, and last with the small files of this backup: a
segment is complete once the manifest reaches its end, and what the manifest names is always whole.
After a kill the next backup goes on at the manifest's end.

Where the log ends for the backup is read before any segment is copied:

- a running Keelog node: what it has flushed, and at least what was appended before the backup
  began, for which the backup waits;
- a store at rest: where its log ends after the next start;
- a running broker: where whole records end. Only the broker knows what of them is flushed.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime import disk
from node.runtime.locks import FileLock
from node.runtime.process import now_ms, raise_file_limit
from node.runtime.settings import Settings
from node.runtime.state_page import LogState, read_log
from node.runtime.store_paths import held_open
from node.store.backup import folder
from node.store.checkpoints import EpochLine, Tails, load_epochs, load_store_id, load_tails
from node.store.condition import Owner, check_is_store, find_owner
from node.store.file_cache import OpenFiles, refuse
from node.store.file_sizes import found_file_bytes, found_geometry
from node.store.log.reader import Bounds, Damage, LogReader, columns_past_damage
from node.store.log.segments import open_segments
from node.store.opening import StoppedStore
from protocol.errors import BackupRefused, BadRequest, StoreDamaged
from protocol.names import COMMIT_LOG_DIR, parse_offset_file_name
from protocol.record.columns import RecordColumns

Advance = Callable[[str, int, int], None]
"""Called with a stage, bytes of the log done, and all there are."""
Stretch = tuple[int, int]
COPY_STEP_BYTES = 16 << 20

_COMPARE_BYTES = 1 << 20
_OTHER_LOG = "take a backup into a new folder, and keep this one until that has come to its end"
FLUSH_WAIT_S = 15.0
"""A node flushes every message within 10.5 s: see `flush_commit_log_thorough_interval`."""
LOOK_AGAIN_S = 5.0
"""How long a listing is repeated while a node makes or deletes segments."""
SETTLE_S = 0.1
"""Between the walk and the copy of a running broker's log: its last record is written by then."""
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class BackupSource:
    """What there is to copy: segments by first offset, and the log up to `end`."""

    root: Path
    store_id: str | None
    start: int
    end: int
    segment_bytes: int
    segments: dict[int, Path]
    sizes: folder.DerivedSizes
    files: folder.Files
    epochs: list[EpochLine]
    tails: Tails
    shortfall: str = ""
    """Why the log may have more that was acknowledged before; empty where it has not."""


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """An open segment: retention may unlink it, its bytes stay. `modified_ns`: before the copy."""

    start: int
    path: Path
    descriptor: int
    modified_ns: int


class BackupReport(NamedTuple):
    """What a backup or a restored store holds: the log in [`start`, `end`).

    `bytes` of it, in `files`, were copied now. `verified`: each record has passed its checks.
    `damaged`: stretches that have not. `shortfall`: why messages may be missing that were
    acknowledged before the backup began; empty where all are there.
    """

    start: int
    end: int
    bytes: int
    files: int
    verified: bool
    damaged: tuple[Stretch, ...]
    shortfall: str = ""

    def shape(self) -> dict[str, Any]:
        document = {"from": self.start, "to": self.end, **self._asdict()}
        del document["start"], document["end"]
        if not self.shortfall:
            del document["shortfall"]
        document["damaged"] = [list(stretch) for stretch in self.damaged]
        return document


def backup(
    root: Path,
    out: Path,
    settings: Settings | None = None,
    *,
    prune: bool = False,
    link: bool = False,
    progress: Advance | None = None,
) -> BackupReport:
    """Brings the backup in `out` up to the store in `root`, which may be running.

    `prune`: removes segments that the store has deleted; a backup keeps them otherwise. `link`:
    full segments get a second name in `out` instead of a copy. Raises NotAStore, StorePermission,
    StoreDamaged, BackupRefused, StoreLocked (another backup writes to `out`), OSError.
    """
    root, out = root.resolve(), out.resolve()
    if root == out or root in out.parents or out in root.parents:
        raise BadRequest(f"{out} and the store {root} lie in each other", "name another folder")
    folder.load_manifest(out)  # a folder of anything else stays as it is
    source = read_source(root, settings or Settings())
    raise_file_limit()
    disk.make_durable_dir(out)
    lock = FileLock.take(out / folder.LOCK_NAME, record=False)
    try:
        with hold_segments(source) as held:
            manifest = _begun(out, folder.load_manifest(out), source, held, prune)
            copy = SegmentCopy(out, manifest, source, progress or (lambda *_: None))
            for segment in held:
                copy.copy(segment, link)
        return _publish(out, copy, source)
    finally:
        lock.release()


def _begun(
    out: Path,
    known: folder.BackupManifest | None,
    source: BackupSource,
    held: list[HeldSegment],
    prune: bool,
) -> folder.BackupManifest:
    """The manifest that this backup goes on from; it is saved. Raises BackupRefused."""
    first = held[0].start if held else source.end
    if known is None:
        fresh = folder.BackupManifest(
            source.store_id, first, first, source.segment_bytes, source.sizes
        )
        folder.save_manifest(out, fresh)
        disk.make_durable_dir(out / COMMIT_LOG_DIR)
        return fresh
    _check_same(out, known, source)
    if first > known.end:
        if not prune:
            raise BackupRefused(
                f"the backup in {out} ends at {known.end}, the log of {source.root} begins at "
                f"{first}: the store has deleted what was between",
                "take a backup into a new folder; --prune begins anew in this one",
            )
        known = replace(known, start=first, end=first)
    compared = _check_overlap(out, known, source, held)
    start = max(known.start, first) if prune else known.start
    modified = {**known.modified_ns, **compared}
    manifest = replace(
        known,
        store_id=source.store_id or known.store_id,
        start=start,
        # An empty log has no segment that would show its length.
        segment_bytes=known.segment_bytes if known.end > known.start else source.segment_bytes,
        modified_ns={at: n for at, n in modified.items() if start <= at < known.end},
        damaged=tuple(stretch for stretch in known.damaged if stretch[1] > start),
    )
    folder.save_manifest(out, manifest)
    disk.make_durable_dir(out / COMMIT_LOG_DIR)
    for path in sorted((out / COMMIT_LOG_DIR).iterdir()):
        at = parse_offset_file_name(path.name)
        if at is not None and at < start:
            disk.unlink(path)
    return manifest


def _check_overlap(
    out: Path, known: folder.BackupManifest, source: BackupSource, held: list[HeldSegment]
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
        path = folder.segment_path(out, segment.start)
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
    with held_open(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        if os.path.samestat(os.fstat(descriptor), os.fstat(segment.descriptor)):
            return None
        for at in range(0, count, _COMPARE_BYTES):
            size = min(_COMPARE_BYTES, count - at)
            ours, theirs = os.pread(segment.descriptor, size, at), os.pread(descriptor, size, at)
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=False))
                unequal = (number for number, (one, other) in pairs if one != other)
                return at + next(unequal, min(len(ours), len(theirs)))
    return None


def _check_same(out: Path, known: folder.BackupManifest, source: BackupSource) -> None:
    """Raises BackupRefused for a backup of another store, as far as ids and lengths show it."""
    mine, theirs = source.store_id, known.store_id
    if mine is not None and theirs is not None and mine != theirs:
        reason = f"{out} is the backup of store {theirs}, {source.root} is store {mine}"
        raise BackupRefused(reason, "name the folder of this store's backup, or a new one")
    if known.end > known.start and known.segment_bytes != source.segment_bytes:
        reason = (
            f"{out} has segments of {known.segment_bytes} bytes, {source.root} of "
            f"{source.segment_bytes}"
        )
        raise BackupRefused(reason, "take a backup into a new folder")


class SegmentCopy:
    """One backup's work on the log; `manifest` is as far as it came, and is saved on the way."""

    def __init__(
        self, out: Path, manifest: folder.BackupManifest, source: BackupSource, advance: Advance
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
        folder.save_manifest(self.out, self.manifest)

    def _link(self, segment: HeldSegment) -> None:
        path = folder.segment_path(self.out, segment.start)
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
        path = folder.segment_path(self.out, segment.start)
        if start == segment.start:
            # Never into a file that is there: it may be a second name of the store's own segment.
            disk.unlink(path, missing_ok=True)
        with held_open(disk.open_file(path, create=start == segment.start, own=True)) as target:
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
    with closing(OpenFiles()) as files:
        yield LogReader(open_segments(root / COMMIT_LOG_DIR, files), Bounds(start, stop))


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


def _publish(out: Path, copy: SegmentCopy, source: BackupSource) -> BackupReport:
    """Names the small files of this backup in the manifest, and removes what it names no more."""
    number = copy.manifest.state + 1
    files = folder.write_state(
        out, number, copy.manifest.store_id, source.files, source.epochs, source.tails
    )
    manifest = replace(
        copy.manifest, state=number, sizes=source.sizes, time_ms=now_ms(), end=source.end
    )
    folder.save_manifest(out, manifest)
    for old in out.glob("state.*"):
        if old != folder.state_dir(out, number):
            disk.remove_tree(old)
    return BackupReport(
        start=manifest.start,
        end=manifest.end,
        bytes=copy.copied_bytes,
        files=copy.files + files,
        verified=manifest.verified,
        damaged=manifest.damaged,
        shortfall=source.shortfall,
    )


def read_source(root: Path, settings: Settings) -> BackupSource:
    """Looks at a store; changes nothing and takes no lock.

    Raises NotAStore, StorePermission, StoreDamaged.
    """
    check_is_store(root)
    owner = find_owner(root)
    appended = read_log(root)
    files, epochs, tails = folder.read_state(root), load_epochs(root), load_tails(root)
    is_ours = owner in (Owner.WRITER, Owner.SUPERVISOR)
    flushed, shortfall = _wait_flushed(root, appended) if is_ours else (None, "")
    deadline = time.monotonic() + LOOK_AGAIN_S
    while True:
        try:
            found = _look(root, settings, flushed, tails)
        except (StoreDamaged, FileNotFoundError):
            if owner is Owner.NOBODY or time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_EVERY_S)
        else:
            time.sleep(SETTLE_S if owner is Owner.BROKER else 0)
            ours = [line for line in epochs if line.start <= found.end]
            small = {**files, **found.files}
            return replace(found, files=small, epochs=ours, shortfall=shortfall)


def _look(root: Path, settings: Settings, flushed: int | None, tails: Tails | None) -> BackupSource:
    """But for the small files that were read before."""
    with StoppedStore(root, settings) as store:
        end = store.tail.end if flushed is None else max(flushed, store.condition.floor)
        if store.log.segments.end < end:
            # The folder was listed while a segment was being made or deleted.
            raise StoreDamaged(str(root), end, "the log's segments end before", "try again")
        return BackupSource(
            root=root,
            store_id=load_store_id(root).value,
            start=store.log.min_offset,
            end=end,
            segment_bytes=store.log.segment_bytes,
            segments={one.start: one.path for one in store.log.segments.segments},
            sizes=_sizes(root, settings),
            files=folder.read_topics(root),
            epochs=[],
            tails=tails if tails is not None else _queue_ends(store, end),
        )


def _wait_flushed(root: Path, before: LogState | None) -> tuple[int, str]:
    """Waits until what was appended before is flushed; how far that is, and why it may be below
    what the node had acknowledged.

    A writer that does not flush in time, or cannot be asked, is not waited for: the backup then
    ends below, and says so.
    """
    deadline = time.monotonic() + FLUSH_WAIT_S
    flushed = 0
    while before is not None:
        now = read_log(root)
        if now is None:
            break
        flushed = now.flushed
        if flushed >= before.appended:
            return flushed, ""
        if time.monotonic() >= deadline:
            return flushed, f"the node has not flushed its log in {FLUSH_WAIT_S:.0f} s"
        time.sleep(_LOOK_EVERY_S)
    why = "the state page of the running node cannot be believed here: it names another start"
    return flushed, f"{why} of the machine, or the node is just starting"


def _sizes(root: Path, settings: Settings) -> folder.DerivedSizes:
    geometry = found_geometry(root, settings.index_geometry)
    return folder.DerivedSizes(
        found_file_bytes(root, settings.queue_file_bytes), geometry.slot_count, geometry.index_num
    )


def _queue_ends(store: StoppedStore, end: int) -> Tails:
    """The queues' ends by their own files: a broker's store has no snapshot of them.

    The log alone does not know the end of a queue whose messages retention has deleted.
    """
    ends = {}
    for queue in store.queues():
        reader = store.queue(queue.topic, queue.queue_id)
        if reader is not None:
            ends[queue] = reader.max_offset
    return Tails(end, ends)


@contextmanager
def hold_segments(source: BackupSource) -> Iterator[list[HeldSegment]]:
    """Opens the segments below the end, so that retention cannot take them away.

    Those that are gone already are left out, with all before them. Raises OSError, StorePermission.
    """
    held: list[HeldSegment] = []
    try:
        for start, path in sorted(source.segments.items()):
            if start >= source.end:
                break
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                release(held)
                continue
            except OSError as error:
                refuse(path, error)
            held.append(HeldSegment(start, path, descriptor, os.fstat(descriptor).st_mtime_ns))
        yield held
    finally:
        release(held)


def release(held: list[HeldSegment]) -> None:
    while held:
        os.close(held.pop().descriptor)
