"""The body of a batch (code 320, or any send with `batch`): messages that share a send's header."""

import struct
from typing import NamedTuple

from protocol.remoting.errors import BadCommand

BATCH_ITEMS_MAX = 65_535

_HEAD = struct.Struct(">12xii")
"""Item size, magic and checksum, which Java ignores; then the flag, and the body's length."""
_PROPERTIES_LENGTH = struct.Struct(">h")


class BatchItem(NamedTuple):
    """One message. Its parts are views of the batch's bytes."""

    flag: int
    body: memoryview
    properties: memoryview


def batch_items(batch: memoryview) -> list[BatchItem]:
    """Returns the messages of a batch. Raises BadCommand for bytes that are not one."""
    items: list[BatchItem] = []
    at, end = 0, len(batch)
    if not end:
        raise BadCommand("the body is missing, a batch was expected")
    while at < end:
        if len(items) == BATCH_ITEMS_MAX:
            raise BadCommand(
                f"a batch of more than {BATCH_ITEMS_MAX} messages", "send smaller ones"
            )
        try:
            flag, body_bytes = _HEAD.unpack_from(batch, at)
            body_at = at + _HEAD.size
            properties_at = body_at + body_bytes + _PROPERTIES_LENGTH.size
            (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(batch, body_at + body_bytes)
        except struct.error:
            raise _broken(len(items)) from None
        at = properties_at + properties_bytes
        if body_bytes < 0 or properties_bytes < 0 or at > end:
            raise _broken(len(items))
        items.append(
            BatchItem(flag, batch[body_at : body_at + body_bytes], batch[properties_at:at])
        )
    return items


def _broken(number: int) -> BadCommand:
    return BadCommand(f"message {number} of the batch does not end within it")
