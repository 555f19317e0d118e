"""Logs as a master writes them: records in segments, each closed by a blank."""

from protocol.ids import Host
from protocol.record.codec import FILLER_BYTES, filler
from protocol.record.encode import NewMessage, encode_batch
from protocol.record.patch import AppendRules, StoreStamp, check_plain, patch_plain

SEGMENT_BYTES = 4096
"""Small, so that a log of a few hundred messages has many."""
_HOST = Host(bytes([192, 0, 2, 7]), 10911)
_BORN_MS = 1_700_000_000_000


class MasterLog:
    """Grows by messages; `data` is the whole log so far, from offset 0 on."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES, garbage: bytes = b"\0") -> None:
        """`garbage` fills the blanks: RocketMQ leaves there what was there."""
        self.segment_bytes = segment_bytes
        self.data = bytearray()
        self._garbage = garbage
        self._next: dict[tuple[str, int], int] = {}

    def put(self, body: bytes, topic: str = "orders", queue_id: int = 0) -> None:
        """Appends one message."""
        message = NewMessage(
            topic=topic, body=body, queue_id=queue_id, born_timestamp=_BORN_MS, born_host=_HOST
        )
        raw = bytearray(encode_batch([message], crc=False).records)
        left = self.segment_bytes - len(self.data) % self.segment_bytes
        if len(raw) + FILLER_BYTES > left:
            rest = self._garbage * (left // len(self._garbage) + 1)
            self.data += filler(left) + rest[: left - FILLER_BYTES]
        offset = self._next.get((topic, queue_id), 0)
        self._next[topic, queue_id] = offset + 1
        rules = AppendRules(4 << 20, crc=False)
        (row,) = check_plain(bytes(raw), rules)
        stamp = StoreStamp(_BORN_MS + len(self.data), _HOST.to_bytes())
        patch_plain(raw, row, offset, len(self.data), stamp, crc=False)
        self.data += raw

    def put_many(self, count: int, tag: str = "m") -> None:
        """Messages of many sizes for four queues."""
        for number in range(count):
            body = f"{tag}-{number}-".encode() * (1 + number * 7 % 23)
            self.put(body, queue_id=number % 4)

    def fill_up(self, left: int) -> None:
        """A message after which exactly `left` bytes of the segment are left, from 8 on."""
        room = self.segment_bytes - len(self.data) % self.segment_bytes
        probe = MasterLog(self.segment_bytes)
        probe.put(b"")
        self.put(b"x" * (room - left - len(probe.data)))
