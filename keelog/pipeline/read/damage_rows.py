"""What happens at damage and at loss: an error, nothing, or a row that reports it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import pyarrow as pa

from keelog.pipeline.errors import CorruptRecord, DataLoss
from keelog.pipeline.log import log
from keelog.pipeline.read.arrays import arrow_schema
from keelog.pipeline.tables import DAMAGE
from keelog.pipeline.task_spec import Task
from protocol.addresses import without_credentials

_INT_MAX = 2**31 - 1


class DamagedPlace(NamedTuple):
    """Bytes that form no record; topic, queue and offset are known where a queue unit led there."""

    where: str
    physical_offset: int
    size: int
    why: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def __str__(self) -> str:
        text = f"{self.where}, offset {self.physical_offset}: {self.why}"
        if self.topic is None:
            return text
        return f"{text} (message {self.queue_offset} of {self.topic}/{self.queue_id})"


class PassedOver:
    """How many damaged places a task left out."""

    count = 0


_passed_over = ContextVar[PassedOver | None]("passed_over", default=None)


@contextmanager
def passed_over_counted() -> Iterator[PassedOver]:
    """Counts what is passed over by what is read within, in this thread."""
    found = PassedOver()
    before = _passed_over.set(found)
    try:
        yield found
    finally:
        _passed_over.reset(before)


def on_damage(task: Task, place: DamagedPlace) -> Iterator[pa.RecordBatch]:
    """As `onCorruptRecord` says: raises CorruptRecord, or gives nothing, or one row."""
    if task.on_corrupt == "fail":
        raise CorruptRecord(
            str(place),
            "onCorruptRecord=skip or report to read on behind it, and keelog store verify to see"
            " all damage",
        )
    if task.on_corrupt == "skip":
        log.warning("damage is passed over: %s", place)
        passed_over = _passed_over.get()
        if passed_over is not None:
            passed_over.count += 1
        return
    known = {
        "topic": place.topic,
        "queueId": place.queue_id,
        "queueOffset": place.queue_offset,
        "partition": place.queue_id,
        "offset": place.queue_offset,
        "physicalOffset": place.physical_offset,
        "storeSize": min(place.size, _INT_MAX),
        "node": task.store.node,
        DAMAGE.name: without_credentials(f"{place.where}: {place.why}"),
    }
    schema = arrow_schema(task.columns)
    arrays = [pa.array([known.get(field.name)], field.type) for field in schema]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def on_loss(task: Task, what: str) -> None:
    """Raises DataLoss, or with `failOnDataLoss=false` leaves a warning in the task's log."""
    if task.fail_on_data_loss:
        raise DataLoss(
            what,
            "load() again to plan with what is there now, or failOnDataLoss=false to read what is"
            " left",
        )
    log.warning("messages are lost: %s", what)
