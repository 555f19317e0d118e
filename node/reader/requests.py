"""What a client asks of a reader, where `protocol.requests` does not say all of it.

Parsing touches neither files nor sockets; every value that leaves here is of its type and range.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from node.runtime.settings import Settings
from node.store.query.pull_types import PullRequest, TransferLimits
from node.store.query.tag_filter import TagFilter, parse_tags
from protocol.errors import BadRequest
from protocol.ids import Queue
from protocol.request_fields import RequestLayout, out_of_range
from protocol.requests import (
    FETCH,
    FETCH_LOG,
    FETCH_QUEUE,
    FETCHED_INDEX,
    FETCHED_QUEUE,
    GET_BY_ID,
    GET_BY_KEY,
    GET_BY_OFFSET,
    GET_BY_QUEUE,
    PULL,
    PULL_BYTES_DEFAULT,
    PULL_MESSAGES_DEFAULT,
    GetById,
    GetByKey,
    GetByOffset,
    GetByQueue,
)
from protocol.wire.frames import Header

_GET_FORMS: dict[str, RequestLayout[Any]] = {
    "physical_offset": GET_BY_OFFSET,
    "msg_id": GET_BY_ID,
    "unique_key": GET_BY_KEY,
    "offset": GET_BY_QUEUE,
}
"""The ways to name a record, each by the field that only it has."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull: from where, what, and how long it may be held."""

    queue: Queue
    offset: int
    request: PullRequest
    wait_ms: int
    tags: str = ""
    """The expression, so that equal pulls are known as equal."""
    stream: bool = False
    """Whether it may have several answers, as its queue grows; it waits then."""


Get = GetByOffset | GetById | GetByKey | GetByQueue


@dataclass(frozen=True, slots=True)
class Fetch:
    """Raw bytes of a file, which is named by what it holds.

    `offset` is a log offset, the number of a unit, or a place in the index file `file`.
    """

    kind: str
    offset: int
    bytes_max: int
    queue: Queue | None = None
    file: str = ""


def parse_pull(header: Header, settings: Settings, limits: TransferLimits) -> Pull:
    """Any offset is taken: one below or above the queue has a status of its own (RocketMQ).

    The transfer limits of the settings count where the request names none of its own.
    """
    topic, queue_id, offset, count, size, tags, wait_ms, stream = PULL.values(header)
    if wait_ms > settings.long_polling_ms_max:
        raise out_of_range("wait_ms", wait_ms, 0, settings.long_polling_ms_max)
    request = _pull_request(
        tags,
        count,
        size,
        limits,
        settings.max_filter_message_size,
        settings.travel_cq_file_num_when_get_message,
    )
    queue = Queue(topic, queue_id)
    return Pull(queue, offset, request, wait_ms, tags, stream=stream and wait_ms > 0)


@lru_cache(maxsize=256)
def _pull_request(
    tags: str,
    count: int | None,
    size: int | None,
    limits: TransferLimits,
    filter_bytes_max: int,
    files_max: int,
) -> PullRequest:
    """Consumers ask for the same again and again. Raises BadRequest for tags that are none."""
    if count is not None:
        limits = limits._replace(count_max=count, cold_count_max=count)
    if size is not None:
        limits = limits._replace(bytes_max=size, cold_bytes_max=size)
    return PullRequest(
        max_messages=count or PULL_MESSAGES_DEFAULT,
        total_bytes_max=size or PULL_BYTES_DEFAULT,
        limits=limits,
        tags=_tag_filter(tags),
        exact=True,
        filter_bytes_max=filter_bytes_max,
        files_max=files_max,
    )


def _tag_filter(expression: str) -> TagFilter | None:
    found = parse_tags(expression)
    if found is not None and not found.tags:
        raise BadRequest(
            f"field tags names no tag: {expression[:80]!a}", "write A || B, or * for all"
        )
    return found


def parse_get(header: Header) -> Get:
    """One of the four ways to name a record. Raises BadRequest for none or several."""
    forms = [form for form in _GET_FORMS if header.get(form) is not None]
    if len(forms) != 1:
        raise BadRequest(
            f"get names {' and '.join(forms) or 'no record'}",
            "name physical_offset, msg_id, topic and unique_key, or topic, queue and offset",
        )
    found: Get = _GET_FORMS[forms[0]].parse(header)
    return found


def parse_fetch(header: Header) -> Fetch:
    """Which bytes. Raises BadRequest; nothing that names a path comes through."""
    kind, offset, size = FETCH.values(header)
    if kind == FETCH_QUEUE:
        return Fetch(kind, offset, size, queue=Queue(*FETCHED_QUEUE.parse(header)))
    if kind == FETCH_LOG:
        return Fetch(kind, offset, size)
    return Fetch(kind, offset, size, file=FETCHED_INDEX.parse(header).file)
