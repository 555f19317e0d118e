"""A send with a delay level becomes a message of the schedule topic, as a broker stores it.

The process that delivers it (`gateway.tasks`) reads that topic. Without one a message would never
arrive, so that such a send is refused.
"""

from node.writer.append_request import AppendRequest, check_crc, check_sizes
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, NotAllowed
from protocol.record.codec import Record, decode, has_crc_property
from protocol.record.encode import ANY_QUEUE, pack_fields
from protocol.record.patch import AppendRules, check_plain
from protocol.record.properties import (
    CRC_PROPERTY_BYTES,
    EMPTY_CRC_PROPERTY,
    check_properties_length,
)
from protocol.record.scheduled import RealPlace, schedule_place, scheduled


class Delays:
    """What a writer does with delay levels; those above `level_max` become it."""

    def __init__(self, topics: TopicTable, rules: AppendRules, level_max: int) -> None:
        self._topics = topics
        self._rules = rules
        self._level_max = level_max
        self.delivers = False
        """Whether the node has a process that delivers; its owner sets it."""

    def schedule(self, request: AppendRequest, level: int) -> tuple[AppendRequest, RealPlace]:
        """The append of a message that waits, and where it goes when it is due.

        Raises NotAllowed for a node that does not deliver, BadRequest for more than one message,
        and as any append.
        """
        if not self.delivers:
            raise NotAllowed(
                "this node does not deliver delayed messages",
                "start the node with --remoting 127.0.0.1:10911",
            )
        check_crc(request)
        rows = check_plain(request.records, self._rules)
        check_sizes(request, [row.size for row in rows])
        if len(rows) != 1:
            raise BadRequest(f"{len(rows)} messages with a delay level", "send them one by one")
        record = decode(request.records, 0, sealed=False)
        assert isinstance(record, Record), "it was checked"
        level = min(level, self._level_max)
        place = self._place(record)
        raw = record.properties_raw
        if has_crc_property(raw):
            raw = raw[:-CRC_PROPERTY_BYTES]
        raw = scheduled(raw, place, level) + (EMPTY_CRC_PROPERTY if self._rules.crc else b"")
        check_properties_length(len(raw))
        head, waits_at = record.head, schedule_place(level)
        data = pack_fields(
            waits_at.topic, record.body, waits_at.queue_id, raw,
            head.born_timestamp, record.born_host,
            head.flag, head.sys_flag, head.reconsume_times,
        )  # fmt: skip
        return AppendRequest(data, 1, is_inner=True), place

    def _place(self, record: Record) -> RealPlace:
        topics, queue_id = self._topics, record.head.queue_id
        topic = topics.for_send(record.topic)
        if queue_id == ANY_QUEUE:
            queue_id = topics.choose_queue(topic)
        topics.check_queue(topic, queue_id)
        return RealPlace(topic.name, queue_id)
