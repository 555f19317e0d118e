"""Reads the message that a queue's unit names, and verifies that its record is that message."""

from pathlib import Path

from node.store.file_cache import FileVanished
from node.store.hints import see_all_damage
from node.store.log.reader import LogReader
from node.store.queues.reader import QueueReader
from protocol.derived.queue_unit import QueueUnit
from protocol.errors import MessageDamaged, NotFound, StoreDamaged
from protocol.record.check import WantedRecords
from protocol.record.codec import Filler, Record, Torn


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
        found = _peek(log, unit.physical_offset)
        wanted = WantedRecords(queue.queue, (number,), (unit.physical_offset,), (unit.size,))
        if isinstance(found, Record) and wanted.is_this(0, found):
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


def _peek(log: LogReader, place: int) -> Record | Filler | Torn | StoreDamaged:
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
    match _peek(log, place):
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
