"""Messages with a delay, which a broker stores in the schedule or the timer topic.

The process that delivers them (`keelog.gateway.tasks`) reads those topics. Without one a message
would never arrive, so that such a send is refused, and what waits from before is counted.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.run_files import TimerState, read_timer_state, write_timer_state
from node.runtime.settings import Settings
from node.runtime.store_paths import read_bounded
from node.store.file_cache import OpenFiles
from node.store.queues import is_filler, open_queue_files, queue_folder
from node.writer.appender import AppendRequest
from node.writer.topic_table import TopicTable
from protocol import names
from protocol.derived import file_layouts
from protocol.errors import BadRequest, CorruptError, NotAllowed
from protocol.ids import Queue
from protocol.record import properties, waiting
from protocol.record.codec import Record, decode, has_crc_property
from protocol.record.encode import pack_fields
from protocol.record.patch import AppendRules, check_sent

log = logging.getLogger("keelog.writer")

SHOW_EVERY_S = 5.0
_OFFSETS_BYTES_MAX = 1 << 20
Pending = tuple[AppendRequest, waiting.RealPlace, int | None]
"""The append of a message that waits, where it goes when it is due, and, for one that waits for a
time, that time in ms since 1970."""


class Delays:
    """Holds messages with delays. `now_ms` returns the wall clock."""

    def __init__(
        self,
        topics: TopicTable,
        rules: AppendRules,
        settings: Settings,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._rules = rules
        self._level_max = len(settings.delay_levels_ms)
        self._delay_ms_max = settings.timer_max_delay_sec * 1000
        self._now_ms = now_ms
        self.delivers = False
        """Whether the node has a process that delivers; its owner sets it."""

    def hold(
        self,
        request: AppendRequest,
        level: int | None,
        deliver_ms: int | None,
        delay_ms: int | None,
    ) -> Pending:
        """Returns the append of a message with a delay level, or with one of the two times.

        Raises NotAllowed for a node that does not deliver, BadRequest for more than one message or
        delay, IllegalMessage for a time that is too far away, and as any append.
        """
        if not self.delivers:
            raise NotAllowed(
                "this node does not deliver delayed messages",
                "start the node with --remoting 127.0.0.1:10911",
            )
        if [level, deliver_ms, delay_ms].count(None) != 2:
            raise BadRequest("several delays for one message", "give one of them")
        rows = check_sent(request, self._rules)
        if len(rows) != 1:
            raise BadRequest(f"{len(rows)} messages with a delay", "send them one by one")
        record = decode(request.records, 0, sealed=False)
        assert isinstance(record, Record), "it was checked"
        place = self._place(record)
        raw = record.properties_raw
        if has_crc_property(raw):
            raw = raw[: -properties.CRC_PROPERTY_BYTES]
        if level is not None:
            level = min(level, self._level_max)
            held = self._append(
                record, waiting.schedule_place(level), waiting.scheduled(raw, place, level)
            )
            return held, place, None
        return self._until(record, place, raw, deliver_ms, delay_ms)

    def _until(
        self,
        record: Record,
        place: waiting.RealPlace,
        raw: bytes,
        deliver_ms: int | None,
        delay_ms: int | None,
    ) -> Pending:
        name = properties.TIMER_DELIVER_MS if deliver_ms is not None else properties.TIMER_DELAY_MS
        asked = deliver_ms if deliver_ms is not None else delay_ms
        text = f"{asked}".encode()
        raw += b"%s\x01%s\x02" % (name.encode(), text)
        now = self._now_ms()
        later = waiting.timed(raw, place, now, self._delay_ms_max)
        if later is None:  # it is due
            return self._append(record, place, raw), place, 0
        held = self._append(record, waiting.TIMER_PLACE, later.properties)
        return held, place, waiting.asked_ms({name.encode(): text}, now)

    def _append(self, record: Record, place: waiting.RealPlace, raw: bytes) -> AppendRequest:
        raw += properties.EMPTY_CRC_PROPERTY if self._rules.crc else b""
        properties.check_properties_length(len(raw))
        head = record.head
        data = pack_fields(
            place.topic, record.raw_body, place.queue_id, raw,
            head.born_timestamp, record.born_host,
            head.flag, head.sys_flag, head.reconsume_times,
        )  # fmt: skip
        return AppendRequest(data, 1, is_inner=True)

    def _place(self, record: Record) -> waiting.RealPlace:
        topic = self._topics.for_send(record.topic)
        return waiting.RealPlace(topic.name, self._topics.queue_of(topic, record.head.queue_id))


class Undelivered:
    """Counted once, when the node starts: without a gateway no message with a delay is taken.

    Files that cannot be read stop no start: the processes that own them say what is wrong.
    """

    def __init__(self, root: Path, tails: Mapping[Queue, int], is_delivered: bool) -> None:
        self._root = root
        self._show_at = 0.0
        self.count = 0
        self._first_ms: int | None = None
        if is_delivered:
            if read_timer_state(self._root).undelivered:
                with disk.if_room():
                    write_timer_state(self._root, TimerState())
            return
        self._count_levels(tails)
        self._count_timers(tails.get(Queue(names.TIMER_TOPIC, 0), 0))
        if self.count:
            hint = "start the node with --remoting"
            found = fields(messages=self.count, hint=hint)
            log.warning("delayed messages wait, and nobody delivers them", extra=found)

    def _note(self, count: int, due_ms: int | None) -> None:
        self.count += count
        if due_ms is not None and (self._first_ms is None or due_ms < self._first_ms):
            self._first_ms = due_ms

    def _count_levels(self, tails: Mapping[Queue, int]) -> None:
        delivered = _delay_offsets(self._root)
        for queue, end in tails.items():
            if queue.topic != names.SCHEDULE_TOPIC:
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

    def _count_timers(self, end: int) -> None:
        check = file_layouts.TimerCheck()
        with suppress(CorruptError, OSError):
            check = file_layouts.TimerCheck.parse(
                read_bounded(
                    self._root / names.TIMER_CHECK_FILE, file_layouts.TIMER_CHECK_FILE_BYTES
                )
            )
        self._note(max(0, end - check.queue_offset), None)
        slots = np.empty(0, file_layouts.WHEEL_SLOT)
        with suppress(CorruptError, OSError, ValueError):
            slots = np.frombuffer(
                read_bounded(self._root / names.TIMER_WHEEL_FILE, file_layouts.WHEEL_BYTES),
                file_layouts.WHEEL_SLOT,
            )
        begin = check.read_ms // waiting.PRECISION_MS
        slots = slots[(slots["second"] >= begin) & (slots["count"] > 0)]
        if len(slots):
            first_ms = int(slots["second"].min()) * waiting.PRECISION_MS
            self._note(int(slots["count"].sum()), first_ms)

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
        table = json.loads(read_bounded(root / names.DELAY_OFFSETS_FILE, _OFFSETS_BYTES_MAX))
        return {level: int(offset) for level, offset in table["offsetTable"].items()}
    except (CorruptError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
