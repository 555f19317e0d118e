"""The stream source: Spark's interface of it, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from keelog.pipeline.options import SourceOptions
from keelog.pipeline.read.part import read_part
from keelog.pipeline.stream.micro_batch import TriggerLimits, parse_position
from keelog.pipeline.stream.planner import StreamPlanner

ROWS_MAX = 2**63 - 1
"""Means no limit: `ReadAllAvailable` would put all of it into one batch."""


class KeelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives on the driver's machine while a query runs. Tasks have another, without state."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: StreamPlanner | None = None

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            self._opened = StreamPlanner(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Where a new query begins. Raises UnknownTopic, BadOption, OffsetOutOfRange."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The first of the options' limits. Spark knows no two at once: all are kept below."""
        limits = self._options.triggers
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.rows_min is not None:
            return ReadMinRows(limits.rows_min)
        return ReadMaxRows(ROWS_MAX)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends. Raises DataLoss, TargetMoved, BadCheckpoint."""
        limits = self._limits(limit)
        return self._planner.latest(parse_position(start), limits).to_json()

    def _limits(self, limit: ReadLimit) -> TriggerLimits | None:
        limits = self._options.triggers
        if isinstance(limit, ReadAllAvailable):
            return None
        if isinstance(limit, ReadMaxRows):
            return replace(limits, rows_max=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return replace(limits, bytes_max=limit.max_bytes)
        return limits

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the queues end, for the query's progress."""
        return self._planner.report().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes what is read at most."""
        self._planner.fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each part. Raises DataLoss, TargetMoved, BadCheckpoint."""
        parts = self._planner.parts(parse_position(start), parse_position(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one part as Arrow batches."""
        if partition is not None and partition.value is not None:
            yield from read_part(partition.value)

    def stop(self) -> None:
        """Closes the stores."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
