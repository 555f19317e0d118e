"""What Spark does with a stream reader, step by step and through JSON, without Spark."""

import json
from typing import Any

from keelog.pipeline.options import parse_options
from keelog.pipeline.stream_query import KeelogStreamReader
from tests.pipeline.facts_as_rows import plain_rows
from tests.support.golden import Row

Batch = tuple[dict[str, Any], dict[str, Any]]


class Engine:
    """One query. `log` has the start and end of each batch, as a checkpoint has them."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.reader = KeelogStreamReader(parse_options(options, use="stream"))
        self.log: list[Batch] = []

    def latest(self) -> dict[str, Any]:
        """Where the next batch would end, through JSON as Spark has it."""
        start = self.log[-1][1] if self.log else self.reader.initialOffset()
        limit = self.reader.getDefaultReadLimit()
        found = self.reader.latestOffset(json.loads(json.dumps(start)), limit)
        answer: dict[str, Any] = json.loads(json.dumps(found))
        return answer

    def plan(self) -> bool:
        """Puts the next batch into the log; False when there is none. The first is always one."""
        start = self.log[-1][1] if self.log else self.reader.initialOffset()
        end = self.latest()
        if self.log and json.dumps(end) == json.dumps(start):
            return False
        self.log.append((start, end))
        return True

    def rows(self, batch: int = -1) -> list[Row]:
        """The rows of a batch of the log, read anew."""
        parts = self.reader.partitions(*self.log[batch])
        return [
            row for part in parts for found in self.reader.read(part) for row in plain_rows(found)
        ]

    def drain(self, batches_max: int = 1000) -> list[list[Row]]:
        """The rows of batches until there is nothing more."""
        found: list[list[Row]] = []
        while self.plan():
            found.append(self.rows())
            assert len(found) <= batches_max
        return found

    def restarted(self, **options: str) -> "Engine":
        """The query again from the same checkpoint, by another process."""
        self.reader.stop()
        after = Engine(**{**self.options, **options})
        after.log = self.log
        return after
