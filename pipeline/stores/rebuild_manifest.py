"""What a rebuild has put into an object store: one JSON object, which is written last.

Without it the folder is not finished, whatever else is in it.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.errors import JobFailed

MANIFEST = "_keelog_rebuild.json"
MARKER = "_keelog_rebuild.building"
"""Beside it while a rebuild runs; alone where one has died."""
FORMAT = "keelog-rebuild"
FORMAT_VERSION = 1


class OutFile(NamedTuple):
    """One object; `path` is relative to the folder, `sha256` in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RebuildManifest:
    """A finished rebuild: of the records in [`log_start`, `log_end`) of `source`.

    `figures`: records, queues, units and so on, as `RebuildResult` has them.
    """

    source: str
    log_start: int
    log_end: int
    figures: Mapping[str, object]
    files: Sequence[OutFile]
    updated_at: int = 0

    def to_json(self) -> bytes:
        """Returns the object's bytes: the format's name first, and the time in ms."""
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "updated_at": time.time_ns() // 1_000_000,
            "source": self.source,
            "log": {"start": self.log_start, "end": self.log_end},
            "figures": dict(self.figures),
            "files": [file._asdict() for file in self.files],
        }
        return json.dumps(document, ensure_ascii=False, indent=1).encode()


def parse_manifest(data: bytes, where: str) -> RebuildManifest:
    """Raises JobFailed unless it is a whole manifest of this format version."""
    try:
        found: dict[str, Any] = json.loads(data)
        if (found["format"], found["format_version"]) != (FORMAT, FORMAT_VERSION):
            raise JobFailed(
                f"{where} is of format {found['format']} {found['format_version']}, not {FORMAT}"
                f" {FORMAT_VERSION}",
                "the release of Keelog that wrote it, or another folder",
            )
        return RebuildManifest(
            source=found["source"],
            log_start=found["log"]["start"],
            log_end=found["log"]["end"],
            figures=found["figures"],
            files=tuple(OutFile(**file) for file in found["files"]),
            updated_at=found["updated_at"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise JobFailed(
            f"{where} is no manifest of a rebuild: {error!r}", "the same rebuild again"
        ) from None
