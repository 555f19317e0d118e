"""What an export holds, and how far it is: one JSON file, replaced as a whole.

Readers that want all of a version and nothing else take the files that it names.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from keelog.pipeline.errors import ExportMismatch

MANIFEST = "_keelog_manifest.json"
NEXT_MANIFEST = "_keelog_manifest.next.json"
"""The manifest to be, while its files are moved to their places."""
FORMAT = "keelog-export"
FORMAT_VERSION = 1


class ExportedFile(NamedTuple):
    """One Parquet file; `path` is relative to the export, offsets are log offsets in bytes."""

    path: str
    rows: int
    bytes: int
    first_offset: int
    last_offset: int
    version: int = 0


class LastExported(NamedTuple):
    """The last record that was exported: a store that has another one there is another store."""

    physical_offset: int
    size: int
    store_timestamp: int
    body_crc: int


@dataclass(frozen=True, slots=True)
class ExportPosition:
    """How far one store is exported.

    `log_end`: every record below this log offset, when everything is exported. `queues`: by topic
    and queue id the offset below which everything is, when queues are chosen.
    """

    log_end: int | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tail: LastExported | None = None

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Where a queue goes on; 0 for one that is new."""
        return self.queues.get(topic, {}).get(str(queue_id), 0)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of an export. `selection` is the same in every run of it."""

    version: int
    updated_at: int
    schema: str
    selection: Mapping[str, Any]
    stores: Mapping[str, ExportPosition]
    files: tuple[ExportedFile, ...]

    def to_json(self) -> bytes:
        """Returns the file's bytes, with the format's name first."""
        document = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        document["stores"] = {
            node: asdict(at) | {"tail": at.tail._asdict() if at.tail else None}
            for node, at in sorted(self.stores.items())
        }
        document["files"] = [file._asdict() for file in self.files]
        return json.dumps(document, ensure_ascii=False, indent=1).encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Raises ExportMismatch unless it is a manifest of this format version."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT or found["format_version"] != FORMAT_VERSION:
            raise ExportMismatch(
                f"{where} is of format {found['format']} {found['format_version']}, not {FORMAT}"
                f" {FORMAT_VERSION}",
                "the release of Keelog that wrote it, or another folder",
            )
        stores = {node: _position(at) for node, at in found["stores"].items()}
        return Manifest(
            found["version"],
            found["updated_at"],
            found["schema"],
            found["selection"],
            stores,
            tuple(ExportedFile(**file) for file in found["files"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportMismatch(
            f"{where} is no manifest of an export: {error!r}", "another folder, or remove this one"
        ) from None


def _position(found: Mapping[str, Any]) -> ExportPosition:
    tail = LastExported(**found["tail"]) if found["tail"] else None
    return ExportPosition(found["log_end"], found["queues"], tail)
