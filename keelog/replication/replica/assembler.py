"""A master's log put together from the bytes of its frames, which cut records anywhere.

Bytes become part of our log only as whole records, each verified, so that its end is always the
end of a record. Of the blank that closes a segment, RocketMQ sends all bytes; its head is handed
out last: until then the segment does not end there.
"""

from collections.abc import Iterator
from typing import NamedTuple

from keelog.replication.replica.stops import OtherSegments, WrongRecord
from protocol.record.codec import FILLER_BYTES, Filler, Torn
from protocol.record.columns import RecordColumns, scan

RECORD_BYTES_MAX = 64 * 1024 * 1024
"""A larger record of a master is refused: so much waits in memory at most. RocketMQ allows 4 MiB,
unless its maxMessageSize says otherwise."""
_SIZE_BYTES = 4


class WholeRecords(NamedTuple):
    """Verified records that lie back to back from `offset` on, in one segment."""

    offset: int
    data: bytes
    columns: RecordColumns


class BlankRest(NamedTuple):
    """Bytes of a blank after its head, which do not belong to the log yet."""

    offset: int
    data: bytes


class BlankHead(NamedTuple):
    """The head of a blank, of which all other bytes came before: the segment ends."""

    offset: int
    data: bytes


Piece = WholeRecords | BlankRest | BlankHead


class LogAssembler:
    """Takes a master's bytes from log offset `start` on, where a record begins.

    `known`: bytes from there on that need not be sent.
    """

    def __init__(self, start: int, segment_bytes: int, known: bytes = b"") -> None:
        self._at = start
        self._segment_bytes = segment_bytes
        self._pending = bytearray(known)
        self._blank: BlankHead | None = None
        self._blank_end = 0

    @property
    def wanted(self) -> int:
        """The log offset of the next byte that is needed."""
        return self._at + len(self._pending)

    def feed(self, body: bytes | memoryview) -> None:
        """Takes the bytes at `wanted`."""
        self._pending += body

    def take(self) -> Iterator[Piece]:
        """What is whole by now. Raises FollowStopped for what cannot be of a log like ours."""
        while self._pending or self._blank is not None:
            if self._blank is not None:
                if self._at < self._blank_end and not self._pending:
                    return
                yield from self._take_blank(self._blank)
                continue
            data = bytes(self._pending[: self._left])
            found = scan(data, self._at)
            if found.end:
                yield WholeRecords(self._at, data[: found.end], found.columns)
                self._advance(found.end)
            if isinstance(found.stop, Filler):
                self._begin_blank(found.stop.size)
            elif found.stop is not None:
                self._check_cut(found.stop)
                return

    @property
    def _left(self) -> int:
        """The bytes from here to the end of the segment."""
        return self._segment_bytes - self._at % self._segment_bytes

    def _advance(self, size: int) -> None:
        self._at += size
        del self._pending[:size]

    def _begin_blank(self, size: int) -> None:
        if size != self._left:
            length = f"{self._at + size} bytes" if not self._at // self._segment_bytes else "more"
            raise OtherSegments(
                f"the master's segment ends {size} bytes after offset {self._at}, ours "
                f"{self._left} bytes after it",
                "follow with an empty directory and -X store.mapped_file_size_commit_log set to the"
                f" master's mappedFileSizeCommitLog ({length})",
            )
        self._blank = BlankHead(self._at, bytes(self._pending[:FILLER_BYTES]))
        self._blank_end = self._at + size
        self._advance(FILLER_BYTES)

    def _take_blank(self, blank: BlankHead) -> Iterator[Piece]:
        data = bytes(self._pending[: self._blank_end - self._at])
        if data:
            rest = BlankRest(self._at, data)
            self._advance(len(data))
            yield rest
        if self._at == self._blank_end:
            self._blank = None
            yield blank

    def _check_cut(self, torn: Torn) -> None:
        """Raises FollowStopped unless more bytes may make a record of what is here."""
        at = self._at
        if torn.kind != "cut":
            raise WrongRecord(
                f"the master sent no record for offset {at}: {torn.why}",
                "at the master: keelog store verify DIR --deep, and mend it by: keelog store repair"
                " DIR; then start this node again",
            )
        if len(self._pending) < FILLER_BYTES:
            if len(self._pending) >= self._left:
                raise OtherSegments(f"a record begins {self._left} bytes before a segment's end")
            return
        size = int.from_bytes(self._pending[:_SIZE_BYTES], "big")
        if size > self._left:
            raise OtherSegments(
                f"the record at offset {at} has {size} bytes, and {self._left} are left in the "
                "segment: the master's segments are longer",
                "follow with an empty directory and -X store.mapped_file_size_commit_log set to the"
                " master's mappedFileSizeCommitLog",
            )
        if size > RECORD_BYTES_MAX:
            raise WrongRecord(
                f"the record at offset {at} has {size} bytes, {RECORD_BYTES_MAX} are allowed"
            )
