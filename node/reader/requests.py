"""What a client may ask of a reader: the fields of each operation, checked.

Parsing touches neither files nor sockets; every value that leaves here is of its type and range.
"""

from dataclasses import dataclass
from functools import lru_cache

from node.runtime.settings import Settings
from node.store.query.pull_types import PullRequest, TransferLimits
from node.store.query.seek import Boundary
from node.store.query.tag_filter import TagFilter, parse_tags
from protocol.errors import BadRequest
from protocol.ids import Queue
from protocol.message_id import parse_offset_message_id
from protocol.names import QUEUE_ID_MAX, is_folder_name, is_index_file_name
from protocol.record.properties import PROPERTIES_BYTES_MAX
from protocol.wire.frames import Header, take, take_int

PULL_MESSAGES_MAX = 10_000
PULL_MESSAGES_DEFAULT = 32
PULL_BYTES_DEFAULT = 262_144
PULL_BYTES_MAX = 16 * 1024 * 1024
"""One answer is one frame."""
FIND_MESSAGES_MAX = 1_000
FIND_MESSAGES_DEFAULT = 64
TAGS_CHARS_MAX = 4_096
KEY_CHARS_MAX = PROPERTIES_BYTES_MAX
CURSOR_CHARS_MAX = 256
FETCH_BYTES_MAX = 4 * 1024 * 1024
"""Raw bytes of one answer to `fetch`."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FETCH_KINDS = ("log", "queue", "index")
_GET_FORMS = ("physical_offset", "msg_id", "unique_key", "offset")


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


@dataclass(frozen=True, slots=True)
class GetByPlace:
    """One record by log offset. `message_id` is the id that named it, if one did."""

    physical_offset: int
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class GetByKey:
    """The newest record with a unique key."""

    topic: str
    unique_key: str


@dataclass(frozen=True, slots=True)
class GetByQueue:
    """One record by its number in a queue."""

    queue: Queue
    offset: int


Get = GetByPlace | GetByKey | GetByQueue


@dataclass(frozen=True, slots=True)
class FindByKey:
    """Records with a key, stored in [`begin`, `end`] ms; `cursor` goes on after a page."""

    topic: str
    key: str
    begin: int
    end: int
    max_messages: int
    cursor: str | None
    unique: bool


@dataclass(frozen=True, slots=True)
class Seek:
    """The queue offset at a store time."""

    queue: Queue
    timestamp: int
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class Offsets:
    """The bounds of one queue, or of all queues of a topic."""

    topic: str
    queue_id: int | None


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


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """What there is to fetch; of all topics, or of some. `after` is the last queue of a page."""

    topics: tuple[str, ...] | None
    after: Queue | None
    known: str
    with_index: bool


def parse_pull(header: Header, settings: Settings, limits: TransferLimits) -> Pull:
    """Any offset is taken: one below or above the queue has a status of its own (RocketMQ).

    The transfer limits of the settings count where the request names none of its own.
    """
    queue = _queue(header)
    tags = take(header, "tags", str, "")
    count = take_int(header, "max_messages", 1, PULL_MESSAGES_MAX, None)
    size = take_int(header, "max_bytes", 1, PULL_BYTES_MAX, None)
    request = _pull_request(
        *(tags, count, size, limits),
        *(settings.max_filter_message_size, settings.travel_cq_file_num_when_get_message),
    )
    wait_ms = take_int(header, "wait_ms", 0, settings.long_polling_ms_max, 0)
    return Pull(
        queue=queue,
        offset=take_int(header, "offset", INT64_MIN, INT64_MAX),
        request=request,
        wait_ms=wait_ms,
        tags=tags,
        stream=take(header, "stream", bool, False) and wait_ms > 0,
    )


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
    if len(expression) > TAGS_CHARS_MAX:
        raise BadRequest(
            f"field tags has {len(expression)} characters, {TAGS_CHARS_MAX} are allowed"
        )
    if "\x01" in expression or "\x02" in expression:
        raise BadRequest("field tags holds the bytes 0x01 or 0x02, which no tag can have")
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
    if forms == ["physical_offset"]:
        return GetByPlace(take_int(header, "physical_offset", 0, INT64_MAX))
    if forms == ["msg_id"]:
        text = take(header, "msg_id", str)
        return GetByPlace(parse_offset_message_id(text)[1], text)
    if forms == ["unique_key"]:
        return GetByKey(_topic(header), _key(header, "unique_key"))
    return GetByQueue(_queue(header), take_int(header, "offset", 0, INT64_MAX))


def parse_find(header: Header) -> FindByKey:
    """A look-up by key. Raises BadRequest."""
    cursor = take(header, "cursor", str, None)
    if cursor is not None and len(cursor) > CURSOR_CHARS_MAX:
        raise BadRequest("field cursor is none of ours: it is too long")
    return FindByKey(
        topic=_topic(header),
        key=_key(header, "key"),
        begin=take_int(header, "begin", INT64_MIN, INT64_MAX, 0),
        end=take_int(header, "end", INT64_MIN, INT64_MAX, INT64_MAX),
        max_messages=take_int(header, "max_messages", 1, FIND_MESSAGES_MAX, FIND_MESSAGES_DEFAULT),
        cursor=cursor,
        unique=take(header, "unique", bool, False),
    )


def parse_seek(header: Header) -> Seek:
    """A look-up by time. Raises BadRequest."""
    boundary = take(header, "boundary", str, Boundary.LOWER.value)
    try:
        bound = Boundary(boundary)
    except ValueError:
        raise BadRequest(f"field boundary is {boundary[:40]!a}", "use lower or upper") from None
    return Seek(_queue(header), take_int(header, "timestamp", INT64_MIN, INT64_MAX), bound)


def parse_offsets(header: Header) -> Offsets:
    """Whose bounds. Raises BadRequest."""
    return Offsets(_topic(header), take_int(header, "queue", 0, QUEUE_ID_MAX, None))


def parse_fetch(header: Header) -> Fetch:
    """Which bytes. Raises BadRequest; nothing that names a path comes through."""
    kind = take(header, "kind", str)
    if kind not in FETCH_KINDS:
        raise BadRequest(f"field kind is {kind[:40]!a}", f"use {', '.join(FETCH_KINDS)}")
    offset = take_int(header, "offset", 0, INT64_MAX)
    size = take_int(header, "max_bytes", 1, FETCH_BYTES_MAX, FETCH_BYTES_MAX)
    if kind == "queue":
        return Fetch(kind, offset, size, queue=_queue(header))
    if kind == "log":
        return Fetch(kind, offset, size)
    file = take(header, "file", str)
    if not is_index_file_name(file):
        raise BadRequest(f"field file is {file[:80]!a}", "name an index file as layout does")
    return Fetch(kind, offset, size, file=file)


def parse_layout(header: Header) -> LayoutRequest:
    """Of what. Raises BadRequest."""
    topics = take(header, "topics", list, None)
    if topics is not None and not all(isinstance(topic, str) for topic in topics):
        raise BadRequest("field topics holds other things than names")
    cursor = take(header, "cursor", str, None)
    return LayoutRequest(
        topics=None if topics is None else tuple(topics),
        after=None if cursor is None else _parse_cursor(cursor),
        known=take(header, "known", str, ""),
        with_index=take(header, "index", bool, False),
    )


def _parse_cursor(cursor: str) -> Queue:
    topic, _, number = cursor.rpartition("/")
    if len(cursor) > CURSOR_CHARS_MAX or not is_folder_name(topic) or not _is_number(number):
        raise BadRequest("field cursor is none of ours", "send that of the page before")
    return Queue(topic, int(number))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(QUEUE_ID_MAX))


def _queue(header: Header) -> Queue:
    return Queue(_topic(header), take_int(header, "queue", 0, QUEUE_ID_MAX))


def _topic(header: Header) -> str:
    """A name that can be a folder's: nothing else has ever been stored, and no path leads out."""
    topic: str = take(header, "topic", str)
    if not is_folder_name(topic):
        raise BadRequest(f"field topic is {topic[:80]!a}", "topics are made of % | a-z A-Z 0-9 _ -")
    return topic


def _key(header: Header, name: str) -> str:
    key: str = take(header, name, str)
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise BadRequest(f"field {name} has {len(key)} characters", "name one key")
    return key
