"""A log in which a body holds a whole record, sealed by its own place in the log."""

from pathlib import Path

from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import NewMessage, message_properties, pack_record
from tests.workers.living_log import LivingLog

FORGED_TOPIC = "forged"
_BEFORE = bytes(500)


def forged_log(root: Path) -> tuple[int, int]:
    """Makes the log of a store; answers where the record starts, and where the one in its body."""
    log = LivingLog(root, segment_bytes=64 * 1024)
    log.grow(40)
    start = log.end
    place = start + SHORT_HEAD.size + len(_BEFORE)
    message = NewMessage(topic=FORGED_TOPIC, queue_id=7, body=b"mine", tags="T", keys=("k",))
    inner = bytearray(pack_record(message, message_properties(message)))
    for name, value in (("queue_offset", 99), ("physical_offset", place), ("store_timestamp", 9)):
        at = SHORT_HEAD.offsets[name]
        inner[at : at + 8] = value.to_bytes(8, "big")
    body = _BEFORE + bytes(inner) + bytes(300)
    assert log.append(NewMessage(topic="orders", queue_id=0, body=body)) == start
    log.grow(40)
    log.publish()
    log.close()
    return start, place
