"""A batch of messages for one queue, encoded as a whole: what they share is made once.

The compiled kernel does it in one pass; without one each message is encoded by itself, which is
the oracle of the tests.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadRequest, MessageTooLarge, MqError
from protocol.kernel import loader
from protocol.kernel.loader import Kernel, address
from protocol.message_id import NO_HOST, Host
from protocol.names import QUEUE_ID_MAX, check_topic_for_send
from protocol.record.encode import ANY_QUEUE, NewMessage, encode_batch, pack_record
from protocol.record.properties import KEY_SEPARATOR, TAGS, encode_properties
from protocol.wire.frames import PAYLOAD_BYTES_MAX

Keys = Sequence[str | Sequence[str]]

_HEAD_BYTES = 88
_STEM_CHARS = 28
_DRAFT = struct.Struct("=9q")
_ROW_EXTRA_BYTES = _HEAD_BYTES + 2 + 6 + 9 + 32 + 1 + 20
"""Of a record, beside topic, tags, keys and body: head, properties' length and fixed texts."""


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """What is to be stored: plain bodies of one topic, with as many keys or none.

    `queue_id` -1 lets the node choose; `stem` is the unique keys' first 28 characters, `counter`
    what the first one ends in. `bodies` are all of them joined, `sizes` the bytes of each.
    """

    topic: str
    bodies: bytes
    sizes: Sequence[int]
    stem: str
    counter: int = 0
    queue_id: int = ANY_QUEUE
    tags: str = ""
    keys: Keys | None = None
    born_timestamp: int = 0
    born_host: Host = NO_HOST


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records back to back, the bytes of each, and the CRC-32 of all."""

    records: NDArray[np.uint8]
    sizes: NDArray[np.uint32]
    crc: int


def unique_key_at(stem: str, counter: int) -> str:
    """The unique key of a batch's message: counters go around, as those of single keys do."""
    return f"{stem}{counter & 0xFFFF:04X}"


def encode_columns(draft: BatchDraft, crc: bool, max_message_bytes: int) -> EncodedBatch:
    """The records of a batch, byte for byte as `encode_message` makes each.

    Raises IllegalMessage and its kinds, or BadRequest, for the first message that is wrong;
    MessageTooLarge also when all together are more than a request may carry.
    """
    if not len(draft.sizes):
        raise BadRequest("the batch is empty", "give it at least one body")
    if draft.keys is not None and len(draft.keys) != len(draft.sizes):
        raise BadRequest(
            f"{len(draft.keys)} keys for {len(draft.sizes)} bodies",
            "give each message its keys, or leave keys out",
        )
    compiled = loader.active()
    found = None
    if compiled is not None and max(draft.sizes) <= max_message_bytes:
        found = _encode_compiled(compiled, draft, crc)
    if found is None:
        found = encode_columns_plain(draft, crc, max_message_bytes)
    if len(found.records) > PAYLOAD_BYTES_MAX:
        raise MessageTooLarge(
            f"the batch has {len(found.records)} bytes, {PAYLOAD_BYTES_MAX} are allowed",
            "send smaller batches",
        )
    return found


def encode_columns_plain(draft: BatchDraft, crc: bool, max_message_bytes: int) -> EncodedBatch:
    """As `encode_columns`, message by message."""
    sizes = [int(size) for size in draft.sizes]
    ends = accumulate(sizes)
    bodies = draft.bodies
    messages = [
        NewMessage(
            topic=draft.topic,
            body=bodies[end - size : end],
            queue_id=draft.queue_id,
            tags=draft.tags,
            keys=() if draft.keys is None else _words(draft.keys[row]),
            unique_key=unique_key_at(draft.stem, draft.counter + row),
            born_timestamp=draft.born_timestamp,
            born_host=draft.born_host,
        )
        for row, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]
    batch = encode_batch(messages, crc, max_message_bytes)
    records = np.frombuffer(batch.records, np.uint8)
    return EncodedBatch(records, np.array(batch.sizes, np.uint32), batch.crc)


def _words(keys: str | Sequence[str]) -> tuple[str, ...]:
    """A plain string is one key, an empty one none. Raises BadRequest for what is not text."""
    if isinstance(keys, str):
        return (keys,) if keys else ()
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise BadRequest(f"{keys!r:.80} is no key", "give each message a text, or a list of texts")
    return tuple(keys)


def _joined_keys(keys: Keys | None) -> bytes | None:
    """The text of each message's property KEYS, each ended by 0x02; None where one is not a key."""
    if keys is None:
        return b""
    try:
        if set(map(type, keys)) <= {str}:
            words = texts = keys
        else:
            lists = [own if type(own) in (list, tuple) else _words(own) for own in keys]
            words = list(chain.from_iterable(lists))
            texts = list(map(KEY_SEPARATOR.join, lists))
        is_odd = KEY_SEPARATOR in "".join(words) or (words is not keys and "" in words)  # type: ignore[arg-type]
        return None if is_odd else _as_utf8("\x02".join(texts) + "\x02")  # type: ignore[arg-type]
    except TypeError:
        return None


def _as_utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _encode_compiled(compiled: Kernel, draft: BatchDraft, crc: bool) -> EncodedBatch | None:
    """None where something may be wrong, which the plain way then names."""
    keys = _joined_keys(draft.keys)
    mould = _mould(draft.topic, draft.tags, draft.queue_id, draft.born_host)
    if keys is None or mould is None or len(draft.stem) != _STEM_CHARS:
        return None
    rows, topic, tags = len(draft.sizes), *mould[1:]
    room = rows * (_ROW_EXTRA_BYTES + topic + tags) + len(draft.bodies) + len(keys)
    numbers = _DRAFT.pack(
        *(rows, len(draft.bodies), draft.born_timestamp, draft.counter, crc),
        *(topic, tags, len(keys), room),
    )
    shared = b"".join((mould[0], draft.stem.encode(), keys))
    head = 4 + 4 * rows
    out = np.empty(head + room, np.uint8)
    sizes = struct.pack(f"={rows}q", *draft.sizes)
    encode = compiled.function("encode_batch")
    size = encode(numbers, shared, draft.bodies, sizes, address(out))
    if size < 0:
        return None
    found = out[:head].view(np.uint32)
    return EncodedBatch(out[head : head + size], found[1:], int(found[0]))


@lru_cache(maxsize=1024)
def _mould(topic: str, tags: str, queue_id: int, host: Host) -> tuple[bytes, int, int] | None:
    """Head, topic and property TAGS of records that share these, and the bytes of the last two.

    None where the plain way must say what is wrong, or another head is needed.
    """
    try:
        check_topic_for_send(topic)
        encoded = encode_properties([(TAGS, tags)] if tags else [])
    except MqError:
        return None
    if not ANY_QUEUE <= queue_id <= QUEUE_ID_MAX or host.is_v6:
        return None
    empty = pack_record(NewMessage(topic=topic, body=b"", queue_id=queue_id, born_host=host), b"")[
        :-2
    ]
    return empty + encoded, len(empty) - _HEAD_BYTES, len(encoded)
