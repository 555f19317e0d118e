"""What a writing task and the commit after it do with a node, without Spark.

A task stages its rows under an id of its own, and the commit publishes the stages of the tasks that
succeeded: once for each query and batch.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from keelog.client.send.staging import StageClient, StagedPart, StageWriter
from keelog.pipeline.errors import naming_node
from keelog.pipeline.sink.options import SinkOptions
from keelog.pipeline.sink.rows import ROWS_MAX, Encoded, NodeRules, RowEncoder
from protocol.errors import MqError, RequestTimeout, ServiceNotAvailable, UnknownTopic

log = logging.getLogger("keelog.spark")

FRAME_BYTES = 512 * 1024
"""A frame is that large, or one record: the node checks one at a time, between other requests."""
DROP_STAGE_S_MAX = 5.0
"""So long a task that was refused tries to drop what it has staged."""
NEW_TOPIC_QUEUES = 8
"""What a node gives a topic that a message makes."""
_clients: dict[tuple[int, str, float], StageClient] = {}
"""By process and address: Python workers of Spark are used again, and some are forks of others."""


class StageId(NamedTuple):
    """Which task of which batch writes."""

    query: str
    batch: int
    partition: int
    attempt: str


class StagedRows(NamedTuple):
    """What a task hands to the commit; no part: nothing was to be staged."""

    query: str
    batch: int
    part: StagedPart | None


def client_of(options: SinkOptions) -> StageClient:
    """This process's connection to the node. Raises NotConnected."""
    key = os.getpid(), options.node, options.timeout_s
    client = _clients.get(key)
    if client is None:
        with naming_node(options.node):
            client = _clients[key] = StageClient(options.node, options.timeout_s)
    return client


def stage_rows(
    options: SinkOptions, place: StageId, batches: Iterable[pa.RecordBatch]
) -> StagedRows:
    """Stages all rows of a task. Raises BadRow, NotConnected, BusyError, RefusedError."""
    client = client_of(options)
    stage = f"{place.partition}-{place.attempt}-{secrets.token_hex(8)}"
    with naming_node(options.node):
        writer = client.stage(place.query, place.batch, stage)
        rules = NodeRules(client.routes.crc, client.routes.max_message_bytes)
        encoder = RowEncoder(
            options.places, options.topic, place.partition, rules, _queues_of(client)
        )
        try:
            for batch in batches:
                for start in range(0, batch.num_rows, ROWS_MAX):
                    if not writer.published:
                        _put(writer, encoder.encode(batch.slice(start, ROWS_MAX)))
            return StagedRows(place.query, place.batch, writer.finish())
        except (ServiceNotAvailable, RequestTimeout):
            # Spark repeats the task under another stage, which needs the room of this one.
            with suppress(MqError):
                client.unstage(place.query, place.batch, stage, DROP_STAGE_S_MAX)
            raise


def _queues_of(client: StageClient) -> Callable[[str], int]:
    def queues(topic: str) -> int:
        try:
            return client.write_queues(topic)
        except UnknownTopic:
            return NEW_TOPIC_QUEUES

    return queues


def _put(writer: StageWriter, encoded: Encoded) -> None:
    """Frames of whole records."""
    ends = encoded.ends
    first = start = 0
    while first < len(ends):
        last = max(int(ends.searchsorted(start + FRAME_BYTES, "right")), first + 1)
        end = int(ends[last - 1])
        writer.put(encoded.data[start:end], last - first)
        first, start = last, end


def publish(
    options: SinkOptions, query: str, batch: int, staged: Sequence[StagedRows | None], final: bool
) -> None:
    """Publishes what the tasks staged, in the order of the partitions.

    Raises NotConnected, BusyError, RefusedError: it may be done again.
    """
    parts = [one.part for one in staged if one is not None and one.part is not None]
    with naming_node(options.node):
        outcome = client_of(options).publish(
            query, batch, parts, final=final, timeout=options.publish_timeout_s
        )
    if outcome.already:
        log.warning("batch %d of query %s was published before: nothing was done", batch, query)


def drop(options: SinkOptions, query: str, batch: int) -> None:
    """Drops what was staged and is not published.

    Never raises: an error here would take the place of the one that ended the batch, and the node
    drops what nobody publishes by itself.
    """
    try:
        client_of(options).unstage(query, batch)
    except MqError as error:
        log.warning("batch %d of query %s stays staged for a while: %s", batch, query, error)
