"""Finds messages by key and store time, newest first; each record's text confirms it."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.runtime.damage import met_damage
from node.store.base import Store
from node.store.file_cache import FileVanished
from node.store.indexes.reader import END_OF_TIME, Candidate
from protocol.derived.index_entry import TAGS_KEY_PREFIX
from protocol.errors import BadRequest, NotFound, StoreDamaged, UnknownTopic
from protocol.record.codec import Record
from protocol.record.java_hash import java_text
from protocol.record.properties import KEYS, TAGS, UNIQUE_KEY, decode_raw_properties, split_keys

_UNIQUE_KEY, _KEYS, _TAGS = UNIQUE_KEY.encode(), KEYS.encode(), TAGS.encode()
BYTES_MAX = 1 << 30
CANDIDATES_MAX = 10_000
"""The entries that one page looks at; a page with few records may still have a cursor."""
DAMAGED_MAX = 64
"""The damaged records that one page passes over."""


@dataclass(frozen=True, slots=True)
class FindRequest:
    """A look-up by key. `begin` and `end` are store times in ms, inclusive and exact.

    `unique`: only records whose UNIQ_KEY is the key. `cursor`: that of the page before. The page
    ends with the record that brings it to `bytes_max`. `skip_damaged`: a record that cannot be
    read, which may have the key, costs the page that record.
    """

    topic: str
    key: str
    begin: int = 0
    end: int = END_OF_TIME
    limit: int = 64
    cursor: str | None = None
    unique: bool = False
    bytes_max: int = BYTES_MAX
    skip_damaged: bool = False


@dataclass(frozen=True, slots=True)
class FindPage:
    """Records, newest first, and the cursor of the next page; None after the last one.

    `damaged`: the errors of those that were passed over.
    """

    records: list[Record]
    cursor: str | None
    damaged: Sequence[StoreDamaged] = ()


def find(store: Store, request: FindRequest) -> FindPage:
    """Finds one page. Raises UnknownTopic, BadRequest for a malformed cursor, StoreDamaged."""
    after, last_offset = _parse_cursor(request.cursor)
    records: list[Record] = []
    damaged: list[StoreDamaged] = []
    size = 0
    candidates = store.index.candidates(
        request.topic, request.key, request.begin, request.end, after
    )
    for seen, candidate in enumerate(candidates):
        is_full = len(records) >= request.limit or size >= request.bytes_max
        is_full |= len(damaged) >= DAMAGED_MAX
        if is_full or seen >= CANDIDATES_MAX:
            assert after is not None
            return FindPage(records, _cursor(after), damaged)
        after = candidate
        # After a crash RocketMQ enters the last record of a file again in the next one.
        if candidate.physical_offset == last_offset:
            continue
        last_offset = candidate.physical_offset
        try:
            record = _confirmed(store, candidate.physical_offset, request)
        except FileVanished:
            raise
        except StoreDamaged as error:
            if not request.skip_damaged:
                raise
            met_damage.note(error)
            damaged.append(error)
            continue
        if record is not None:
            records.append(record)
            size += record.size
    if (
        not records
        and not damaged
        and request.cursor is None
        and not store.has_topic(request.topic)
    ):
        raise UnknownTopic(
            f"there is no topic {request.topic[:80]!a}", "see the topics with: keelog topic ls"
        )
    return FindPage(records, None, damaged)


def _confirmed(store: Store, offset: int, request: FindRequest) -> Record | None:
    try:
        record = store.look_up(offset)
    except NotFound:
        return None  # deleted by retention, removed, or not readable yet
    if not request.begin <= record.head.store_timestamp <= request.end:
        return None
    return record if record.topic == request.topic and _has_key(record, request) else None


def _has_key(record: Record, request: FindRequest) -> bool:
    # As `record.unique_key`, `.keys` and `.tags`, without decoding the other properties.
    pairs = decode_raw_properties(record.properties_raw)
    if java_text(pairs.get(_UNIQUE_KEY, b"")) == request.key:
        return True
    if request.unique:
        return False
    if request.key in split_keys(java_text(pairs.get(_KEYS, b""))):
        return True
    tags = java_text(pairs.get(_TAGS, b""))
    return bool(tags) and request.key == TAGS_KEY_PREFIX + tags


def _cursor(candidate: Candidate) -> str:
    return f"{candidate.file}:{candidate.entry}:{candidate.physical_offset}"


def _parse_cursor(cursor: str | None) -> tuple[Candidate | None, int]:
    if cursor is None:
        return None, -1
    file, _, rest = cursor.partition(":")
    entry, _, offset = rest.partition(":")
    if not (file.isdigit() and entry.isdigit() and offset.isdigit() and cursor.isascii()):
        raise BadRequest(f"{cursor[:80]!a} is no cursor", "use the cursor of the page before")
    return Candidate(file, int(entry), int(offset)), int(offset)
