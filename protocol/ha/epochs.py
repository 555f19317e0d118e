"""The epochs of a log whose masters a controller elects: who wrote it from which offset on.

A controller gives each master that it elects a number above all earlier ones. Two logs are the same
up to the end of the last epoch that both have, with the same begin (EpochFileCache). RocketMQ keeps
them in a text file: how many lines there are, their checksum, then a line for each epoch.
"""

from typing import NamedTuple
from zlib import crc32

from protocol.errors import BadRequest

EPOCHS_MAX = 1_000
"""A master of RocketMQ has room for no more in its greeting."""
_CRC_MASK = 0x7FFFFFFF
_HEAD_LINES = 2


class MasterEpoch(NamedTuple):
    """From the log offset `start` on a master wrote that was elected with this `number`."""

    number: int
    start: int


MasterEpochs = tuple[MasterEpoch, ...]
"""Numbers and begins ascend."""


def last_number(epochs: MasterEpochs) -> int:
    """The number of the last epoch; -1 without any, as RocketMQ reports it."""
    return epochs[-1].number if epochs else -1


def with_epoch(epochs: MasterEpochs, added: MasterEpoch) -> MasterEpochs:
    """The epochs with one more, which takes the place of those that begin where it does, or later:
    nothing was written in them."""
    if added in epochs:
        return epochs
    kept = (one for one in epochs if one.start < added.start and one.number < added.number)
    return (*kept, added)[-EPOCHS_MAX:]


def epochs_below(epochs: MasterEpochs, end: int) -> MasterEpochs:
    """The epochs of a log that was cut at `end`."""
    return tuple(one for one in epochs if one.start < end)


def epochs_from(epochs: MasterEpochs, begin: int) -> MasterEpochs:
    """The epochs of a log that begins at `begin`, because older segments were deleted."""
    gone = sum(following.start <= begin for following in epochs[1:])
    return epochs[gone:]


def epoch_at(epochs: MasterEpochs, offset: int) -> tuple[MasterEpoch | None, int | None]:
    """The epoch that an offset belongs to, and where that ends: None for the last one."""
    found, end = None, None
    for one in epochs:
        if one.start > offset:
            end = one.start
            break
        found = one
    return found, end if found is not None else None


def common_point(
    ours: MasterEpochs, our_end: int, theirs: MasterEpochs, their_end: int
) -> int | None:
    """Up to which offset two logs are the same; None where they have no epoch in common."""
    known = dict(theirs)
    for one in reversed(ours):
        if known.get(one.number) == one.start:
            return min(_end_of(one, ours, our_end), _end_of(one, theirs, their_end))
    return None


def _end_of(epoch: MasterEpoch, epochs: MasterEpochs, end: int) -> int:
    after = [one.start for one in epochs if one.number > epoch.number]
    return min(after, default=end)


def encode_epochs(epochs: MasterEpochs) -> bytes:
    """The file."""
    lines = "".join(f"{one.number}-{one.start}\n" for one in epochs)
    return f"{len(epochs)}\n{crc32(lines.encode()) & _CRC_MASK}\n{lines}".encode()


def parse_epochs(text: str) -> MasterEpochs:
    """Reads the file. Raises BadRequest for anything else."""
    lines = text.splitlines()
    body = "".join(f"{line}\n" for line in lines[_HEAD_LINES:])
    try:
        count, checksum = (int(line) for line in lines[:_HEAD_LINES])
        found = tuple(_epoch(line) for line in lines[_HEAD_LINES:])
    except ValueError as error:
        raise BadRequest(f"it makes no sense ({error})") from None
    # RocketMQ does not look at a checksum of 0.
    if checksum not in (0, crc32(body.encode()) & _CRC_MASK):
        raise BadRequest("its checksum is wrong")
    if count != len(found) or list(found) != sorted(found):
        raise BadRequest(f"{count} epochs were written, and these are there: {found}")
    return found


def _epoch(line: str) -> MasterEpoch:
    number, _, start = line.partition("-")
    return MasterEpoch(int(number), int(start))
