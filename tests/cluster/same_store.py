"""Whether two stores have the same log, queues and index, byte for byte."""

import shutil
from pathlib import Path

from node.runtime.settings import Settings
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR
from workers.rebuild import rebuild

UNIT = 20
_PIECE = 1 << 20


def differing_log(ours: Path, theirs: Path, begin: int, end: int) -> list[str]:
    """The first difference of each segment in [begin, end), which both have to have."""
    faults = []
    for path in sorted((ours / COMMIT_LOG_DIR).iterdir()):
        start, size = int(path.name), path.stat().st_size
        first, last = max(begin, start) - start, min(end, start + size) - start
        other = theirs / COMMIT_LOG_DIR / path.name
        if first >= last:
            continue
        if not other.exists():
            faults.append(f"no segment {path.name}")
            continue
        with path.open("rb") as one, other.open("rb") as two:
            for at in range(first, last, _PIECE):
                count = min(_PIECE, last - at)
                one.seek(at)
                two.seek(at)
                if one.read(count) != two.read(count):
                    faults.append(f"{path.name} differs within {count} bytes from {start + at} on")
                    break
    return faults


def rebuilt_copy(root: Path, into: Path, settings: Settings) -> Path:
    """A copy of the store's log with queues and index as they follow from it."""
    copy = into / "rebuilt"
    shutil.copytree(root / COMMIT_LOG_DIR, copy / COMMIT_LOG_DIR)
    (copy / "lock").touch()
    rebuild(copy, settings=settings)
    return copy


def differing_queues(ours: Path, theirs: Path) -> list[str]:
    """Queue files that differ in the units of either, and those that one side does not have."""
    return _differing(_queue_files(ours), _queue_files(theirs))


def differing_index(ours: Path, theirs: Path) -> list[str]:
    """Index files, in the order of their names, that differ."""
    return _differing(_index_files(ours), _index_files(theirs))


def _differing(ours: dict[str, bytes], theirs: dict[str, bytes]) -> list[str]:
    faults = [f"{name} is missing there" for name in sorted(ours.keys() - theirs.keys())]
    faults += [f"{name} is only there" for name in sorted(theirs.keys() - ours.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            pairs = zip(ours[name], theirs[name], strict=False)
            at = next((n for n, (one, two) in enumerate(pairs) if one != two), "its end")
            faults.append(f"{name} differs at {at}")
    return faults


def _queue_files(root: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted((root / CONSUME_QUEUE_DIR).rglob("*")):
        if path.is_file():
            used = path.read_bytes().rstrip(b"\0")
            units = used.ljust(-(-len(used) // UNIT) * UNIT, b"\0")
            if units:
                found[str(path.relative_to(root))] = units
    return found


def _index_files(root: Path) -> dict[str, bytes]:
    folder = root / INDEX_DIR
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {f"index file {number}": path.read_bytes() for number, path in enumerate(paths)}
