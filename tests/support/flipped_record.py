"""One bit of one record of a store, running or not."""

from pathlib import Path

from protocol.names import COMMIT_LOG_DIR

BODY_AT = 92
"""Within the body of any record between IPv4 hosts with a body of some bytes."""


def flip_record(root: Path, physical_offset: int) -> None:
    """Changes a bit of the body of the record at a log offset."""
    segments = sorted((root / COMMIT_LOG_DIR).iterdir(), key=lambda path: int(path.name))
    segment = next(one for one in reversed(segments) if int(one.name) <= physical_offset)
    with segment.open("r+b") as file:
        place = physical_offset - int(segment.name) + BODY_AT
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
