"""What a broker says to RocketMQ's controllers, and they to it: codes, fields, bodies."""

import json
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from protocol.errors import BadRequest


class ControllerCode(IntEnum):
    """Requests, by the names that RocketMQ gives them."""

    BROKER_HEARTBEAT = 904
    ALTER_SYNC_STATE_SET = 1001
    ELECT_MASTER = 1002
    REGISTER_BROKER = 1003
    GET_REPLICA_INFO = 1004
    GET_METADATA_INFO = 1005
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    GET_NEXT_BROKER_ID = 1012
    APPLY_BROKER_ID = 1013


class ControllerReply(IntEnum):
    """Outcomes that only controllers have."""

    NOT_LEADER = 2007
    BROKER_METADATA_NOT_EXIST = 2008
    BROKER_NEED_TO_BE_REGISTERED = 2010
    MASTER_STILL_EXIST = 2011
    BROKER_ID_INVALID = 2014


class SyncStateSet(NamedTuple):
    """Those of a group from which a master may be elected. `epoch` grows with each change."""

    members: frozenset[int]
    epoch: int


class GroupView(NamedTuple):
    """What a controller says of a group. `master_id` is 0 while none leads."""

    master_id: int
    master: str
    """Where the master takes requests."""
    master_epoch: int
    in_sync: SyncStateSet


def encode_sync_state_set(state: SyncStateSet) -> bytes:
    """The body of 1001."""
    found = {"syncStateSet": sorted(state.members), "syncStateSetEpoch": state.epoch}
    return json.dumps(found).encode()


def parse_sync_state_set(body: bytes) -> SyncStateSet:
    """The body of an answer to 1001 or 1004. Raises BadRequest."""
    try:
        found = json.loads(body)
        members: Iterable[int] = found["syncStateSet"] or ()
        return SyncStateSet(frozenset(map(int, members)), int(found["syncStateSetEpoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"a controller sent {body[:200]!r}, no sync-state set ({error})") from None


def parse_group(ext: Mapping[str, str], body: bytes) -> GroupView:
    """An answer to 1004. Raises BadRequest."""
    return GroupView(
        _number(ext, "masterBrokerId"),
        ext.get("masterAddress", ""),
        _number(ext, "masterEpoch"),
        parse_sync_state_set(body),
    )


def _number(ext: Mapping[str, str], name: str) -> int:
    """0 where it is left out, as Java does for null."""
    text = ext.get(name) or "0"
    if not text.lstrip("-").isdigit():
        raise BadRequest(f"a controller sent {name}={text[:80]!r}, no number")
    return max(0, int(text))
