"""What a task does: its part of the files, as batches of rows. Knows nothing of Spark."""

from collections.abc import Iterator

import pyarrow as pa

from keelog.pipeline.errors import naming_conditions
from keelog.pipeline.read.index import read_index
from keelog.pipeline.read.log import read_log
from keelog.pipeline.read.queues import read_messages, read_units
from keelog.pipeline.task_spec import IndexPart, LogPart, Part


def read_part(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, none of the batches empty. Raises MqError."""
    with naming_conditions():
        yield from _batches(part)


def _batches(part: Part) -> Iterator[pa.RecordBatch]:
    if isinstance(part, LogPart):
        return read_log(part)
    if isinstance(part, IndexPart):
        return read_index(part)
    return read_units(part) if part.log is None else read_messages(part)
