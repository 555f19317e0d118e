"""The folder of a backup: its manifest, which says what counts, and the store's small files.

OUT/backup.json      the manifest, replaced as a whole; nothing counts that it does not name
OUT/backup.lock      held by the process that writes here
OUT/commitlog/…      segments of full length; the last one is empty above the backup's end
OUT/state.<n>/…      config/ and the durable notes of keelog/, as of one backup

Whose log the folder holds, and from where to where, is in the manifest. The small files are all of
`config/`, and the notes of `keelog/` that the log lacks. Those notes are listed by name: a note
that follows from the log (progress, floor, the mark of a clean stop), and what belongs to one
machine's run, is made anew by a restore.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.store_paths import EPOCHS_FILE_BYTES_MAX, TOPICS_FILE_BYTES_MAX, read_bounded
from node.store import checkpoints
from node.store.staging_files import list_queries, published_path
from protocol.errors import BackupRefused, StoreDamaged
from protocol.names import (
    COMMIT_LOG_DIR,
    CONFIG_DIR,
    TOPICS_FILE,
    offset_file_name,
    parse_offset_file_name,
)

MANIFEST_FILE = "backup.json"
LOCK_NAME = "backup.lock"
FORMAT = 1
Files = dict[str, bytes]
"""Contents by path, relative to the store."""
DURABLE_NOTES = (checkpoints.REMOVED_FILE,)
"""Files below `keelog/` that are copied as they are. `epochs`, `tails` and the records of published
batches are copied too, by functions of their own."""

_NEW_FOLDER = "name a new folder, or the folder of an earlier backup of this store"


@dataclass(frozen=True, slots=True)
class DerivedSizes:
    """Lengths of the derived files of the store, with which a restore makes them anew."""

    mapped_file_size_consume_queue: int
    max_hash_slot_num: int
    max_index_num: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The log in [`start`, `end`) is in the folder, durable, and each record was checked.

    `state`: number of the folder `state.<n>`; 0 until the first backup has come to its end.
    `modified_ns`: of each segment by its first offset, when the store's file was last written
    before it was copied. `damaged`: stretches that the store itself has no whole record for.
    """

    store_id: str | None
    start: int
    end: int
    segment_bytes: int
    sizes: DerivedSizes
    state: int = 0
    time_ms: int = 0
    modified_ns: dict[int, int] = field(default_factory=dict)
    damaged: tuple[tuple[int, int], ...] = ()

    @property
    def verified(self) -> bool:
        """Whether every record in the backup has passed its checks."""
        return not self.damaged

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "store_id": self.store_id,
            "from": self.start,
            "to": self.end,
            "verified": self.verified,
            "damaged": [list(stretch) for stretch in self.damaged],
            "time_ms": self.time_ms,
            "state": self.state,
            "segment_bytes": self.segment_bytes,
            "segments": [
                {"name": offset_file_name(start), "modified_ns": modified}
                for start, modified in sorted(self.modified_ns.items())
            ],
            "sizes": {
                name: getattr(self.sizes, name) for name in DerivedSizes.__dataclass_fields__
            },
        }


def state_dir(out: Path, number: int) -> Path:
    """The folder of one backup's small files; it is laid out like a store."""
    return out / f"state.{number}"


def segment_path(root: Path, start: int) -> Path:
    """The file of a segment, in a store or in a backup."""
    return root / COMMIT_LOG_DIR / offset_file_name(start)


def save_manifest(out: Path, manifest: BackupManifest) -> None:
    """Replaces the manifest, durably."""
    text = json.dumps(manifest.document(), indent=1) + "\n"
    disk.write_atomically(out / MANIFEST_FILE, text.encode())


def load_manifest(out: Path) -> BackupManifest | None:
    """The manifest; None without a folder, or in an empty one.

    Raises BackupRefused for a folder of anything else, StoreDamaged for a manifest that makes no
    sense.
    """
    path = out / MANIFEST_FILE
    try:
        text = read_bounded(path, EPOCHS_FILE_BYTES_MAX).decode()
    except FileNotFoundError:
        others = sorted(one.name for one in out.iterdir()) if out.is_dir() else []
        others = [name for name in others if name not in (LOCK_NAME, f"{MANIFEST_FILE}.new")]
        if others:
            reason = f"{out} is not empty, and has no {MANIFEST_FILE}: it holds {others[0]!a}"
            raise BackupRefused(reason, _NEW_FOLDER) from None
        return None
    except NotADirectoryError:
        raise BackupRefused(f"{out} is a file", _NEW_FOLDER) from None
    try:
        document = json.loads(text)
        found = document["format"]
        if found == FORMAT:
            return _manifest(document)
    except (ValueError, KeyError, TypeError) as error:
        why = f"makes no sense ({str(error)[:80]!a})"
        raise StoreDamaged(str(path), 0, why, "take another backup, into a new folder") from None
    raise BackupRefused(
        f"{path} has format {found!a}, this version writes {FORMAT}",
        "use the version of Keelog that made the backup, or a newer one",
    )


def _manifest(document: dict[str, Any]) -> BackupManifest:
    modified = {
        parse_offset_file_name(one["name"]): int(one["modified_ns"]) for one in document["segments"]
    }
    store_id = document["store_id"]
    return BackupManifest(
        store_id=None if store_id is None else str(store_id),
        start=int(document["from"]),
        end=int(document["to"]),
        segment_bytes=int(document["segment_bytes"]),
        sizes=DerivedSizes(**{name: int(n) for name, n in document["sizes"].items()}),
        state=int(document["state"]),
        time_ms=int(document["time_ms"]),
        modified_ns={start: n for start, n in modified.items() if start is not None},
        damaged=tuple((int(start), int(end)) for start, end in document["damaged"]),
    )


def read_state(root: Path) -> Files:
    """The small files, but for the table of topics. Call it before you ask where the log ends.

    So no consumer offset and no note speaks of messages above the backup's end.
    """
    found: Files = {}
    for parent, _, names in os.walk(root / CONFIG_DIR):
        for name in sorted(names):
            if not name.endswith(".new"):
                _read_small(root, Path(parent) / name, found)
    for query in list_queries(root):
        _read_small(root, published_path(root, query), found)
    for name in DURABLE_NOTES:
        _read_small(root, checkpoints.own_dir(root) / name, found)
    return found


def read_topics(root: Path) -> Files:
    """The table of topics. Call it after you asked where the log ends.

    So it has each topic of the messages below that end; a topic without messages does no harm.
    """
    found: Files = {}
    _read_small(root, root / TOPICS_FILE, found)
    return found


def _read_small(root: Path, path: Path, found: Files) -> None:
    with suppress(FileNotFoundError):  # it was replaced or removed at this moment, or never made
        found[str(path.relative_to(root))] = read_bounded(path, TOPICS_FILE_BYTES_MAX)


def write_state(
    out: Path,
    number: int,
    store_id: str | None,
    files: Files,
    epochs: list[checkpoints.EpochLine],
    tails: checkpoints.Tails,
) -> int:
    """Writes the folder of a backup's small files, durably; returns how many files it has."""
    folder = state_dir(out, number)
    if folder.exists():  # of a backup that broke off
        disk.remove_tree(folder)
    disk.make_durable_dir(checkpoints.own_dir(folder))
    for name, data in files.items():
        disk.make_durable_dir((folder / name).parent)
        disk.write_atomically(folder / name, data)
    # The next files get the id that `epochs` has: the folder has no lock.
    disk.write_atomically(
        checkpoints.own_dir(folder) / checkpoints.EPOCHS_FILE, checkpoints.seal("", store_id)
    )
    checkpoints.save_epochs(folder, epochs)
    checkpoints.save_tails(folder, tails)
    return len(files) + 2
