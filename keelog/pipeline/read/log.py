"""Reads a part of the log from its first record to its last, window by window."""

from collections.abc import Iterator

import pyarrow as pa

from keelog.pipeline.read.damage_rows import DamagedPlace, on_damage, on_loss
from keelog.pipeline.read.plain_bodies import message_batches
from keelog.pipeline.stores.opening import task_files
from keelog.pipeline.task_spec import LogPart
from node.store.file_cache import FileVanished
from node.store.log.reader import Bounds, Damage, LogReader, columns_past_damage
from protocol.errors import StoreDamaged

WINDOW_BYTES = 4 << 20
"""Bytes of one read, and about those of one batch of rows."""


def read_log(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Batches of the part's records. Raises CorruptRecord, DataLoss, StoreDamaged.

    The segments are opened before the first one is read: retention does not cut a read short.
    """
    files = task_files(part.task.store)
    try:
        log = part.log.open(files)
        for start, end in _stretches(part, log):
            yield from _until_lost(part, log, start, end)
    finally:
        files.close()


def _stretches(part: LogPart, log: LogReader) -> list[tuple[int, int]]:
    """The part, cut at segments, without those that are gone."""
    stretches: list[tuple[int, int]] = []
    for segment in log.segments.segments:
        start, end = max(part.start, segment.start), min(part.end, segment.end)
        if start >= end:
            continue
        try:
            segment.file.check()
        except FileVanished:
            on_loss(
                part.task,
                f"{segment.path} was deleted after the read was planned: log offsets {start} to"
                f" {end - 1}",
            )
            continue
        stretches.append((start, end))
    return stretches


def _until_lost(part: LogPart, log: LogReader, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records of a stretch; what is left of it when its file goes away is a loss.

    A file that is open here stays readable, one that is read from elsewhere does not.
    """
    reached = start
    try:
        for batch, reached in _read_segment(part, log, start, end):  # noqa: B007
            yield batch
    except FileVanished as gone:
        on_loss(
            part.task,
            f"{gone.where} was deleted while it was read: log offsets {reached} to {end - 1}",
        )


def _read_segment(
    part: LogPart, log: LogReader, start: int, end: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches, and where each of them ends in the log."""
    task = part.task
    segment = log.segment_at(start)
    log.bounds = Bounds(segment.start, min(segment.end, part.log.end))
    ahead = min(end + WINDOW_BYTES, log.bounds.end)
    segment.file.expect(start - segment.start, ahead - segment.start)
    last_end = start
    for item in columns_past_damage(log, start, end, window_bytes=WINDOW_BYTES):
        if isinstance(item, Damage):
            offset = item.torn.position
            size = item.resumed_at - offset
            for row in on_damage(task, DamagedPlace(item.where, offset, size, item.torn.why)):
                yield row, item.resumed_at
            continue
        last_end = item.end
        shown = part.log.removed.visible(item)
        if len(shown):
            for batch in message_batches(task, shown):
                yield batch, last_end
    if log.stopped is not None and log.stopped.position < end:
        # Nothing up to the end of the segment proves itself.
        offset = log.stopped.position
        place = DamagedPlace(str(segment.path), offset, end - offset, log.stopped.why)
        for row in on_damage(task, place):
            yield row, end
    if last_end > end:
        raise StoreDamaged.worded(
            "KEELOG_STORE_DAMAGED",
            f"{segment.path}: the record that ends at {last_end} reaches over {end}, where the"
            " body of a message imitates a record",
            f"maxPartitionBytes={part.log.segment_bytes} without minPartitions, which cuts at"
            " segments alone",
        )
    log.bounds = Bounds(part.log.start, part.log.end)
