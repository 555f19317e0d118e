"""Delivers messages that have waited, whatever they waited for: copies at their real places.

A delivery without a reply is repeated. So a crash may repeat one, and loses none.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from keelog.client.results import Receipt
from keelog.gateway.sending.stored_properties import copy_of, is_committed
from keelog.gateway.sending.writer_link import WriterLink
from node.runtime.event_log import fields
from protocol.errors import BadRequest, MqError, RefusedError
from protocol.record.codec import Record
from protocol.record.encode import ANY_QUEUE
from protocol.record.waiting import RealPlace

log = logging.getLogger("keelog.tasks")

RETRY_S = 1.0
_NOWHERE = BadRequest("it names no real topic and queue")


class Delivery(NamedTuple):
    """A message as it waits, where its copy goes, None: nowhere, and the copy's properties.

    `is_inner`: it goes to a topic of the system's, to wait on.
    """

    record: Record
    place: RealPlace | None
    properties: bytes
    is_inner: bool = False


class _Round:
    def __init__(self, link: WriterLink, deliveries: list[Delivery]) -> None:
        self._left = len(deliveries)
        self.errors: list[tuple[Delivery, MqError]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for one in deliveries:
            if one.place is None:
                self._end(one, _NOWHERE)
                continue
            copy = copy_of(one.record, one.place, one.properties, link.crc)
            is_inner = one.is_inner or is_committed(one.record)
            done = partial(self._end, one)
            link.put(copy, one.place, "", done, is_inner=is_inner)

    def _end(self, one: Delivery, outcome: Receipt | MqError) -> None:
        if isinstance(outcome, MqError):
            self.errors.append((one, outcome))
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


async def deliver_all(
    link: WriterLink, deliveries: Iterable[Delivery], warn: Callable[[MqError], None]
) -> int:
    """Delivers all of them, as often as it takes; returns how many, without those that no node
    takes: they stay in the log. `warn` hears of what makes it wait."""
    left = list(deliveries)
    count = len(left)
    while left:
        outcomes = _Round(link, left)
        await outcomes.done
        again: list[Delivery] = []
        for one, error in outcomes.errors:
            place = one.place
            if isinstance(error, BadRequest) and place and place.queue_id != ANY_QUEUE:
                # The topic has fewer queues than it had.
                again.append(one._replace(place=place._replace(queue_id=ANY_QUEUE)))
            elif isinstance(error, RefusedError):
                # It must not hold up the next ones.
                topic = one.record.properties.get("REAL_TOPIC", "")
                extra = fields(msg_id=one.record.message_id, topic=topic, why=error)
                log.error("a delayed message cannot be delivered", extra=extra)
                count -= 1
            else:
                warn(error)
                again.append(one)
        if len(again) == len(left):
            await asyncio.sleep(RETRY_S)
        left = again
    return count
