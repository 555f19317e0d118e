"""Spark's side of a write: what its tasks, and the driver after them, call.

`DataFrameWriter` and `DataStreamWriter` differ in who numbers the batches. A batch write is batch 0
of a query of its own, whose id the writer makes once: it goes to tasks and commit with it.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from keelog.pipeline.errors import BadMode

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from keelog.pipeline.sink.options import SinkOptions
    from keelog.pipeline.sink.stage import StagedRows

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task reports to the commit."""

    rows: "StagedRows"


class KeelogWriter(DataSourceArrowWriter):
    """`df.write.format("keelog")`: all rows, or none, whatever is retried."""

    def __init__(self, options: "SinkOptions") -> None:
        self._options = options
        self._query = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskCommit:
        """In a task. Raises BadRow, NotConnected, BusyError, RefusedError."""
        return _stage(self._options, self._query, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have succeeded."""
        from keelog.pipeline.sink.stage import publish

        publish(self._options, self._query, 0, _rows(messages), final=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver; called after a failed commit too, and then changes nothing published."""
        from keelog.pipeline.sink.stage import drop

        drop(self._options, self._query, 0)


class KeelogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("keelog")`: each micro-batch once."""

    def __init__(self, options: "SinkOptions") -> None:
        self._options = options

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskCommit:
        """In a task, as KeelogWriter's."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if query is None or batch is None:
            raise BadMode(
                "a stream was written without Spark's ids of query and batch", "Spark 4.2"
            )
        return _stage(self._options, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver. A batch that was published before a crash is not published again."""
        from keelog.pipeline.sink.stage import publish

        rows = _rows(messages)
        for one in rows[:1]:
            publish(self._options, one.query, batchId, rows, final=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, as KeelogWriter's."""
        from keelog.pipeline.sink.stage import drop

        for one in _rows(messages)[:1]:
            drop(self._options, one.query, batchId)


def _stage(
    options: "SinkOptions", query: str, batch: int, iterator: Iterator["RecordBatch"]
) -> TaskCommit:
    from keelog.pipeline.sink.stage import StageId, stage_rows

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    attempt = 0 if context is None else context.taskAttemptId()
    return TaskCommit(stage_rows(options, StageId(query, batch, partition, str(attempt)), iterator))


def _rows(messages: list[WriterCommitMessage | None]) -> list["StagedRows"]:
    """A task that was lost reports nothing."""
    return [message.rows for message in messages if isinstance(message, TaskCommit)]
