"""Names of files, topics, folders and modules, and the sizes that settings begin with.

Pure functions: nobody else builds a path inside a store. The sizes are here and not beside the
codecs, which need numpy and so start slowly.
"""

import re
from datetime import UTC, datetime, timedelta

from protocol.errors import IllegalMessage, NotAllowed

COMMIT_LOG_DIR = "commitlog"
BATCH_QUEUE_DIR = "batchconsumequeue"
CONSUME_QUEUE_DIR = "consumequeue"
INDEX_DIR = "index"
CONFIG_DIR = "config"
KEELOG_DIR = "keelog"
CHECKPOINT_FILE = "checkpoint"
CHECKPOINT_FILE_BYTES = 4096
ABORT_FILE = "abort"
LOCK_FILE = "lock"
TOPICS_FILE = f"{CONFIG_DIR}/topics.json"
CONSUMER_OFFSETS_FILE = f"{CONFIG_DIR}/consumerOffset.json"
SUBSCRIPTION_GROUPS_FILE = f"{CONFIG_DIR}/subscriptionGroup.json"
KV_CONFIG_FILE = f"{CONFIG_DIR}/kvConfig.json"
DELAY_OFFSETS_FILE = f"{CONFIG_DIR}/delayOffset.json"
TIMER_CHECK_FILE = f"{CONFIG_DIR}/timercheck"
TIMER_WHEEL_FILE = "timerwheel"
MASTER_EPOCHS_FILE = "epochFileCheckpoint"
"""The epochs of elected masters: MessageStoreConfig#storePathEpochFile."""
BROKER_IDENTITY_FILE = "brokerIdentity"
"""The id that a controller gave: MessageStoreConfig#storePathBrokerIdentity."""
TIMER_LOG_DIR = "timerlog"

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Of the messages of transactions that are open, or were."""
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Of the offsets of half messages whose transactions have ended."""
UNDECIDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Of half messages that were asked for too often."""
TRANSACTIONS_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far half messages and their ends are checked."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = frozenset(
    {
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
        *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
    }
)
"""Groups that every broker has by itself (RocketMQ: MixAll), beside those with the prefix."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255
GROUP_CHARS_MAX = 255
QUEUE_ID_MAX = 65_535
SHORT_TOPIC_CHARS_MAX = 127
"""Topics of more characters need the record version with a two-byte topic length."""
SYSTEM_PREFIX = "rmq_sys_"
DEFAULT_CLUSTER = "DefaultCluster"
"""The cluster of a node that is told no other (BrokerIdentity)."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Clients send to it what became of messages, and a send may create it."""
NOT_FOR_CLIENTS = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)
"""Topics a client may not send to (RocketMQ: TopicValidator)."""

DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
RECORD_EXTRA_BYTES_MAX = 64 * 1024
"""A record may have this much more than the largest body (RocketMQ: MessageExtEncoder)."""
UNIT_BYTES = 20
"""One unit of a queue (`protocol.derived.file_layouts`)."""
DEFAULT_QUEUE_FILE_BYTES = 300_000 * UNIT_BYTES
DEFAULT_SLOT_COUNT = 5_000_000
DEFAULT_INDEX_NUM = 20_000_000

_INSIDE = __name__.removesuffix("protocol.names")
"""A wheel has `protocol`, `node` and `workers` inside `keelog`; the source tree, at the top."""
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_OFFSET_NAME = re.compile(r"[0-9]{20}")
_OFFSET_MAX = 2**63 - 1
_INDEX_NAME = re.compile(r"[0-9]{17}")
_STAGING_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INDEX_TIME_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def module_name(name: str) -> str:
    """The name under which `node.writer.loop` or `keelog.gateway.loop`, say, is imported here."""
    return _INSIDE + name.removeprefix(_INSIDE)


def offset_file_name(offset: int) -> str:
    """The name of the segment or queue file that starts at `offset`: 20 ASCII digits."""
    return f"{offset:020d}"


def parse_offset_file_name(name: str) -> int | None:
    """The first offset of a file, or None when the name is not one of ours."""
    if _OFFSET_NAME.fullmatch(name) is None or int(name) > _OFFSET_MAX:
        return None
    return int(name)


def index_file_name(timestamp_ms: int) -> str:
    """The name of an index file made at a time: yyyyMMddHHmmssSSS in UTC.

    Times come from records, which may say anything: they are held to the years 1970 to 9999.
    """
    timestamp_ms = min(max(timestamp_ms, 0), _INDEX_TIME_MAX)
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y%m%d%H%M%S}{timestamp_ms % 1000:03d}"


def next_index_file_name(timestamp_ms: int, last_name: str | None) -> str:
    """As `index_file_name`, but at least one millisecond after the last file's name."""
    name = index_file_name(timestamp_ms)
    if last_name is None or name > last_name:
        return name
    try:
        moment = datetime.strptime(last_name + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
        moment += timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        # Not a date, but a name that RocketMQ takes: what counts is that ours sorts after it.
        return f"{int(last_name) + 1:017d}"
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def is_index_file_name(name: str) -> bool:
    """Whether RocketMQ would take the name for an index file's."""
    return _INDEX_NAME.fullmatch(name) is not None


def is_staging_id(name: str) -> bool:
    """Whether a query or stage may have this id, which becomes the name of a file."""
    return _STAGING_ID.fullmatch(name) is not None


def is_folder_name(topic: str) -> bool:
    """Whether a stored topic can be a folder: RocketMQ's characters, so no path leads out."""
    return _TOPIC.fullmatch(topic) is not None and len(topic) <= RETRY_TOPIC_BYTES_MAX


def check_topic(topic: str) -> None:
    """Raises IllegalMessage unless `topic` is a name that RocketMQ allows."""
    if not topic:
        raise IllegalMessage("the topic is empty", "name a topic")
    shown = ascii(topic[:80])
    if _TOPIC.fullmatch(topic) is None:
        raise IllegalMessage(
            f"topic {shown} has characters other than % | a-z A-Z 0-9 _ -", "rename the topic"
        )
    may_be_long = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = RETRY_TOPIC_BYTES_MAX if may_be_long else TOPIC_BYTES_MAX
    if len(topic) > limit:
        raise IllegalMessage(
            f"topic {shown} has {len(topic)} bytes, {limit} are allowed", "shorten the topic"
        )


def is_system_group(name: str) -> bool:
    """Whether a group is RocketMQ's own (MixAll#isSysConsumerGroup, and the standard ones)."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def is_group_name(group: str) -> bool:
    """Whether RocketMQ allows this name for a group; its characters are those of topics."""
    return _TOPIC.fullmatch(group) is not None and len(group) <= GROUP_CHARS_MAX


def is_reserved_topic(topic: str) -> bool:
    """Whether a topic is the system's own, to which clients may not send."""
    is_reserved = topic in NOT_FOR_CLIENTS or topic.lower().startswith(SYSTEM_PREFIX)
    return is_reserved and topic != TRACE_TOPIC


def check_topic_for_send(topic: str) -> None:
    """As `check_topic`; raises NotAllowed for the system's own topics."""
    check_topic(topic)
    if is_reserved_topic(topic):
        raise NotAllowed(f"topic {topic} is reserved for the system", "use a topic of your own")
