"""A send with a delay becomes a message of the schedule or the timer topic, as a broker stores it.

The process that delivers it (`keelog.gateway.tasks`) reads those topics. Without one a message
would never arrive, so that such a send is refused.
"""

from collections.abc import Callable

from node.runtime.settings import Settings
from node.writer.appender import AppendRequest
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, NotAllowed
from protocol.record.codec import Record, decode, has_crc_property
from protocol.record.encode import ANY_QUEUE, pack_fields
from protocol.record.patch import AppendRules, check_sent
from protocol.record.properties import (
    CRC_PROPERTY_BYTES,
    EMPTY_CRC_PROPERTY,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    check_properties_length,
)
from protocol.record.waiting import (
    TIMER_PLACE,
    RealPlace,
    asked_ms,
    schedule_place,
    scheduled,
    timed,
)

Pending = tuple[AppendRequest, RealPlace, int | None]
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
            raw = raw[:-CRC_PROPERTY_BYTES]
        if level is not None:
            level = min(level, self._level_max)
            held = self._append(record, schedule_place(level), scheduled(raw, place, level))
            return held, place, None
        return self._until(record, place, raw, deliver_ms, delay_ms)

    def _until(
        self,
        record: Record,
        place: RealPlace,
        raw: bytes,
        deliver_ms: int | None,
        delay_ms: int | None,
    ) -> Pending:
        name = TIMER_DELIVER_MS if deliver_ms is not None else TIMER_DELAY_MS
        asked = deliver_ms if deliver_ms is not None else delay_ms
        text = f"{asked}".encode()
        raw += b"%s\x01%s\x02" % (name.encode(), text)
        now = self._now_ms()
        later = timed(raw, place, now, self._delay_ms_max)
        if later is None:  # it is due
            return self._append(record, place, raw), place, 0
        held = self._append(record, TIMER_PLACE, later.properties)
        return held, place, asked_ms({name.encode(): text}, now)

    def _append(self, record: Record, place: RealPlace, properties: bytes) -> AppendRequest:
        raw = properties + (EMPTY_CRC_PROPERTY if self._rules.crc else b"")
        check_properties_length(len(raw))
        head = record.head
        data = pack_fields(
            place.topic, record.raw_body, place.queue_id, raw,
            head.born_timestamp, record.born_host,
            head.flag, head.sys_flag, head.reconsume_times,
        )  # fmt: skip
        return AppendRequest(data, 1, is_inner=True)

    def _place(self, record: Record) -> RealPlace:
        topics, queue_id = self._topics, record.head.queue_id
        topic = topics.for_send(record.topic)
        if queue_id == ANY_QUEUE:
            queue_id = topics.choose_queue(topic)
        topics.check_queue(topic, queue_id)
        return RealPlace(topic.name, queue_id)
