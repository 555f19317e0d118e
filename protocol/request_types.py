"""The types of fields that several requests have."""

from typing import Annotated

from protocol import request_checks as checks
from protocol.names import QUEUE_ID_MAX
from protocol.record.codec import RECORD_BYTES_MIN
from protocol.request_fields import INT32_MAX, INT64_MAX, RequestField
from protocol.wire.frames import PAYLOAD_BYTES_MAX

RETENTION_HOURS_MAX = 1_000_000
_PERM_MAX = 7
_CRC_MAX = 2**32 - 1
_RECORDS_MAX = PAYLOAD_BYTES_MAX // RECORD_BYTES_MIN

Topic = Annotated[str, RequestField("the topic", check=checks.stored_topic)]
TopicName = Annotated[str, RequestField("the name")]
GROUP_HELP = "the cursor's name, as RocketMQ names a group: 1 to 255 of `% \\| a-z A-Z 0-9 _ -`"
Group = Annotated[str, RequestField(GROUP_HELP, check=checks.group)]
QueueId = Annotated[int, RequestField("the queue", 0, QUEUE_ID_MAX, wire="queue")]
Wait = Annotated[
    str | None,
    RequestField(
        "what the answer waits for, see [send](#send)",
        check=checks.wait,
        range=f"`{checks.WAIT_NONE}` `{checks.WAIT_FLUSHED}` `{checks.WAIT_REPLICATED}`",
        absent="the flush mode decides",
    ),
]
Records = Annotated[int, RequestField("number of records", 1, _RECORDS_MAX, wire="count")]
Size = Annotated[
    int, RequestField("length of the second frame", 0, PAYLOAD_BYTES_MAX, wire="bytes")
]
Crc = Annotated[int, RequestField("CRC-32 of the second frame (the one of zlib)", 0, _CRC_MAX)]
Sizes = Annotated[
    bytes,
    RequestField(
        "the size of each record, 4 bytes each, **little-endian**. Saves the node a walk",
        absent="the node walks",
    ),
]
InnerRight = Annotated[
    str | None,
    RequestField(
        "for the node's own processes: the text of `keelog/run/right`. It lets records into the"
        " system's topics, and sets the places of its groups"
    ),
]
DelayLevel = Annotated[
    int | None,
    RequestField(
        "the one message waits for this level of `message_delay_level`, the last one for a"
        " higher number, and is readable then. The answer names its queue, and its offset"
        " among the messages that wait",
        1,
        INT32_MAX,
        absent="it is readable at once",
    ),
]
DeliverMs = Annotated[
    int | None,
    RequestField(
        "the one message is readable at this time, ms since 1970, `timer_max_delay_sec` ahead at"
        " most; a time that has passed is now. The answer names its queue, and its offset among"
        " those that wait",
        0,
        INT64_MAX,
        absent="it is readable at once",
    ),
]
DelayMs = Annotated[
    int | None,
    RequestField(
        "as `deliver_ms`, in ms after the node has the message",
        0,
        INT64_MAX // 1_000_000,
        absent="it is readable at once",
    ),
]
Once = Annotated[
    bool,
    RequestField(
        "a message whose topic and unique key were stored within `idempotent_window` is not stored"
        " again: the answer names the first one, see [once](#stored-once)"
    ),
]
Generation = Annotated[
    int | None,
    RequestField(
        "the topic's generation when you came to know the offset, or any log offset since then, as"
        " that of a message that you have read. TopicRemoved if the topic was removed later",
        0,
        INT64_MAX,
        absent="the offset is taken as it is",
    ),
]
Query = Annotated[
    str,
    RequestField(
        "who stages: 1 to 64 of the characters `A-Z a-z 0-9 _ -`", check=checks.staging_id
    ),
]
BatchNumber = Annotated[int, RequestField("number of the batch", 0, INT64_MAX)]
BeforeTime = Annotated[
    int, RequestField("messages stored before this go, ms since 1970", 0, INT64_MAX)
]
OneQueue = Annotated[
    int | None,
    RequestField("only this queue", 0, QUEUE_ID_MAX, wire="queue", absent="all queues"),
]
OneStage = Annotated[
    str | None, RequestField("only this one", check=checks.staging_id, absent="all of the batch")
]
Perm = Annotated[
    int | None,
    RequestField(
        "2 write, 4 read, 6 both, 0 neither; 1 more: sends may create topics by its settings, as by"
        " TBW102. It holds for the writer: readers serve every topic",
        0,
        _PERM_MAX,
        absent="as it was; 6 of a new topic",
    ),
]
RetentionHours = Annotated[
    int | None,
    RequestField(
        "hours that its messages are kept; 0: as `file_reserved_time` says",
        0,
        RETENTION_HOURS_MAX,
        absent="as it was",
    ),
]
ReadQueues = Annotated[
    int | None,
    RequestField(
        "how many of the queues RocketMQ's clients read; `queues` are then those that they write"
        " to",
        1,
        INT32_MAX,
        range="from 1",
        absent="as `queues`",
    ),
]
Order = Annotated[bool | None, RequestField("RocketMQ's `order`", absent="as it was")]
SysFlag = Annotated[
    int | None, RequestField("RocketMQ's `topicSysFlag`", 0, INT32_MAX, absent="as it was")
]
TopicAttributes = Annotated[
    dict[str, str] | None,
    RequestField(
        "RocketMQ's attributes, all but `reserve.time`. One that a node does"
        " not offer is refused: NotAllowed",
        check=checks.properties,
        absent="as they were",
    ),
]
PATIENCE_MS_MAX = 1_000
Patience = Annotated[
    int,
    RequestField(
        "how late a held pull may be answered: the reader looks this often, and does not follow the"
        " log for it",
        0,
        PATIENCE_MS_MAX,
        absent="at once",
    ),
]
