"""What a field of a request must be besides its type: each takes name and value, raises BadRequest.

Each returns the value to use. The declarations of `protocol.requests` name them.
"""

from typing import Any

from protocol.errors import BadRequest
from protocol.ids import Queue
from protocol.message_id import Host, parse_host, parse_offset_message_id
from protocol.names import (
    GROUP_CHARS_MAX,
    QUEUE_ID_MAX,
    is_folder_name,
    is_group_name,
    is_index_file_name,
    is_staging_id,
)
from protocol.record.properties import PROPERTIES_BYTES_MAX, split_keys

WAIT_NONE, WAIT_FLUSHED, WAIT_REPLICATED = "none", "flushed", "replicated"
TAGS_CHARS_MAX = 4_096
KEY_CHARS_MAX = PROPERTIES_BYTES_MAX
CURSOR_CHARS_MAX = 256
_PORT_MAX = 65_535


def stored_topic(name: str, topic: str) -> str:
    """A name that can be a folder's: nothing else has ever been stored, and no path leads out."""
    if not is_folder_name(topic):
        raise BadRequest(
            f"field {name} is {topic[:80]!a}", "topics are made of % | a-z A-Z 0-9 _ -"
        )
    return topic


def group(name: str, group: str) -> str:
    """A name that RocketMQ allows for a group."""
    if not is_group_name(group):
        raise BadRequest(
            f"field {name} is {group[:80]!a}",
            f"use 1 to {GROUP_CHARS_MAX} of the characters % | a-z A-Z 0-9 _ -",
        )
    return group


def queue_offsets(name: str, pairs: Any) -> dict[int, int]:
    """Pairs of a queue and an offset."""
    if not isinstance(pairs, list) or not all(_is_queue_offset(pair) for pair in pairs):
        raise BadRequest(f"field {name} is not a list of queues with their offsets")
    return dict(pairs)


def _is_queue_offset(pair: Any) -> bool:
    if not isinstance(pair, list) or [type(number) for number in pair] != [int, int]:
        return False
    return bool(0 <= pair[0] <= QUEUE_ID_MAX and 0 <= pair[1] < 2**63)


def one_key(name: str, key: str) -> str:
    """A key of up to KEY_CHARS_MAX characters."""
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise BadRequest(f"field {name} has {len(key)} characters", "name one key")
    return key


def keys(name: str, keys: Any) -> tuple[str, ...]:
    """Keys as a list, or as one text that is split at spaces."""
    found = split_keys(keys) if isinstance(keys, str) else keys
    if not isinstance(found, list | tuple) or not all(isinstance(key, str) for key in found):
        raise BadRequest(f"field {name} is no list of strings")
    return tuple(found)


def properties(name: str, found: dict[Any, Any]) -> dict[str, str]:
    """A map of names to values."""
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in found.items()):
        raise BadRequest(f"field {name} is no map of strings to strings")
    return found


def born_host(name: str, text: str) -> Host | None:
    """An address with a port; None for an empty one."""
    if not text:
        return None
    host = parse_host(text)
    if host.port > _PORT_MAX:
        raise BadRequest(f"{name} is {text[:40]!a}", f"use a port in [0, {_PORT_MAX}]")
    return host


def wait(name: str, wait: str) -> str:
    """The event that an answer waits for."""
    if wait not in (WAIT_NONE, WAIT_FLUSHED, WAIT_REPLICATED):
        hint = "use none, flushed, replicated, or leave it out"
        raise BadRequest(f"field {name} is {wait[:40]!a}", hint)
    return wait


def tags(name: str, expression: str) -> str:
    """The text of a tag expression; what it means its reader finds out."""
    if len(expression) > TAGS_CHARS_MAX:
        raise BadRequest(
            f"field {name} has {len(expression)} characters, {TAGS_CHARS_MAX} are allowed"
        )
    if "\x01" in expression or "\x02" in expression:
        raise BadRequest(f"field {name} holds the bytes 0x01 or 0x02, which no tag can have")
    return expression


def message_id(_name: str, text: str) -> str:
    """An offset message id."""
    parse_offset_message_id(text)
    return text


def find_cursor(name: str, cursor: str) -> str:
    """The cursor of a page of `find`."""
    if len(cursor) > CURSOR_CHARS_MAX:
        raise BadRequest(f"field {name} is none of ours: it is too long")
    return cursor


def layout_cursor(name: str, cursor: str) -> Queue:
    """The last queue of a page of `layout`."""
    topic, _, number = cursor.rpartition("/")
    if len(cursor) > CURSOR_CHARS_MAX or not is_folder_name(topic) or not _is_queue_id(number):
        raise BadRequest(f"field {name} is none of ours", "send that of the page before")
    return Queue(topic, int(number))


def _is_queue_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(QUEUE_ID_MAX))


def topic_names(name: str, topics: list[Any]) -> list[str]:
    """A list of text."""
    if not all(isinstance(topic, str) for topic in topics):
        raise BadRequest(f"field {name} holds other things than names")
    return topics


def index_file(name: str, file: str) -> str:
    """The name of an index file, so that no path leads out."""
    if not is_index_file_name(file):
        raise BadRequest(f"field {name} is {file[:80]!a}", "name an index file as layout does")
    return file


def staging_id(name: str, text: str) -> str:
    """The id of a query or stage: it becomes the name of a file."""
    if not is_staging_id(text):
        raise BadRequest(f"{name} is {text[:80]!a}", "1 to 64 of the characters A-Z a-z 0-9 _ -")
    return text
