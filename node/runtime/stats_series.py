"""The counts of a node's processes: each family of metrics, and its series in each role's page.

The pages' layout, `/metrics` and the readers of pages follow from this declaration.
"""

from enum import Enum
from typing import NamedTuple

from protocol.errors import MqError
from protocol.remoting.codes import RequestCode, ResponseCode

OK = "OK"
FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
CODES = (
    OK,
    FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT,
    SLAVE_NOT_AVAILABLE,
    *("INVALID_PARAMETER", "REQUEST_CODE_NOT_SUPPORTED", "MESSAGE_ILLEGAL"),
    *("PROPERTIES_SIZE_EXCEEDED", "TOPIC_NOT_EXIST", "NO_PERMISSION", "QUERY_NOT_FOUND"),
    *("PULL_OFFSET_MOVED", "SYSTEM_BUSY", "SERVICE_NOT_AVAILABLE", "STORE_DAMAGED"),
    MqError.status,
)
"""Good answers, and the statuses of refusals (`protocol/errors.py`); the last is for all others."""

OTHER = "other"
APPEND = "append"
WRITER_OPS = (APPEND, OTHER)
"""`append` includes `send`."""
READER_OPS = ("pull", "get", "find", "offsets", "seek", "fetch", OTHER)
STAGES = ("queue", "append", "flush", "reply")
REASONS = ("full", "flow", "not_ready", "too_large", "no_topic", "bad")
FLUSH_MODES = ("sync", "async")
LOOKUPS = ("hit", "miss")


class SeriesKind(Enum):
    """The kinds of numbers of a series. Histograms keep durations in ns."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SECONDS = "histogram of durations"
    SIZES = "histogram of counts"


class Family(NamedTuple):
    """A metric. Counters are written without their `_total`."""

    name: str
    kind: SeriesKind
    text: str


REQUESTS = Family("keelog_requests", SeriesKind.COUNTER, "Requests answered, by the answer's code.")
REJECTED = Family("keelog_send_rejected", SeriesKind.COUNTER, "Appends that were refused.")
REPEATED = Family(
    "keelog_send_repeated_messages",
    SeriesKind.COUNTER,
    "Messages that were sent again with once, and are stored once.",
)
IN_FLIGHT = Family("keelog_requests_in_flight", SeriesKind.GAUGE, "Appends that wait for the disk.")
DURATION = Family(
    "keelog_request_duration_seconds", SeriesKind.SECONDS, "From the socket to the sent answer."
)
STAGE = Family(
    "keelog_request_stage_duration_seconds",
    SeriesKind.SECONDS,
    "Stages of an append's way to its answer.",
)
LOG_APPEND = Family(
    "keelog_commitlog_append_duration_seconds", SeriesKind.SECONDS, "Check and write of a group."
)
LOG_FLUSH = Family(
    "keelog_commitlog_flush_duration_seconds", SeriesKind.SECONDS, "Flushes of the log."
)
LOG_BATCH = Family("keelog_commitlog_batch_messages", SeriesKind.SIZES, "Messages of a group.")
INDEX_LOOKUPS = Family(
    "keelog_index_lookups", SeriesKind.COUNTER, "Pages that were looked for by key."
)
DISPATCH = Family(
    "keelog_dispatch_duration_seconds", SeriesKind.SECONDS, "A worker's turns that found something."
)
DISPATCH_FLUSH = Family(
    "keelog_dispatch_flush_duration_seconds", SeriesKind.SECONDS, "Syncs of queues or index."
)
DISPATCHED = Family(
    "keelog_dispatched_messages", SeriesKind.COUNTER, "Records that workers took up."
)
GATEWAY_REQUESTS = Family(
    "keelog_gateway_requests", SeriesKind.COUNTER, "Requests of RocketMQ's clients, answered."
)
GATEWAY_REFUSALS = Family(
    "keelog_gateway_refusals", SeriesKind.COUNTER, "Requests of RocketMQ's clients, refused."
)
GATEWAY_ENDED = Family(
    "keelog_gateway_ended_connections", SeriesKind.COUNTER, "Connections ended by the gateway."
)
OPEN_TRANSACTIONS = Family(
    "keelog_gateway_open_transactions",
    SeriesKind.GAUGE,
    "Transactions that the last round of checks found open for long.",
)
GATEWAY_GAUGES = (
    Family("keelog_gateway_connections", SeriesKind.GAUGE, "Connections of RocketMQ's clients."),
    Family("keelog_gateway_held_pulls", SeriesKind.GAUGE, "Their pulls that wait for messages."),
    Family(
        "keelog_gateway_buffered_bytes",
        SeriesKind.GAUGE,
        "Bytes that these connections hold: frames that have begun, and unsent replies.",
    ),
    Family(
        "keelog_gateway_client_requests",
        SeriesKind.GAUGE,
        "Requests to clients without an answer yet.",
    ),
    Family("keelog_gateway_producers", SeriesKind.GAUGE, "Clients that are producers."),
    OPEN_TRANSACTIONS,
)
CONSOLE_REQUESTS = Family(
    "keelog_console_requests", SeriesKind.COUNTER, "Requests of browsers to the console."
)
GATEWAY_CHECKS = Family(
    "keelog_gateway_transaction_checks",
    SeriesKind.COUNTER,
    "Questions to producers about open transactions.",
)
GATEWAY_CODES = (
    *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
    *(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
    *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION),
    RequestCode.RECALL_MESSAGE,
    *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET),
    *(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MAX_OFFSET),
    *(RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME),
    *(RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    *(RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT),
    *(RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.CHECK_CLIENT_CONFIG),
    *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
    *(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_ALL_TOPIC_CONFIG),
    *(RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_ROUTEINFO_BY_TOPIC),
    *(RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
)
"""Codes with counts of their own; all further ones share one."""
GATEWAY_REFUSED = (
    *(ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY),
    *(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL),
    *(ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION),
    *(ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    *(ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST),
    *(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.INVALID_PARAMETER),
)
"""Refusals with counts of their own."""
GATEWAY_ENDS = ("broken", "unread", "silent", "crowd", "memory", "login")


class Series(NamedTuple):
    """One line of numbers: a family with values for its labels."""

    family: Family
    labels: tuple[tuple[str, str], ...] = ()


def series(family: Family, **labels: str) -> Series:
    """The series of a family that has these labels, in the order of the family's declaration."""
    return Series(family, tuple(labels.items()))


def _requests(ops: tuple[str, ...]) -> list[Series]:
    return [series(REQUESTS, op=op, code=code) for op in ops for code in CODES]


def _dispatch(target: str) -> tuple[Series, ...]:
    families = (DISPATCH, DISPATCH_FLUSH, DISPATCHED)
    return tuple(series(family, target=target) for family in families)


def _gateway() -> tuple[Series, ...]:
    requests = (*(code.name.lower() for code in GATEWAY_CODES), OTHER)
    refusals = (*(code.name.lower() for code in GATEWAY_REFUSED), OTHER)
    return (
        *(series(GATEWAY_REQUESTS, request_code=one) for one in requests),
        *(series(GATEWAY_REFUSALS, response_code=one) for one in refusals),
        *(series(GATEWAY_ENDED, reason=one) for one in GATEWAY_ENDS),
        *map(series, GATEWAY_GAUGES),
        series(GATEWAY_CHECKS),
    )


WRITER, READER, QUEUE, INDEX, GATEWAY = "writer", "reader", "queue", "index", "gateway"
CONSOLE = "console"
SERIES: dict[str, tuple[Series, ...]] = {
    WRITER: (
        *_requests(WRITER_OPS),
        *(series(REJECTED, reason=reason) for reason in REASONS),
        series(REPEATED),
        series(IN_FLIGHT, op=APPEND),
        series(DURATION, op=APPEND),
        *(series(STAGE, op=APPEND, stage=stage) for stage in STAGES),
        series(LOG_APPEND),
        *(series(LOG_FLUSH, mode=mode) for mode in FLUSH_MODES),
        series(LOG_BATCH),
    ),
    READER: (
        *_requests(READER_OPS),
        *(series(DURATION, op=op) for op in READER_OPS),
        *(series(INDEX_LOOKUPS, result=result) for result in LOOKUPS),
    ),
    QUEUE: _dispatch("cq"),
    INDEX: _dispatch("index"),
    GATEWAY: _gateway(),
    CONSOLE: (series(CONSOLE_REQUESTS),),
}
"""By role, in the order of the page."""
