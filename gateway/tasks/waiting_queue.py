"""One queue of messages that wait, read as any consumer would."""

import asyncio
import logging
from typing import NamedTuple

from client import operations
from client.aio.run import run
from client.core import ClientCore
from gateway.tasks.delivery import RETRY_S
from gateway.transactions.queue_pages import records_of
from node.runtime.event_log import fields
from protocol.errors import MessageDamaged
from protocol.record.codec import Record
from protocol.record.scheduled import RealPlace

log = logging.getLogger("keelog.tasks")

WAIT_S_MAX = 30.0
"""How long a reader holds a pull of a queue without messages, if `long_polling_ms_max` lets it."""
PULL_BYTES_MAX = 256 * 1024
PULL_MESSAGES_MAX = 1_000
"""In memory, of one queue."""
_HELD = ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE")
"""The outcomes for which a reader holds a pull."""


class Pulled(NamedTuple):
    """Messages, none after a while without one, and where the queue goes on."""

    records: list[Record]
    next_offset: int


class WaitingQueue:
    """A queue of the system's. `wait_s`: how long a pull is held."""

    def __init__(self, core: ClientCore, place: RealPlace, wait_s: float) -> None:
        self._core = core
        self._place = place
        self._wait_s = wait_s

    async def pull(self, offset: int) -> Pulled:
        """The next messages. Raises what a reader refuses, StoreDamaged."""
        asked = {
            "topic": self._place.topic,
            "queue": self._place.queue_id,
            "offset": offset,
            "max_messages": PULL_MESSAGES_MAX,
            "max_bytes": PULL_BYTES_MAX,
        }
        try:
            found = await run(self._core, operations.pull(asked, self._wait_s, 2 * WAIT_S_MAX))
        except MessageDamaged as damage:
            why = fields(topic=self._place.topic, queue=self._place.queue_id, why=damage)
            log.error("a delayed message is damaged, and not delivered", extra=why)  # noqa: TRY400
            return Pulled([], damage.next_offset)
        next_offset = found.next_begin_offset
        if not found.count:
            if next_offset != offset:
                # Retention took the messages in between, or the offset is of another log.
                extra = fields(
                    topic=self._place.topic, queue=self._place.queue_id,
                    before=offset, now=next_offset,
                )  # fmt: skip
                log.warning("a queue of delayed messages goes on elsewhere", extra=extra)
            elif self._wait_s < RETRY_S or found.status not in _HELD:
                await asyncio.sleep(RETRY_S)
        return Pulled(records_of(found), next_offset)
