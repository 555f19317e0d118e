"""The fields by which a pull's answer names a damaged message; RocketMQ's clients ignore them."""

from collections.abc import Mapping

from protocol.errors import MessageDamaged

_FILE, _PLACE, _FOUND, _HINT, _NEXT = (
    "damagedFile",
    "damagedPlace",
    "damageFound",
    "damageHint",
    "nextBeginOffset",
)


def damage_fields(damage: MessageDamaged) -> dict[str, str]:
    """The fields of a damaged message, with the queue offset where its queue goes on."""
    return {
        _FILE: damage.where,
        _PLACE: str(damage.offset),
        _FOUND: damage.found,
        _HINT: damage.hint,
        _NEXT: str(damage.next_offset),
    }


def named_damage(ext: Mapping[str, str]) -> MessageDamaged | None:
    """The damaged message that an answer names; None for any other answer."""
    place, following = ext.get(_PLACE, ""), ext.get(_NEXT, "")
    if not (place.isascii() and place.isdigit() and following.isascii() and following.isdigit()):
        return None
    return MessageDamaged(
        ext.get(_FILE, ""),
        int(place),
        ext.get(_FOUND, ""),
        ext.get(_HINT, ""),
        int(following) - 1,
        int(following),
    )
