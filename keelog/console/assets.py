"""The files beside the pages, held in memory: style, scripts, picture.

Their folder has the digest of all of them in its name, so that a browser keeps them for ever, and
scripts import each other by their plain names. No path of a browser reaches the disk.
"""

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGEST_CHARS = 16


class Asset(NamedTuple):
    """One file."""

    content_type: str
    plain: bytes
    packed: bytes
    """By gzip."""


class Assets:
    """All files below `folder`, as they were at the start."""

    def __init__(self, folder: Path = STATIC) -> None:
        self.files: dict[str, Asset] = {}
        """By their paths below the folder."""
        total = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            kind = KINDS.get(path.suffix)
            if kind is None:
                continue
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            total.update(f"{name} {len(data)} ".encode() + data)
            packed = gzip.compress(data, mtime=0)
            self.files[name] = Asset(f"{kind}; charset=utf-8", data, packed)
        self.folder = f"/assets/{total.hexdigest()[:_DIGEST_CHARS]}"
