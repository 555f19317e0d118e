"""The properties of a message as a broker stores them: the client's, and what the broker adds.

Most strings of properties need no look at their pairs: what is added goes to the end.
"""

import re
from collections.abc import Callable

from keelog.gateway.names import REGION
from protocol.errors import IllegalMessage
from protocol.record.encode import NOT_OFFERED
from protocol.record.properties import (
    CRC32,
    DELAY,
    TRANSACTION,
    UNIQUE_KEY,
    WAIT,
    decode_raw_properties,
)
from protocol.record.waiting import TIMERS

CLUSTER, MSG_REGION, TRACE_ON, POP_CK = "CLUSTER", "MSG_REGION", "TRACE_ON", "POP_CK"
_ADDED = (CLUSTER, MSG_REGION, TRACE_ON, POP_CK)
_OFFERED = (DELAY, TRANSACTION, *TIMERS)
_REFUSED = {name: what for name, what in NOT_OFFERED.items() if name not in _OFFERED}
_DROPPED = frozenset(name.encode() for name in (*_ADDED, CRC32))
_SPECIAL = re.compile(
    b"(?:^|\x02)(?:"
    + b"|".join(re.escape(name.encode()) for name in (*_REFUSED, *_ADDED, CRC32))
    + b")\x01"
)
SPECIAL_NAMES = (*NOT_OFFERED, *_ADDED, CRC32)
"""Of properties that are not stored as they are, or not of every message."""
_KEY_START = f"{UNIQUE_KEY}\x01".encode()
_NAME_END, _PAIR_END = b"\x01", b"\x02"
_NO_VALUE, _NO_NAME = b"\x01\x02", b"\x02\x01"
_NO_WAIT = f"{WAIT}\x01false\x02".encode()


def broker_properties(cluster: str) -> bytes:
    """What a broker of this cluster adds to each message outside a batch."""
    pairs = ((CLUSTER, cluster), (MSG_REGION, REGION), (TRACE_ON, "true"))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def stored_properties(given: bytes, added: bytes, new_key: Callable[[], str]) -> bytes:
    """The properties of a message whose client sent `given`; with `added` at their end, and a new
    unique key where the client made none. A pair without a name or a value is left out, as
    a broker does: clients with an empty namespace send one.

    Raises IllegalMessage for those by which a broker would do more than store the message.
    """
    if _SPECIAL.search(given) or _has_half_pairs(given):
        given = _without_ours(given)
    elif given and not given.endswith(_PAIR_END):
        given += _PAIR_END
    if not unique_key_of(given):
        given += _KEY_START + new_key().encode() + _PAIR_END
    return given + added


def waits_for_disk(properties: bytes) -> bool:
    """False where the client says WAIT=false: its message need not be flushed before the reply."""
    return not (properties.startswith(_NO_WAIT) or _PAIR_END + _NO_WAIT in properties)


def unique_key_of(properties: bytes) -> bytes:
    """The value of UNIQ_KEY; empty without one."""
    at = properties.find(_KEY_START)
    if at < 0 or (at and properties[at - 1] != _PAIR_END[0]):
        return b"" if at < 0 else decode_raw_properties(properties).get(UNIQUE_KEY.encode(), b"")
    at += len(_KEY_START)
    end = properties.find(_PAIR_END, at)
    return properties[at:] if end < 0 else properties[at:end]


def _has_half_pairs(given: bytes) -> bool:
    """Whether a pair may have no name, no value or no 0x01. For each message, so without a loop."""
    pairs = given.count(_PAIR_END) + (not given.endswith(_PAIR_END) and given != b"")
    return (
        given.count(_NAME_END) != pairs
        or _NO_VALUE in given
        or _NO_NAME in given
        or given.startswith(_NAME_END)
        or given.endswith(_NAME_END)
    )


def _without_ours(given: bytes) -> bytes:
    found = decode_raw_properties(given)
    for name, what in _REFUSED.items():
        value = found.get(name.encode())
        if value is not None:
            raise IllegalMessage(
                f"property {name} asks for {what}, which this node does not offer",
                "leave the property out, and send the message when it is due",
            )
    pairs = (name + b"\x01" + value for name, value in found.items() if name not in _DROPPED)
    return b"".join(pair + _PAIR_END for pair in pairs)
