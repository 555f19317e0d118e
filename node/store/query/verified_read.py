"""Reads the messages that units of a queue name, and verifies that each record is that message.

`record_of` reads one message, `verified_bytes` many.
"""

from pathlib import Path

import numpy as np

from node.store.file_cache import FileVanished, see_all_damage
from node.store.log.reader import LogReader
from node.store.queues import QueueReader
from protocol.derived.file_layouts import QueueUnit
from protocol.errors import MessageDamaged, NotFound, StoreDamaged
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.record.check import (
    MessageUnits,
    SealedRecord,
    copy_messages,
    first_unfit,
    unit_bytes,
)
from protocol.record.codec import Filler, Record, Torn

Payload = bytes | memoryview
COMPILED_ABOVE = 4
"""Up to this number, records are faster one by one."""


def record_of(log: LogReader, queue: QueueReader, number: int, unit: QueueUnit) -> Record:
    """The record that `unit` names, which is unit `number` of the queue.

    Raises MessageDamaged if the record is damaged, or is not this message; NotFound if it lies
    before the log's begin.
    """
    if 0 <= unit.physical_offset < log.min_offset:
        raise NotFound(
            f"message {number} of queue {queue.queue.queue_id} of {queue.queue.topic} was deleted",
            f"the log begins at offset {log.min_offset}",
        )
    if log.holds(unit.physical_offset, unit.size):
        found = _peek_or_damage(log, unit.physical_offset)
        wanted = (queue.queue, number, unit.size)
        if isinstance(found, Record) and (*SealedRecord.of(found)[:2], found.size) == wanted:
            return found
    raise damaged_message(log, queue, number, unit)


def store_time(log: LogReader, queue: QueueReader, number: int, unit: QueueUnit) -> int:
    """STORETIMESTAMP of a message; -1 if its record lies before the log's begin.

    A broker reads this field alone (pickupStoreTimestamp); here the whole record is verified.
    Raises MessageDamaged.
    """
    if 0 <= unit.physical_offset < log.min_offset:
        return -1
    return record_of(log, queue, number, unit).head.store_timestamp


def verified_bytes(log: LogReader, messages: MessageUnits) -> tuple[Payload, int]:
    """The records before the first damaged one, back to back, and their number.

    All must be within the log. Raises StoreDamaged if the segment of the first record cannot be
    opened; a later such record counts as damaged.
    """
    compiled = loader.active()
    if compiled is not None and len(messages.units) > COMPILED_ABOVE:
        return _copied_bytes(compiled, log, messages)
    offsets, sizes = messages.units["physical_offset"].tolist(), messages.units["size"].tolist()
    payload, count = log.payload(offsets, sizes)
    rows = zip(messages.number.tolist()[:count], offsets, sizes, strict=False)
    good = first_unfit(payload, messages.queue, rows)
    return (payload if good == count else payload[: sum(sizes[:good])]), good


def _copied_bytes(compiled: Kernel, log: LogReader, messages: MessageUnits) -> tuple[Payload, int]:
    """With the kernel, which copies and verifies a record in one pass, segment by segment."""
    units = messages.units
    rows, size = len(units), unit_bytes(compiled, units)
    out, segment = log.buffers.take(size), None
    done = filled = 0
    while done < rows:
        place = int(units[done]["physical_offset"])
        if segment is not None and segment.start <= place < segment.end:
            break  # the record there is not the message
        try:
            segment = log.segment_at(place)
            data = np.frombuffer(segment.view(), np.uint8)
        except StoreDamaged:
            if not done:
                raise
            break
        part = messages.after(done) if done else messages
        done += copy_messages(compiled, data, segment.start, part, out[filled:])
        filled = size if done == rows else unit_bytes(compiled, units[:done])
    return out.data[:filled], done


def damaged_message(
    log: LogReader, queue: QueueReader, number: int, unit: QueueUnit
) -> MessageDamaged:
    """The error of a damaged message: record or unit, where, and how to go on after it."""
    where, offset, found = _what_is_wrong(log, queue, number, unit)
    topic, queue_id = queue.queue
    return MessageDamaged(
        where,
        offset,
        f"{found} (message {number} of queue {queue_id} of {topic})",
        f"{see_all_damage(Path(where))}; go on after it at queue offset {number + 1}:"
        f" keelog consume {topic} --queue {queue_id} -o {number + 1}",
        number,
        number + 1,
    )


def _peek_or_damage(log: LogReader, place: int) -> Record | Filler | Torn | StoreDamaged:
    """As `log.peek`, but returns the error of a damaged segment; raises for one that is gone."""
    try:
        return log.peek(place)
    except FileVanished:
        raise
    except StoreDamaged as damage:
        return damage


def _what_is_wrong(
    log: LogReader, queue: QueueReader, number: int, unit: QueueUnit
) -> tuple[str, int, str]:
    """File, offset and reason. If there is a whole record, the unit must be wrong."""
    file, position = queue.place(number)
    place, size = unit.physical_offset, unit.size
    says = f"the queue unit names {size} bytes at log offset {place}"
    if not log.holds(place, size):
        return str(file), position, f"{says}, outside [{log.min_offset}, {log.end})"
    match _peek_or_damage(log, place):
        case StoreDamaged() as damage:
            return damage.where, damage.offset, damage.found
        case Torn(why=why):
            return str(log.segment_at(place).path), place, why
        case Filler():
            return str(file), position, f"{says}, where the segment ends"
        case Record() as found:
            is_like = f"a record of {found.size} bytes of queue {found.head.queue_id} of"
            other = f"{is_like} {found.topic}, number {found.head.queue_offset}"
            return str(file), position, f"{says}, where {other} stands"
