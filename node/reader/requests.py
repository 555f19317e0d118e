"""Parses the requests to a reader that `protocol.requests` does not describe completely.

Parsing touches neither files nor sockets, and checks the type and range of every value.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from node.runtime.settings import Settings
from node.store.query.filters import parse_tags
from node.store.query.pull import PullRequest, TransferLimits
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
"""The ways to name a record, by the field that only one of them has."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull: where it begins, what it takes, and how long it may be held."""

    queue: Queue
    offset: int
    request: PullRequest
    wait_ms: int
    tags: str = ""
    """The expression: equal pulls share one look."""
    tags_kind: str = ""
    """Its language, if it is not that of tags."""
    stream: bool = False
    """Whether it gets an answer each time when its queue grows; such a pull waits."""
    patience_ms: int = 0
    """How late its answer may come."""
    generation: int | None = None
    """A log offset at which its place was known; None: it is taken as it is."""


Get = GetByOffset | GetById | GetByKey | GetByQueue


@dataclass(frozen=True, slots=True)
class Fetch:
    """A read of raw bytes from a file, which is named by its content.

    `offset` is a log offset, the number of a unit, or a place in the index file `file`.
    """

    kind: str
    offset: int
    bytes_max: int
    queue: Queue | None = None
    file: str = ""


def parse_pull(header: Header, settings: Settings, limits: TransferLimits) -> Pull:
    """Parses a pull. Any offset is valid: one outside the queue has its own status (RocketMQ).

    `limits` apply where the request has none of its own.
    """
    asked = PULL.values(header)
    topic, queue_id, offset, count, size, tags, wait_ms, stream, patience_ms, generation = asked
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
    is_stream = stream and wait_ms > 0
    return Pull(queue, offset, request, wait_ms, tags, "", is_stream, patience_ms, generation)


@lru_cache(maxsize=256)
def _pull_request(
    tags: str,
    count: int | None,
    size: int | None,
    limits: TransferLimits,
    filter_bytes_max: int,
    files_max: int,
) -> PullRequest:
    """Cached, as consumers repeat their pulls. Raises BadRequest for malformed tags."""
    if count is not None:
        limits = limits._replace(count_max=count, cold_count_max=count)
    if size is not None:
        limits = limits._replace(bytes_max=size, cold_bytes_max=size)
    return PullRequest(
        max_messages=count or PULL_MESSAGES_DEFAULT,
        total_bytes_max=size or PULL_BYTES_DEFAULT,
        limits=limits,
        tags=parse_tags(tags),
        exact=True,
        filter_bytes_max=filter_bytes_max,
        files_max=files_max,
    )


def parse_get(header: Header) -> Get:
    """Parses one of the four ways to name a record. Raises BadRequest for none or several."""
    forms = [form for form in _GET_FORMS if header.get(form) is not None]
    if len(forms) != 1:
        raise BadRequest(
            f"get names {' and '.join(forms) or 'no record'}",
            "name physical_offset, msg_id, topic and unique_key, or topic, queue and offset",
        )
    found: Get = _GET_FORMS[forms[0]].parse(header)
    return found


def parse_fetch(header: Header) -> Fetch:
    """Parses a fetch. Raises BadRequest, also for anything that could be a path."""
    kind, offset, size = FETCH.values(header)
    if kind == FETCH_QUEUE:
        return Fetch(kind, offset, size, queue=Queue(*FETCHED_QUEUE.parse(header)))
    if kind == FETCH_LOG:
        return Fetch(kind, offset, size)
    return Fetch(kind, offset, size, file=FETCHED_INDEX.parse(header).file)
