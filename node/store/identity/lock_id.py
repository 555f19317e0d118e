"""The id of a store, 128 random bits in hex, in the file `lock`: `lock keelog <id> <crc>`.

RocketMQ writes the four bytes "lock" at the beginning and leaves the rest as it is, so the id
outlives a broker that owns the store for a while.
"""

import os
import re
import secrets
import zlib
from pathlib import Path

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, read_bounded
from protocol.names import LOCK_FILE

ID_PATTERN = "[0-9a-f]{32}"
_ID_BYTES = 16
_LINE = re.compile(rf"lock keelog ({ID_PATTERN}) ([0-9a-f]{{8}})\n".encode())


def new_id() -> str:
    """A new random id."""
    return secrets.token_hex(_ID_BYTES)


def load_lock_id(root: Path) -> str | None:
    """The id in `lock`; None without the file, or without an id with a good CRC. Raises OSError."""
    try:
        found = _LINE.match(read_bounded(root / LOCK_FILE, SMALL_FILE_BYTES_MAX))
    except FileNotFoundError:
        return None
    if found is None or found[2] != _crc(found[1]):
        return None
    return found[1].decode()


def save_lock_id(root: Path, store_id: str) -> None:
    """Writes the id, durably. The line is in one sector: a power loss leaves all of it or none.

    The caller may hold the store's lock: that belongs to another file description.
    """
    word = store_id.encode()
    descriptor = disk.open_file(root / LOCK_FILE, create=True, own=True)
    try:
        disk.write_all(descriptor, b"lock keelog %s %s\n" % (word, _crc(word)), 0)
        disk.sync_with_length(descriptor)
    finally:
        os.close(descriptor)
    disk.sync_dir(root)


def _crc(word: bytes) -> bytes:
    return b"%08x" % zlib.crc32(word)
