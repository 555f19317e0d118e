"""Reads messages of a queue, and verifies that each record is the wanted message."""

import numpy as np

from node.store.log.reader import LogReader
from protocol.derived.kernel_read import MessageColumns, copy_messages
from protocol.errors import StoreDamaged
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.record.check import WantedRecords, first_unfit

Payload = bytes | memoryview
COMPILED_ABOVE = 4
"""Up to this number, records are faster without the compiled kernel."""


def verified_bytes(log: LogReader, messages: MessageColumns) -> tuple[Payload, int]:
    """The records before the first damaged one, back to back, and their number.

    All must be within the log. Raises StoreDamaged if the segment of the first record cannot be
    opened; a later such record counts as damaged.
    """
    compiled = loader.active()
    if compiled is not None and len(messages.size) > COMPILED_ABOVE:
        return _copied(compiled, log, messages)
    wanted = WantedRecords(
        messages.queue,
        messages.number.tolist(),
        messages.place.tolist(),
        messages.size.tolist(),
    )
    payload, count = log.payload(wanted.offsets, wanted.sizes)
    good = first_unfit(payload, wanted if count == len(wanted.sizes) else wanted.first(count))
    return (payload if good == count else payload[: sum(wanted.sizes[:good])]), good


def _copied(compiled: Kernel, log: LogReader, messages: MessageColumns) -> tuple[Payload, int]:
    """With the kernel, which copies and verifies a record in one pass, segment by segment."""
    rows = len(messages.size)
    out = log.buffers.take(int(messages.size.sum()))
    done = filled = 0
    while done < rows:
        try:
            segment = log.segment_at(int(messages.place[done]))
            data = np.frombuffer(segment.view(), np.uint8)
        except StoreDamaged:
            if not done:
                raise
            break
        place = messages.place[done:]
        inside = (place >= segment.start) & (place < segment.end)
        count = rows - done if inside.all() else int(np.argmin(inside))
        part = messages.part(slice(done, done + count))
        good = copy_messages(compiled, data, segment.start, part, out[filled:])
        filled += int(part.size[:good].sum())
        done += good
        if good < count:
            break
    return out.data[:filled], done
