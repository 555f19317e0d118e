"""The op messages of one round of checks: they name the half messages that are resolved."""

from dataclasses import dataclass, field
from typing import NamedTuple

from keelog.client.core import ClientCore
from keelog.gateway.sending.half import ended_offsets
from keelog.gateway.transactions.queue_pages import read_page
from protocol.names import OP_TOPIC
from protocol.record.codec import Record

OPS_MAX = 200_000
"""Op messages that a round reads; if there are more, a transaction may be asked for in vain."""
RESOLVED_MAX = 1_000_000
"""Offsets from a round's begin on: it ends after them, and knows which of them are resolved."""


class _Op(NamedTuple):
    """An op message, and the last half message that it resolves."""

    offset: int
    physical_offset: int
    last: int


@dataclass(slots=True)
class OpView:
    """The ends from the op queue's `offset` on, for half messages from `first` on."""

    queue_id: int
    offset: int
    first: int
    resolved: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    """Half messages before `first`: newer copies of them may be open."""
    _ops: list[_Op] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """The offset at which the round ends."""
        return self.first + RESOLVED_MAX

    async def read(self, core: ClientCore) -> None:
        """Reads the queue to its end. Raises what a reader refuses."""
        following = self.offset
        while len(self._ops) < OPS_MAX:
            page = await read_page(core, OP_TOPIC, self.queue_id, following)
            if page.is_end:
                return
            if not self._ops:
                # Retention took what was there before.
                self.offset = page.records[0].head.queue_offset if page.records else following
            for record in page.records:
                self._take(record)
            following = page.next_offset
            if not self._ops:
                self.offset = following

    def _take(self, record: Record) -> None:
        offsets = ended_offsets(record)
        for offset in offsets:
            if self.first <= offset < self.limit:
                self.resolved.add(offset)
            elif offset < self.first and len(self.earlier) < RESOLVED_MAX:
                self.earlier.add(offset)
        head = record.head
        self._ops.append(_Op(head.queue_offset, head.physical_offset, max(offsets, default=-1)))

    def done_offset(self, half_offset: int, half_physical: int | None) -> int:
        """The offset of the first op message that the next round needs, which begins at a half
        message; `half_physical`: its place in the log, None at the end of the queue.

        A newer copy of a half message may refer to it: an op message counts until all half
        messages before it are passed.
        """
        done = self.offset
        for op in self._ops:
            is_passed = half_physical is None or op.physical_offset < half_physical
            if op.last >= half_offset or not is_passed:
                break
            done = op.offset + 1
        return done
