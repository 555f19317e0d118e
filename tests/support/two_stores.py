"""Stores of the same shape whose files get mixed, and stores as they were before they had ids."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from node.store.checkpoints import FLOOR_FILE, ID_PATTERN, load_sealed, load_slots, own_dir, seal
from node.store.staging_files import staging_dir
from protocol.names import ABORT_FILE, LOCK_FILE


def own_names(root: Path) -> list[str]:
    """Our sealed files of a store, by their path below it."""
    folder = own_dir(root)
    found = [path for path in folder.iterdir() if path.is_file()]
    found += (folder / "progress").glob("*")
    return sorted(str(path.relative_to(root)) for path in found)


def put(name: str, source: Path, target: Path) -> None:
    """A file or folder of one store into another one, in the place of what is there."""
    if (source / name).is_dir():
        shutil.rmtree(target / name, ignore_errors=True)
        copy_store(source / name, target / name)
    else:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)


def copy_store(source: Path, target: Path) -> None:
    """A folder and all that is in it but sockets."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.bell"))


def take_ids_away(root: Path) -> None:
    """Leaves a store as the version before ids left it."""
    for path in _sealed_files(root):
        if path.name == FLOOR_FILE:
            slots = {
                int(slot.text.split()[0]) % 2: seal(slot.text, None) for slot in load_slots(path)
            }
            path.write_bytes(b"".join(slots.get(n, b"").ljust(512, b"\0") for n in (0, 1)))
            continue
        found = load_sealed(path)
        if found is not None:
            path.write_bytes(seal(found.text, None))
    (root / LOCK_FILE).write_bytes(b"lock")
    mark = root / ABORT_FILE
    if mark.exists():
        mark.write_text(re.sub(f" {ID_PATTERN}$", "", mark.read_text()))


def ids_in(root: Path) -> set[str | None]:
    """All ids that our sealed files carry, None for those that carry none."""
    found: set[str | None] = set()
    for path in _sealed_files(root):
        slots = load_slots(path) if path.name == FLOOR_FILE else filter(None, [load_sealed(path)])
        found |= {slot.store_id for slot in slots}
    return found


def _sealed_files(root: Path) -> Iterator[Path]:
    yield from (root / name for name in own_names(root))
    for pattern in ("*/published", "*/*/journal"):
        yield from staging_dir(root).glob(pattern)
