"""One queue of messages that wait, read as any consumer would."""

import asyncio
import logging
from typing import NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway.tasks.delivery import RETRY_S
from keelog.gateway.transactions.queue_pages import REQUEST_S, read_page
from node.runtime.event_log import fields
from protocol.record.codec import Record
from protocol.record.waiting import RealPlace

log = logging.getLogger("keelog.tasks")

WAIT_S_MAX = 30.0
"""How long a reader holds a pull of a queue without messages, if `long_polling_ms_max` lets it."""
PATIENCE_MS = 100
"""How late a message may be seen: delays are longer, and a reader that followed the log for these
queues would read all that producers send to others."""
_BEYOND = 1 << 62
"""An offset after the end of any queue."""
_HELD = ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE")
"""The outcomes for which a reader holds a pull."""


class Pulled(NamedTuple):
    """Messages, none after a while without one, where the queue goes on, and where it ends."""

    records: list[Record]
    next_offset: int
    max_offset: int


class WaitingQueue:
    """A queue of the system's. `wait_s`: how long a pull is held."""

    def __init__(self, core: ClientCore, place: RealPlace, wait_s: float) -> None:
        self._core = core
        self._place = place
        self._wait_s = wait_s

    async def pull(self, offset: int) -> Pulled:
        """The next messages. Raises what a reader refuses, StoreDamaged."""
        place = self._place
        found = await read_page(
            self._core, place.topic, place.queue_id, offset, self._wait_s, PATIENCE_MS
        )
        where = {"topic": place.topic, "queue": place.queue_id}
        if found.damage is not None:
            extra = fields(**where, why=found.damage)
            log.error("a delayed message is damaged, and not delivered", extra=extra)
        elif not found.records:
            if found.next_offset != offset:
                # Retention took the messages in between, or the offset is of another log.
                extra = fields(**where, before=offset, now=found.next_offset)
                log.warning("a queue of delayed messages goes on elsewhere", extra=extra)
            elif self._wait_s < RETRY_S or found.status not in _HELD:
                await asyncio.sleep(RETRY_S)
        return Pulled(list(found.records), found.next_offset, found.max_offset)

    async def end(self) -> int:
        """Where the queue ends now. Raises what a reader refuses."""
        wanted = {
            "topic": self._place.topic,
            "queue": self._place.queue_id,
            "offset": _BEYOND,
            "max_messages": 1,
            "patience_ms": PATIENCE_MS,
        }
        return (await run(self._core, operations.pull(wanted, 0.0, REQUEST_S))).max_offset
