"""Batches of messages whose bodies are unpacked where their producer compressed them.

Records without the bit of compression cost one look at the column SYSFLAG; without a column for
bodies nothing is unpacked at all.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from keelog.pipeline.read.damage_rows import DamagedPlace, on_damage
from keelog.pipeline.read.message_rows import MessageRows
from keelog.pipeline.task_spec import Task
from protocol.errors import BodyUnreadable, CodecMissing
from protocol.record.bodies import COMPRESSED
from protocol.record.columns import RecordColumns

PLAIN_BATCH_BYTES = 16 << 20
"""With more of unpacked bodies a batch ends, by one body at most later."""
_BODIES = frozenset(("body", "value"))


def message_batches(task: Task, columns: RecordColumns) -> Iterator[pa.RecordBatch]:
    """The records as rows; several batches where bodies become large.

    A body that cannot be unpacked is damage, as `onCorruptRecord` says. Raises CorruptRecord,
    CodecMissing.
    """
    packed = columns.sys_flag & COMPRESSED != 0
    if _BODIES.isdisjoint(column.name for column in task.columns) or not packed.any():
        yield _batch(task, columns, {})
        return
    start, size, plain = 0, 0, dict[int, bytes]()
    for row in np.flatnonzero(packed).tolist():
        record = columns.record(row)
        try:
            body = record.body
        except CodecMissing as error:
            hint = error.hint.partition(";")[0]
            raise CodecMissing.worded(
                "KEELOG_CODEC_MISSING", error.reason, f"{hint}, or the column rawBody"
            ) from None
        except BodyUnreadable as error:
            if row > start:
                yield _batch(task, columns.take(slice(start, row)), plain)
            head = record.head
            yield from on_damage(
                task,
                DamagedPlace(
                    error.where, error.offset, head.total_size, error.found, record.topic,
                    head.queue_id, head.queue_offset,
                ),
            )  # fmt: skip
            start, size, plain = row + 1, 0, {}
            continue
        plain[row - start] = body
        size += len(body)
        if size >= PLAIN_BATCH_BYTES:
            yield _batch(task, columns.take(slice(start, row + 1)), plain)
            start, size, plain = row + 1, 0, {}
    if start < len(columns):
        yield _batch(task, columns.take(slice(start, None)), plain)


def _batch(task: Task, columns: RecordColumns, plain: dict[int, bytes]) -> pa.RecordBatch:
    return MessageRows(columns, task.store.node, plain).batch(task.columns)
