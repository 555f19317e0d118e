"""Every request to a writer or reader that has fields: names, types, limits and defaults.

The processes parse by these declarations, and `scripts.docs.pages` fills the tables of
docs/protocol.md from them. The processes check what needs a look at a store, or at several fields.
"""

from typing import Annotated, Any, NamedTuple

from protocol import request_fields as checks
from protocol.ids import Host, Queue
from protocol.names import QUEUE_ID_MAX
from protocol.record.codec import RECORD_BYTES_MIN
from protocol.record.encode import ANY_QUEUE
from protocol.request_fields import INT32, INT32_MAX, INT64_MAX, Field, RequestLayout
from protocol.wire.frames import PAYLOAD_BYTES_MAX

BOUNDARY_LOWER, BOUNDARY_UPPER = "lower", "upper"
FETCH_LOG, FETCH_QUEUE, FETCH_INDEX = "log", "queue", "index"

PULL_MESSAGES_MAX = 10_000
PULL_MESSAGES_DEFAULT = 32
PULL_BYTES_DEFAULT = 262_144
PULL_BYTES_MAX = 16 * 1024 * 1024
"""One answer is one frame."""
FIND_MESSAGES_MAX = 1_000
FIND_MESSAGES_DEFAULT = 64
FETCH_BYTES_MAX = 4 * 1024 * 1024
"""Raw bytes of one answer to `fetch`."""
PARTS_MAX = 10_000
"""Stages of one `publish`."""
RETENTION_HOURS_MAX = 1_000_000
GROUP_HELP = "cursor or group: 1 to 255 of `% \\| a-z A-Z 0-9 _ -`"
PATIENCE_MS_MAX = 1_000
_PERM_MAX = 7
_CRC_MAX = 2**32 - 1
_RECORDS_MAX = PAYLOAD_BYTES_MAX // RECORD_BYTES_MIN

# -- fields of several requests -------------------------------------------------------------------

Topic = Annotated[str, Field("the topic", check=checks.stored_topic)]
TopicName = Annotated[str, Field("the name")]
Group = Annotated[str, Field(GROUP_HELP, check=checks.group)]
QueueId = Annotated[int, Field("the queue", 0, QUEUE_ID_MAX, wire="queue")]
Wait = Annotated[
    str | None,
    Field(
        "what the answer waits for, see [send](#send)",
        check=checks.wait,
        range=f"`{checks.WAIT_NONE}` `{checks.WAIT_FLUSHED}` `{checks.WAIT_REPLICATED}`",
        absent="the flush mode decides",
    ),
]
Records = Annotated[int, Field("number of records", 1, _RECORDS_MAX, wire="count")]
Size = Annotated[int, Field("length of the second frame", 0, PAYLOAD_BYTES_MAX, wire="bytes")]
Crc = Annotated[int, Field("CRC-32 of the second frame (the one of zlib)", 0, _CRC_MAX)]
Sizes = Annotated[
    bytes,
    Field(
        "each record's size, 4 bytes, **little-endian**",
        absent="the node walks",
    ),
]
InnerRight = Annotated[
    str | None,
    Field("for the node's own processes: the text of `keelog/run/right`"),
]
Once = Annotated[
    bool,
    Field("see [Stored once](#stored-once)"),
]
Generation = Annotated[
    int | None,
    Field(
        "see [Generations](#generations)",
        0,
        INT64_MAX,
        absent="not checked",
    ),
]
Query = Annotated[str, Field("who stages: 1 to 64 of `A-Z a-z 0-9 _ -`", check=checks.staging_id)]
BatchNumber = Annotated[int, Field("number of the batch", 0, INT64_MAX)]

# -- the writer -----------------------------------------------------------------------------------


class SendFields(NamedTuple):
    """One message, which the node encodes."""

    topic: Annotated[
        str,
        Field("1 to 127 of `% \\| a-z A-Z 0-9 _ -`; 255 after `%RETRY%` or `%DLQ%`"),
    ]
    body: Annotated[bytes, Field("at most `max_message_size` bytes")]
    queue_id: Annotated[
        int,
        Field(
            "-1: the node takes the topic's queues in turn", ANY_QUEUE, QUEUE_ID_MAX, wire="queue"
        ),
    ] = ANY_QUEUE
    tags: Annotated[str, Field("one tag; no pull can choose one with `\\|\\|`")] = ""
    keys: Annotated[
        tuple[str, ...],
        Field(
            "for look-ups; none is empty or holds a space. A str is split at spaces",
            check=checks.keys,
            type="list of str, or str",
        ),
    ] = ()
    properties: Annotated[
        dict[str, str] | None,
        Field(
            "your own: no empty name or value, no byte 0x01 or 0x02. All properties together:"
            " 32,767 bytes as stored",
            check=checks.properties,
        ),
    ] = None
    unique_key: Annotated[
        str | None,
        Field("see [Unique keys](#unique-keys)"),
    ] = None
    flag: Annotated[int, Field("your own number", *INT32)] = 0
    sys_flag: Annotated[int, Field("RocketMQ's flags: 0x1: the body is compressed", *INT32)] = 0
    born_timestamp: Annotated[int | None, Field("ms since 1970", absent="now")] = None
    born_host: Annotated[
        Host | None,
        Field(
            "`1.2.3.4:5` or `[::1]:5`",
            check=checks.born_host,
            type="str",
            range="port 0 to 65,535",
            absent="the address that you come from",
        ),
    ] = None
    reconsume_times: Annotated[
        int,
        Field(
            "how often it was delivered before. This, `flag` and `born_timestamp` are stored as"
            " sent, also negative",
            *INT32,
        ),
    ] = 0
    wait: Wait = None
    once: Once = False


class AppendFields(NamedTuple):
    """A batch of records, which is the payload."""

    records: Records
    size: Size
    crc: Crc
    sizes: Sizes = b""
    queue_id: Annotated[
        int | None,
        Field(
            "the node chooses one queue for all records, of one topic",
            ANY_QUEUE,
            ANY_QUEUE,
            wire="queue",
            absent="each record's own",
        ),
    ] = None
    wait: Wait = None
    right: InnerRight = None
    delay_level: Annotated[
        int | None,
        Field(
            "the one message is readable after this level of `message_delay_level`, at most the"
            " last. The answer has its place among those that wait",
            1,
            INT32_MAX,
            absent="at once",
        ),
    ] = None
    deliver_ms: Annotated[
        int | None,
        Field(
            "the one message is readable at this time, ms since 1970, `timer_max_delay_sec`"
            " ahead at most; one that has passed is now. The answer has its place among those"
            " that wait",
            0,
            INT64_MAX,
            absent="at once",
        ),
    ] = None
    delay_ms: Annotated[
        int | None,
        Field(
            "as `deliver_ms`, in ms after the node has the message",
            0,
            INT64_MAX // 1_000_000,
            absent="at once",
        ),
    ] = None
    once: Once = False


class StageFields(NamedTuple):
    """A frame of records, which is the payload, for one stage of a batch."""

    query: Query
    batch: BatchNumber
    stage: Annotated[
        str,
        Field(
            "one sender's part of the batch, named like a query; new for each attempt",
            check=checks.staging_id,
        ),
    ]
    frame: Annotated[int, Field("number of this frame in its stage", 0, INT32_MAX)]
    records: Records
    size: Size
    crc: Crc
    sizes: Sizes = b""


class PublishFields(NamedTuple):
    """The stages of a batch, which are the payload's lines, are to be published."""

    query: Query
    batch: BatchNumber
    stages: Annotated[int, Field("number of lines", 0, PARTS_MAX)]
    final: Annotated[bool, Field("the query's last batch: the node may forget it")] = False


class UnstageFields(NamedTuple):
    """A batch, or one stage of it, is to be dropped."""

    query: Query
    batch: BatchNumber
    stage: Annotated[
        str | None, Field("only this one", check=checks.staging_id, absent="all of the batch")
    ] = None


class CreateTopicFields(NamedTuple):
    """A topic, its number of queues and its permission."""

    topic: TopicName
    queues: Annotated[
        int | None,
        Field(
            "how many queues",
            1,
            INT32_MAX,
            range="from 1",
            absent="as it was; of a new topic `default_topic_queue_nums`",
        ),
    ] = None
    perm: Annotated[
        int | None,
        Field(
            "2 write, 4 read, 6 both, 0 neither; 1 more: sends create topics by it, as by"
            " TBW102. Readers serve every topic",
            0,
            _PERM_MAX,
            absent="as it was; 6 of a new topic",
        ),
    ] = None
    retention_hours: Annotated[
        int | None,
        Field(
            "hours that its messages are kept; 0: as `file_reserved_time` says",
            0,
            RETENTION_HOURS_MAX,
            absent="as it was",
        ),
    ] = None
    read_queues: Annotated[
        int | None,
        Field(
            "how many RocketMQ's clients read; they write to `queues`",
            1,
            INT32_MAX,
            range="from 1",
            absent="as `queues`",
        ),
    ] = None
    order: Annotated[bool | None, Field("RocketMQ's `order`", absent="as it was")] = None
    sys_flag: Annotated[
        int | None, Field("RocketMQ's `topicSysFlag`", 0, INT32_MAX, absent="as it was")
    ] = None
    attributes: Annotated[
        dict[str, str] | None,
        Field(
            "RocketMQ's, but `reserve.time`. NotAllowed: one that a node does not offer",
            check=checks.properties,
            absent="as they were",
        ),
    ] = None


class DeleteTopicFields(NamedTuple):
    topic: TopicName


class PurgeTopicFields(NamedTuple):
    """A topic, or one of its queues, whose older messages go."""

    topic: TopicName
    queue_id: Annotated[
        int | None, Field("only this queue", 0, QUEUE_ID_MAX, wire="queue", absent="all queues")
    ] = None


class PurgeBeforeOffset(NamedTuple):
    """The first message that stays, by its number."""

    offset: Annotated[
        int, Field("messages before this queue offset go, in each queue", 0, INT64_MAX)
    ]


class PurgeBeforeTime(NamedTuple):
    """The first message that stays, by its store time."""

    timestamp: Annotated[int, Field("messages stored before this go, ms since 1970", 0, INT64_MAX)]


class CursorGetFields(NamedTuple):
    topic: Topic
    group: Group


class GroupsFields(NamedTuple):
    """The groups, or cursors, that have a place in any topic."""

    group: Annotated[str | None, Field(GROUP_HELP, check=checks.group, absent="all")] = None


class DeleteGroupFields(NamedTuple):
    group: Group


class CursorCommitFields(NamedTuple):
    """How far a cursor has come in some queues of a topic."""

    topic: Topic
    group: Group
    offsets: Annotated[
        dict[int, int],
        Field(
            "for each queue its number and the next offset to read, at most its end. Up to 1,000"
            " queues; the others stay",
            check=checks.queue_offsets,
            type="list of [int, int]",
        ),
    ]
    right: InnerRight = None
    generation: Generation = None


USER_CHANGES = (
    *("create_user", "update_user", "delete_user"),
    *("create_acl", "update_acl", "delete_acl"),
)


class UsersFields(NamedTuple):
    """The users and their access lists: one, or a page of all."""

    name: Annotated[str | None, Field("only this user", absent="all")] = None
    after: Annotated[str, Field("`next` of the page before")] = ""


class ChangeUsersFields(NamedTuple):
    """One change of a user or of an access list."""

    change: Annotated[str, Field("what to do", choices=USER_CHANGES)]
    name: Annotated[str, Field("the user; of a list its subject, `User:alice`")]
    info: Annotated[
        bytes,
        Field("the body of RocketMQ's request, as JSON: UserInfo, or AclInfo"),
    ] = b""
    policy: Annotated[str, Field("of `delete_acl`: `Custom` or `Default`", absent="`Custom`")] = ""
    resource: Annotated[str, Field("of `delete_acl`: only its entry", absent="the whole list")] = ""
    by: Annotated[
        str | None, Field("the user who asks", absent="the operator of the node, who may do all")
    ] = None
    address: Annotated[str, Field("where that user asks from, for the audit log")] = ""


# -- a reader -------------------------------------------------------------------------------------


class PullFields(NamedTuple):
    """Messages of one queue from an offset on: any, one beyond the queue has its own status."""

    topic: Topic
    queue_id: QueueId
    offset: Annotated[int, Field("queue offset of the first message that you want")]
    max_messages: Annotated[
        int | None,
        Field(
            "how many",
            1,
            PULL_MESSAGES_MAX,
            absent="32, or 8 from far below the log's end, as RocketMQ has it",
        ),
    ] = None
    max_bytes: Annotated[
        int | None,
        Field(
            "of all records. One message is always answered, however large",
            1,
            PULL_BYTES_MAX,
            absent="262,144, or 65,536 from far below",
        ),
    ] = None
    tags: Annotated[
        str,
        Field(
            '`"A \\|\\| B"`: only messages with one of these tags. `"*"`: all',
            check=checks.tags,
            absent="all",
        ),
    ] = ""
    wait_ms: Annotated[
        int,
        Field(
            "how long an empty pull is held until something comes",
            0,
            INT64_MAX,
            range="0 to 30,000, or the node's `long_polling_ms_max`",
        ),
    ] = 0
    stream: Annotated[
        bool, Field("true: with `wait_ms` the node may answer several times, see below")
    ] = False
    patience_ms: Annotated[
        int,
        Field(
            "how late a held pull may be answered: the reader looks this often",
            0,
            PATIENCE_MS_MAX,
            absent="at once",
        ),
    ] = 0
    generation: Generation = None


class GetByOffset(NamedTuple):
    physical_offset: Annotated[int, Field("its log offset", 0, INT64_MAX)]


class GetById(NamedTuple):
    """One record by its offset message id."""

    msg_id: Annotated[str, Field("its offset message id", check=checks.message_id)]


class GetByKey(NamedTuple):
    """The newest record with a unique key."""

    topic: Annotated[str, Field("its topic", check=checks.stored_topic)]
    unique_key: Annotated[str, Field("the newest message with this UNIQ_KEY", check=checks.one_key)]


class GetByQueue(NamedTuple):
    topic: Annotated[str, Field("its topic", check=checks.stored_topic)]
    queue_id: Annotated[int, Field("its queue", 0, QUEUE_ID_MAX, wire="queue")]
    offset: Annotated[int, Field("its queue offset", 0, INT64_MAX)]
    generation: Generation = None


class FindFields(NamedTuple):
    """Records with a key, stored in [`begin`, `end`] ms; `cursor` goes on after a page."""

    topic: Topic
    key: Annotated[str, Field("one of its keys, or its unique key", check=checks.one_key)]
    begin: Annotated[int, Field("not stored before this, ms since 1970")] = 0
    end: Annotated[int, Field("not stored after this", absent="no bound")] = INT64_MAX
    max_messages: Annotated[
        int, Field("for one page. A page also ends at about 4 MiB", 1, FIND_MESSAGES_MAX)
    ] = FIND_MESSAGES_DEFAULT
    cursor: Annotated[
        str | None, Field("of the page before", check=checks.find_cursor, absent="the first page")
    ] = None
    unique: Annotated[bool, Field("look at unique keys only")] = False
    skip_damaged: Annotated[
        bool, Field("name damaged records in `damaged`; else one refuses the page")
    ] = False


class OffsetsFields(NamedTuple):
    """The bounds of one queue, or of all queues of a topic."""

    topic: Topic
    queue_id: Annotated[
        int | None, Field("the queue", 0, QUEUE_ID_MAX, wire="queue", absent="all queues")
    ] = None
    stored_at: Annotated[
        dict[int, int] | None,
        Field(
            "queue and offset: when was that message stored? Up to 1,000",
            check=checks.queue_offsets,
            type="list of [int, int]",
            absent="of none",
        ),
    ] = None
    sizes: Annotated[bool, Field("name `bytes` and `oldest_ms` too")] = False


class SeekFields(NamedTuple):
    """The queue offset at a store time."""

    topic: Topic
    queue_id: QueueId
    timestamp: Annotated[int, Field("ms since 1970")]
    boundary: Annotated[
        str,
        Field(
            "of several messages of one time the first or the last",
            choices=(BOUNDARY_LOWER, BOUNDARY_UPPER),
            absent="`lower`",
        ),
    ] = BOUNDARY_LOWER


class LayoutFields(NamedTuple):
    """What there is to fetch. `after` is the last queue of the page before."""

    topics: Annotated[
        list[str] | None,
        Field("only queues of these topics", check=checks.topic_names, absent="of all"),
    ] = None
    after: Annotated[
        Queue | None,
        Field(
            "of the page before",
            check=checks.layout_cursor,
            type="str",
            wire="cursor",
            absent="the first page",
        ),
    ] = None
    known: Annotated[
        str,
        Field("the `token` of an earlier answer: while it holds, queues and segments are left out"),
    ] = ""
    with_index: Annotated[bool, Field("list the index files too", wire="index")] = False


class FetchFields(NamedTuple):
    """Raw bytes of a file, which is named by what it holds."""

    kind: Annotated[str, Field("which file", choices=(FETCH_LOG, FETCH_QUEUE, FETCH_INDEX))]
    offset: Annotated[
        int,
        Field(
            "of the log: a log offset; of a queue: a unit's number, 20 bytes each; of an index"
            " file: a position",
            0,
            INT64_MAX,
        ),
    ]
    max_bytes: Annotated[int, Field("how many", 1, FETCH_BYTES_MAX)] = FETCH_BYTES_MAX


class FetchedQueue(NamedTuple):
    topic: Annotated[str, Field("of a queue: its topic", check=checks.stored_topic)]
    queue_id: Annotated[int, Field("of a queue: its number", 0, QUEUE_ID_MAX, wire="queue")]


class FetchedIndex(NamedTuple):
    file: Annotated[str, Field("of an index file: its name", check=checks.index_file)]


SEND, APPEND = RequestLayout(SendFields), RequestLayout(AppendFields)
STAGE, PUBLISH = RequestLayout(StageFields), RequestLayout(PublishFields)
UNSTAGE = RequestLayout(UnstageFields)
CREATE_TOPIC, DELETE_TOPIC = RequestLayout(CreateTopicFields), RequestLayout(DeleteTopicFields)
PURGE_TOPIC = RequestLayout(PurgeTopicFields)
PURGE_BEFORE_OFFSET = RequestLayout(PurgeBeforeOffset)
PURGE_BEFORE_TIME = RequestLayout(PurgeBeforeTime)
GROUPS, DELETE_GROUP = RequestLayout(GroupsFields), RequestLayout(DeleteGroupFields)
CURSOR_GET, CURSOR_COMMIT = RequestLayout(CursorGetFields), RequestLayout(CursorCommitFields)
USERS, CHANGE_USERS = RequestLayout(UsersFields), RequestLayout(ChangeUsersFields)
PULL, FIND = RequestLayout(PullFields), RequestLayout(FindFields)
GET_BY_OFFSET, GET_BY_ID = RequestLayout(GetByOffset), RequestLayout(GetById)
GET_BY_KEY, GET_BY_QUEUE = RequestLayout(GetByKey), RequestLayout(GetByQueue)
OFFSETS, SEEK = RequestLayout(OffsetsFields), RequestLayout(SeekFields)
LAYOUT, FETCH = RequestLayout(LayoutFields), RequestLayout(FetchFields)
FETCHED_QUEUE, FETCHED_INDEX = RequestLayout(FetchedQueue), RequestLayout(FetchedIndex)

REQUESTS: dict[str, tuple[RequestLayout[Any] | None, ...]] = {
    "send": (SEND,),
    "append": (APPEND,),
    "stage": (STAGE,),
    "publish": (PUBLISH,),
    "unstage": (UNSTAGE,),
    "create_topic": (CREATE_TOPIC,),
    "delete_topic": (DELETE_TOPIC,),
    "purge_topic": (PURGE_TOPIC, PURGE_BEFORE_OFFSET, PURGE_BEFORE_TIME),
    "groups": (GROUPS,),
    "delete_group": (DELETE_GROUP,),
    "cursor_get": (CURSOR_GET,),
    "cursor_commit": (CURSOR_COMMIT,),
    "users": (USERS,),
    "change_users": (CHANGE_USERS,),
    "pull": (PULL,),
    "get": (None, GET_BY_OFFSET, GET_BY_ID, GET_BY_KEY, GET_BY_QUEUE),
    "find": (FIND,),
    "offsets": (OFFSETS,),
    "seek": (SEEK,),
    "layout": (LAYOUT,),
    "fetch": (FETCH, FETCHED_QUEUE, FETCHED_INDEX),
}
"""Every operation whose requests have fields: those of every request, None: none, then groups of
which it has one."""
