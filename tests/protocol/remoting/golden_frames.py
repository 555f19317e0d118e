"""Frames of RocketMQ 5.5.0 (tests/golden/README.md), and what feeds a reader in pieces."""

import base64
import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from protocol.remoting.frame_reader import FrameReader
from protocol.remoting.headers import RemotingHeader
from tests.support.golden import FOLDER


class GoldenFrame(NamedTuple):
    """One frame, and the code of the request that it answers."""

    server: str
    sender: str
    answers: int | None
    data: bytes


class ReadFrame(NamedTuple):
    """A frame whose body outlives the reader's buffer."""

    header: RemotingHeader
    body: bytes


@cache
def golden_frames() -> Sequence[GoldenFrame]:
    lines = (FOLDER / "remoting" / "frames.jsonl").read_text().splitlines()
    rows = map(json.loads, lines)
    return [
        GoldenFrame(row["server"], row["from"], row["answers"], base64.b64decode(row["frame"]))
        for row in rows
    ]


def read_all(
    data: bytes, cuts: Sequence[int] = (1 << 30,), reader: FrameReader | None = None
) -> Iterable[ReadFrame]:
    """The frames of some bytes that come in pieces of these sizes, in turn."""
    reader = FrameReader() if reader is None else reader
    at = turn = 0
    while at < len(data):
        room = reader.room()
        assert len(room), "no room is no progress"
        size = min(len(room), cuts[turn % len(cuts)], len(data) - at)
        room[:size] = data[at : at + size]
        at, turn = at + size, turn + 1
        for header, body in reader.received(size):
            yield ReadFrame(header, bytes(body))


def read_one(data: bytes) -> ReadFrame:
    (frame,) = read_all(data)
    return frame
