"""Which attributes of a topic a node offers: RocketMQ's TopicAttributes, as far as a node has them.

A table may have others, from a broker: such a topic is served as one without them.
"""

from collections.abc import Mapping

from protocol.errors import NotAllowed

MESSAGE_TYPE, CLEANUP, QUEUE_TYPE = "message.type", "cleanup.policy", "queue.type"
LITE_EXPIRATION = "lite.topic.expiration"
RESERVE_TIME = "reserve.time"
"""In hours. A request to make a topic names them as retention_hours."""
OFFERED: Mapping[str, tuple[str, ...]] = {
    QUEUE_TYPE: ("SimpleCQ",),
    CLEANUP: ("DELETE",),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
_REASONS: Mapping[tuple[str, str], str] = {
    (CLEANUP, "COMPACTION"): "messages are kept by age and size alone",
    (QUEUE_TYPE, "BatchCQ"): "queues have one unit for each message",
    (MESSAGE_TYPE, "PRIORITY"): "messages have no priority",
    (MESSAGE_TYPE, "LITE"): "there are no lite topics",
}
_LEAVE_OUT = "leave the attribute out"


def reason_not_offered(name: str, value: str) -> str:
    """Why a node does not offer an attribute; empty where it does."""
    if value in OFFERED.get(name, ()):
        return ""
    if name == LITE_EXPIRATION:
        return _REASONS[MESSAGE_TYPE, "LITE"]
    if name in OFFERED:
        return _REASONS.get((name, value), f"it may be {', '.join(OFFERED[name])}")
    return "a node does not know it"


def check_offered(wanted: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raises NotAllowed for what a topic does not have already, as `known` says."""
    for name, value in sorted(wanted.items()):
        if known.get(name) == value:
            continue
        if name == RESERVE_TIME:
            raise NotAllowed(f"{name} is no attribute here", "name retention_hours")
        why = reason_not_offered(name, value)
        if why:
            text = f"a node does not offer {name[:80]}={value[:80]}: {why}"
            raise NotAllowed(text, _LEAVE_OUT)
