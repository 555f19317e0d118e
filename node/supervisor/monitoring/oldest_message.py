"""When the oldest message of a log was stored."""

import os
from pathlib import Path

from node.runtime.state_page import LogState
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from protocol.record.codec import Record, decode
from protocol.wire.frames import PAYLOAD_BYTES_MAX


class OldestMessage:
    """Reads one record whenever the log begins elsewhere, and remembers its time."""

    def __init__(self, root: Path) -> None:
        self._folder = root / COMMIT_LOG_DIR
        self._found: tuple[int, int] | None = None
        """The offset of the record, and its store time in ms."""

    def stored_at(self, log: LogState) -> int | None:
        """ms since 1970; None for an empty log, or while its first record cannot be read."""
        if log.readable <= log.min_offset or not log.segment_bytes:
            return None
        if self._found is None or self._found[0] != log.min_offset:
            self._found = self._read(log)
        return None if self._found is None else self._found[1]

    def _read(self, log: LogState) -> tuple[int, int] | None:
        start = log.min_offset - log.min_offset % log.segment_bytes
        size = min(PAYLOAD_BYTES_MAX, log.readable - log.min_offset)
        try:
            descriptor = os.open(self._folder / offset_file_name(start), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None  # retention took it just now
        try:
            data = os.pread(descriptor, size, log.min_offset - start)
        except OSError:
            return None  # the writer and the readers say what a bad disk does
        finally:
            os.close(descriptor)
        match decode(data, 0, log.min_offset):
            case Record() as record:
                return log.min_offset, record.head.store_timestamp
        return None
