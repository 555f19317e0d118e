"""One backup: what the folder lacks of a store's log is copied and checked, then published.

The manifest is replaced after each segment, and last with the small files of this backup: so a
backup that broke off goes on, and what the manifest names is always whole.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime import disk
from node.runtime.locks import FileLock
from node.runtime.process import now_ms, raise_file_limit
from node.runtime.settings import Settings
from node.store.backup.manifest import (
    LOCK_NAME,
    BackupManifest,
    load_manifest,
    save_manifest,
    state_dir,
)
from node.store.backup.segments import Advance, SegmentCopy, check_overlap
from node.store.backup.source import BackupSource, HeldSegment, hold_segments, read_source
from node.store.backup.state import write_state
from protocol.errors import BackupRefused, BadRequest
from protocol.names import COMMIT_LOG_DIR, parse_offset_file_name


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
    damaged: tuple[tuple[int, int], ...]
    shortfall: str = ""

    def shape(self) -> dict[str, Any]:
        """As JSON."""
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
    load_manifest(out)  # a folder of anything else stays as it is
    source = read_source(root, settings or Settings())
    raise_file_limit()
    disk.make_durable_dir(out)
    lock = FileLock.take(out / LOCK_NAME, record=False)
    try:
        with hold_segments(source) as held:
            manifest = _begun(out, load_manifest(out), source, held, prune)
            copy = SegmentCopy(out, manifest, source, progress or (lambda *_: None))
            for segment in held:
                copy.copy(segment, link)
        return _publish(out, copy, source)
    finally:
        lock.release()


def _begun(
    out: Path,
    known: BackupManifest | None,
    source: BackupSource,
    held: list[HeldSegment],
    prune: bool,
) -> BackupManifest:
    """The manifest that this backup goes on from; it is saved. Raises BackupRefused."""
    first = held[0].start if held else source.end
    if known is None:
        fresh = BackupManifest(source.store_id, first, first, source.segment_bytes, source.sizes)
        save_manifest(out, fresh)
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
    compared = check_overlap(out, known, source, held)
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
    save_manifest(out, manifest)
    disk.make_durable_dir(out / COMMIT_LOG_DIR)
    for path in sorted((out / COMMIT_LOG_DIR).iterdir()):
        at = parse_offset_file_name(path.name)
        if at is not None and at < start:
            disk.unlink(path)
    return manifest


def _check_same(out: Path, known: BackupManifest, source: BackupSource) -> None:
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


def _publish(out: Path, copy: SegmentCopy, source: BackupSource) -> BackupReport:
    """Names the small files of this backup in the manifest, and removes what it names no more."""
    number = copy.manifest.state + 1
    files = write_state(
        out, number, copy.manifest.store_id, source.files, source.epochs, source.tails
    )
    manifest = replace(
        copy.manifest, state=number, sizes=source.sizes, time_ms=now_ms(), end=source.end
    )
    save_manifest(out, manifest)
    for folder in out.glob("state.*"):
        if folder != state_dir(out, number):
            disk.remove_tree(folder)
    return BackupReport(
        start=manifest.start,
        end=manifest.end,
        bytes=copy.copied_bytes,
        files=copy.files + files,
        verified=manifest.verified,
        damaged=manifest.damaged,
        shortfall=source.shortfall,
    )
