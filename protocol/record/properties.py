"""A record's properties: `name 0x01 value 0x02`, repeated (RocketMQ: MessageDecoder)."""

from collections.abc import Iterable, Mapping

from protocol.errors import IllegalMessage, PropertiesTooLarge
from protocol.names import DLQ_PREFIX, RETRY_PREFIX
from protocol.record.java_hash import java_text

NAME_END = 1
PAIR_END = 2
PROPERTIES_BYTES_MAX = 32_767

KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_KEY = "UNIQ_KEY"
DELAY = "DELAY"
WAIT = "WAIT"
TRANSACTION = "TRAN_MSG"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
"""With REAL_TOPIC, in a message of the schedule topic: where it is delivered when it is due."""
RETRY_TOPIC = "RETRY_TOPIC"
"""The topic that a message of a retry topic had at first."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
"""The three by which a client asks for a time of delivery; the last is ms since 1970."""
TIMER_OUT_MS = "TIMER_OUT_MS"
"""The begin of the second in which a timer message is due, ms since 1970."""
TIMER_DELETE_KEY = "TIMER_DEL_UNIQKEY"
"""In a message that takes a timer message back: that one's unique key."""
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PRODUCER_GROUP = "PGROUP"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
CRC32 = "__CRC32#"
SET_BY_NODE = frozenset(
    {
        *(DELAY, REAL_TOPIC, REAL_QUEUE_ID, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS),
        *(TIMER_OUT_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_DELETE_KEY),
        *(TRANSACTION, CRC32),
    }
)
"""Properties of one stored message that are not sent along when it is sent again."""
SET_BY_RETRIES = frozenset({RETRY_TOPIC, ORIGIN_MESSAGE_ID})
"""Those that belong to retry topics and dead letters alone."""
KEY_SEPARATOR = " "

CRC_DIGITS = 10
CRC_PREFIX = CRC32.encode() + bytes([NAME_END])
CRC_PROPERTY_BYTES = len(CRC_PREFIX) + CRC_DIGITS + 1
"""`__CRC32#`, 0x01, ten digits, 0x02: always the last bytes of the record."""
EMPTY_CRC_PROPERTY = CRC_PREFIX + b"0" * CRC_DIGITS + bytes([PAIR_END])
"""What a client leaves for the writer to fill in."""


def encode_properties(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """The stored form, in the order given; every pair ends in 0x02.

    Raises IllegalMessage for a name or value that is empty or holds a separator.
    """
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    parts: list[str] = []
    for name, value in items:
        if not name:
            raise IllegalMessage("a property has no name", "name every property")
        if not value:
            # RocketMQ's readers, and so ours, pass over a pair without a value.
            raise IllegalMessage(
                f"property {name[:80]!a} has an empty value, which no reader would see",
                "give it a value, or leave the property out",
            )
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise IllegalMessage(
                f"property {name[:80]!a} holds 0x01 or 0x02, which separate properties",
                "encode the value, as base64 for instance",
            )
        parts.append(f"{name}\x01{value}\x02")
    try:
        encoded = "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise IllegalMessage(
            f"properties are not Unicode text: {error.reason}", "replace lone surrogates"
        ) from None
    check_properties_length(len(encoded))
    return encoded


def check_properties_length(length: int) -> None:
    """Raises PropertiesTooLarge when a record cannot hold `length` bytes of properties."""
    if length > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLarge(
            f"properties have {length} bytes, {PROPERTIES_BYTES_MAX} are allowed",
            "move large values into the body",
        )


def decode_raw_properties(data: bytes) -> dict[bytes, bytes]:
    """The pairs as bytes; the last of a repeated name wins, empty names and values vanish."""
    found: dict[bytes, bytes] = {}
    for chunk in data.split(b"\x02"):
        name, separator, value = chunk.partition(b"\x01")
        if name and separator and value:
            found[name] = value
    return found


def decode_properties(data: bytes) -> dict[str, str]:
    """As `decode_raw_properties`, as text; bytes that are not UTF-8 become U+FFFD, as in Java."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raw = decode_raw_properties(data)
        return {java_text(name): java_text(value) for name, value in raw.items()}
    pairs = [pair.partition("\x01") for pair in text.split("\x02")]
    return {name: value for name, _, value in pairs if name and value}


def properties_to_send(stored: Mapping[str, str], topic: str) -> dict[str, str]:
    """The properties of a stored message for sending it again, to `topic`: without what the node
    sets."""
    of_retries = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    left_out = SET_BY_NODE if of_retries else SET_BY_NODE | SET_BY_RETRIES
    return {name: value for name, value in stored.items() if name not in left_out}


def split_keys(keys: str) -> list[str]:
    """The keys of a KEYS property: single spaces part them, empty ones do not count."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


def crc_property(crc: int) -> bytes:
    """The whole-record checksum as a property: ten digits, least significant first."""
    digits = f"{crc & 0x7FFFFFFF:0{CRC_DIGITS}d}"[::-1]
    return CRC_PREFIX + digits.encode() + bytes([PAIR_END])
