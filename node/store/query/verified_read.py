"""Reads messages of a queue, and verifies that each record is the wanted message."""

import numpy as np

from node.store.log.reader import LogReader
from protocol.derived.kernel_read import MessageUnits, copy_messages, unit_bytes
from protocol.errors import StoreDamaged
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.record.check import WantedRecords, first_unfit

Payload = bytes | memoryview
COMPILED_ABOVE = 4
"""Up to this number, records are faster without the compiled kernel."""


def verified_bytes(log: LogReader, messages: MessageUnits) -> tuple[Payload, int]:
    """The records before the first damaged one, back to back, and their number.

    All must be within the log. Raises StoreDamaged if the segment of the first record cannot be
    opened; a later such record counts as damaged.
    """
    compiled = loader.active()
    if compiled is not None and len(messages.units) > COMPILED_ABOVE:
        return _copied(compiled, log, messages)
    wanted = WantedRecords(
        messages.queue,
        messages.number.tolist(),
        messages.units["physical_offset"].tolist(),
        messages.units["size"].tolist(),
    )
    payload, count = log.payload(wanted.offsets, wanted.sizes)
    good = first_unfit(payload, wanted if count == len(wanted.sizes) else wanted.first(count))
    return (payload if good == count else payload[: sum(wanted.sizes[:good])]), good


def _copied(compiled: Kernel, log: LogReader, messages: MessageUnits) -> tuple[Payload, int]:
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
