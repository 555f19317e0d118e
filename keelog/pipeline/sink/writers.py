"""A write: what its tasks, and the driver after them, do with a node, and what Spark calls for it.

A task stages its rows under an id of its own, and the commit publishes the stages of the tasks that
succeeded: once for each query and batch. `DataFrameWriter` and `DataStreamWriter` differ in who
numbers the batches. A batch write is batch 0 of a query of its own, whose id the writer makes once:
it goes to tasks and commit with it.
"""

import logging
import os
import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from keelog.client.send.staging import StageClient, StagedPart, StageWriter
from keelog.pipeline.errors import BadMode, naming_node
from keelog.pipeline.options import SinkOptions
from keelog.pipeline.sink.rows import ROWS_MAX, RowEncoder
from protocol.errors import MqError, RequestTimeout, ServiceNotAvailable, UnknownTopic
from protocol.record.columns import Ints

log = logging.getLogger("keelog.spark")

FRAME_BYTES = 512 * 1024
"""A frame is that large, or one record: the node checks one at a time, between other requests."""
DROP_STAGE_S_MAX = 5.0
"""So long a task that was refused tries to drop what it has staged."""
NEW_TOPIC_QUEUES = 8
"""What a node gives a topic that a message makes."""
_clients: dict[tuple[int, str, float], StageClient] = {}
"""By process and address: Python workers of Spark are used again, and some are forks of others."""


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task reports to the commit; no part: nothing was to be staged."""

    query: str
    batch: int
    part: StagedPart | None


def _client_of(options: SinkOptions) -> StageClient:
    """This process's connection to the node. Raises NotConnected."""
    key = os.getpid(), options.node, options.timeout_s
    client = _clients.get(key)
    if client is None:
        with naming_node(options.node):
            client = _clients[key] = StageClient(options.node, options.timeout_s)
    return client


def stage_rows(
    options: SinkOptions,
    query: str,
    batch: int,
    partition: int,
    attempt: int,
    batches: Iterable[pa.RecordBatch],
) -> TaskCommit:
    """Stages all rows of a task. Raises BadRow, NotConnected, BusyError, RefusedError."""
    client = _client_of(options)
    stage = f"{partition}-{attempt}-{secrets.token_hex(8)}"

    def queues(topic: str) -> int:
        try:
            return client.write_queues(topic)
        except UnknownTopic:
            return NEW_TOPIC_QUEUES

    with naming_node(options.node):
        writer, routes = client.stage(query, batch, stage), client.routes
        encoder = RowEncoder(
            options.places, options.topic, partition, routes.crc, routes.max_message_bytes, queues
        )
        try:
            for rows in batches:
                for start in range(0, rows.num_rows, ROWS_MAX):
                    if not writer.published:
                        _put(writer, *encoder.encode(rows.slice(start, ROWS_MAX)))
            return TaskCommit(query, batch, writer.finish())
        except (ServiceNotAvailable, RequestTimeout):
            # Spark repeats the task under another stage, which needs the room of this one.
            with suppress(MqError):
                client.unstage(query, batch, stage, DROP_STAGE_S_MAX)
            raise


def _put(writer: StageWriter, data: memoryview, ends: Ints) -> None:
    """Frames of whole records; `ends` is where each ends."""
    first = start = 0
    while first < len(ends):
        last = max(int(ends.searchsorted(start + FRAME_BYTES, "right")), first + 1)
        end = int(ends[last - 1])
        writer.put(data[start:end], last - first)
        first, start = last, end


def _publish(
    options: SinkOptions, query: str, batch: int, staged: Sequence[TaskCommit], final: bool
) -> None:
    """Publishes what the tasks staged, in the order of the partitions.

    Raises NotConnected, BusyError, RefusedError: it may be done again.
    """
    parts = [one.part for one in staged if one.part is not None]
    with naming_node(options.node):
        outcome = _client_of(options).publish(
            query, batch, parts, final=final, timeout=options.publish_timeout_s
        )
    if outcome.already:
        log.warning("batch %d of query %s was published before: nothing was done", batch, query)


def _drop(options: SinkOptions, query: str, batch: int) -> None:
    """Drops what was staged and is not published.

    Never raises: an error here would take the place of the one that ended the batch, and the node
    drops what nobody publishes by itself.
    """
    try:
        _client_of(options).unstage(query, batch)
    except MqError as error:
        log.warning("batch %d of query %s stays staged for a while: %s", batch, query, error)


class KeelogWriter(DataSourceArrowWriter):
    """`df.write.format("keelog")`: all rows, or none, whatever is retried."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._query = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task. Raises BadRow, NotConnected, BusyError, RefusedError."""
        return stage_rows(self._options, self._query, 0, *_task(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have succeeded."""
        _publish(self._options, self._query, 0, _commits(messages), final=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver; called after a failed commit too, and then changes nothing published."""
        _drop(self._options, self._query, 0)


class KeelogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("keelog")`: each micro-batch once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task, as KeelogWriter's."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise BadMode(
                "a stream was written without Spark's ids of query and batch", "Spark 4.2"
            )
        return stage_rows(self._options, query, int(batch), *_task(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver. A batch that was published before a crash is not published again."""
        commits = _commits(messages)
        for one in commits[:1]:
            _publish(self._options, one.query, batchId, commits, final=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, as KeelogWriter's."""
        for one in _commits(messages)[:1]:
            _drop(self._options, one.query, batchId)


def _task() -> tuple[int, int]:
    """Partition and attempt of the task that runs here."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())


def _commits(messages: list[WriterCommitMessage | None]) -> list[TaskCommit]:
    """A task that was lost reports nothing."""
    return [message for message in messages if isinstance(message, TaskCommit)]
