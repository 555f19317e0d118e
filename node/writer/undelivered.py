"""What waits to be delivered at a node that has nobody who does it: one without a gateway."""

import json
import logging
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.run_files import TimerState, read_timer_state, write_timer_state
from node.runtime.store_paths import read_bounded
from node.store.file_cache import OpenFiles
from node.store.queues import is_filler, open_queue_files, queue_folder
from node.writer.store import WriterStore
from protocol.derived.file_layouts import (
    TIMER_CHECK_FILE_BYTES,
    WHEEL_BYTES,
    WHEEL_SLOT,
    TimerCheck,
)
from protocol.errors import CorruptError
from protocol.ids import Queue
from protocol.names import (
    DELAY_OFFSETS_FILE,
    SCHEDULE_TOPIC,
    TIMER_CHECK_FILE,
    TIMER_TOPIC,
    TIMER_WHEEL_FILE,
)
from protocol.record.waiting import PRECISION_MS

log = logging.getLogger("keelog.writer")

SHOW_EVERY_S = 5.0
_OFFSETS_BYTES_MAX = 1 << 20


class Undelivered:
    """Counted once, when the node starts: without a gateway no message with a delay is taken.

    Files that cannot be read stop no start: the processes that own them say what is wrong.
    """

    def __init__(self, store: WriterStore) -> None:
        self._root = store.root
        self._show_at = 0.0
        self.count = 0
        self._first_ms: int | None = None
        if store.delays.delivers:
            if read_timer_state(self._root).undelivered:
                with disk.if_room():
                    write_timer_state(self._root, TimerState())
            return
        self._count_levels(store)
        self._count_timers(store)
        if self.count:
            hint = "start the node with --remoting"
            found = fields(messages=self.count, hint=hint)
            log.warning("delayed messages wait, and nobody delivers them", extra=found)

    def _note(self, count: int, due_ms: int | None) -> None:
        self.count += count
        if due_ms is not None and (self._first_ms is None or due_ms < self._first_ms):
            self._first_ms = due_ms

    def _count_levels(self, store: WriterStore) -> None:
        delivered = _delay_offsets(self._root)
        for queue, end in store.placement.tails.items():
            if queue.topic != SCHEDULE_TOPIC:
                continue
            first = delivered.get(str(queue.queue_id + 1), 0)
            if first < end:
                low, due_ms = 0, None
                with suppress(CorruptError, OSError):
                    low, due_ms = self._first_due(queue, first)
                self._note(max(0, end - max(first, low)), due_ms)

    def _first_due(self, queue: Queue, first: int) -> tuple[int, int | None]:
        """Where the queue begins, and when its message `first` is due: its unit says so."""
        with closing(OpenFiles()) as files:
            found = open_queue_files(queue_folder(self._root, queue), None, files)
            if found.is_empty:
                return 0, None
            low = max(first, found.first)
            units = found.read(low, 1)
            if not len(units) or is_filler(units)[0]:
                return found.first, None
            return found.first, int(units["tags_code"][0])

    def _count_timers(self, store: WriterStore) -> None:
        check = TimerCheck()
        with suppress(CorruptError, OSError):
            check = TimerCheck.parse(
                read_bounded(self._root / TIMER_CHECK_FILE, TIMER_CHECK_FILE_BYTES)
            )
        end = store.placement.tails.get(Queue(TIMER_TOPIC, 0), 0)
        self._note(max(0, end - check.queue_offset), None)
        slots = np.empty(0, WHEEL_SLOT)
        with suppress(CorruptError, OSError, ValueError):
            slots = np.frombuffer(
                read_bounded(self._root / TIMER_WHEEL_FILE, WHEEL_BYTES), WHEEL_SLOT
            )
        waiting = slots[(slots["second"] >= check.read_ms // PRECISION_MS) & (slots["count"] > 0)]
        if len(waiting):
            first_ms = int(waiting["second"].min()) * PRECISION_MS
            self._note(int(waiting["count"].sum()), first_ms)

    def turn(self, now: float, now_ms: int) -> None:
        """Shows the count, and by how much the first message is late. `now`: monotonic."""
        if not self.count or now < self._show_at:
            return
        self._show_at = now + SHOW_EVERY_S
        late_ms = 0 if self._first_ms is None else max(0, now_ms - self._first_ms)
        with disk.if_room():
            write_timer_state(
                self._root, TimerState(self.count, late_ms=late_ms, undelivered=self.count)
            )


def _delay_offsets(root: Path) -> dict[str, int]:
    """By level; the process that delivers says what is wrong with a file that cannot be read."""
    try:
        table = json.loads(read_bounded(root / DELAY_OFFSETS_FILE, _OFFSETS_BYTES_MAX))
        return {level: int(offset) for level, offset in table["offsetTable"].items()}
    except (CorruptError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
