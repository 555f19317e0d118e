"""Broken, cut and lying frames at a gateway: they cost their connection, and nobody else's."""

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader
from tests.protocol.remoting.golden_frames import golden_frames
from tests.support.node import RunningNode
from tests.support.remoting import ANSWER_S, REMOTING, RemotingPeer, remoting_place, send_fields

MIB = 1024 * 1024
FRAMES_OF_A_CONNECTION = 20
FRAMES_AT_ONCE = 20_000
"""Then who sends good frames has a turn: a silent connection is ended after 120 s."""
CODES = (*map(int, RequestCode), -1, 0, 2**31 - 1)
VALUES = ("", "0", "-1", "9" * 30, "x", "true", "\x01\x02", "%RETRY%g", "a" * 300, "TBW102")


def requests() -> list[bytes]:
    """The frames that real clients sent."""
    return [frame.data for frame in golden_frames() if frame.answers is None]


def mutations(frames: list[bytes], rnd: random.Random) -> Iterator[bytes]:
    """Without end: frames that are cut, flipped, lie about their lengths, or ask for odd things."""
    while True:
        data = bytearray(rnd.choice(frames))
        kind = rnd.randrange(6)
        if kind == 0:
            for _ in range(rnd.randint(1, 8)):
                data[rnd.randrange(len(data))] = rnd.randrange(256)
        elif kind == 1:
            del data[rnd.randrange(len(data)) :]
        elif kind == 2:
            struct.pack_into(
                ">i", data, 4 * rnd.randrange(2), rnd.choice((0, -1, 7, 2**24, 2**31 - 1))
            )
        elif kind == 3:
            data = odd_request(bytes(data), rnd)
        elif kind == 4:
            body = rnd.randbytes(rnd.randrange(200))
            data += body
            struct.pack_into(">i", data, 0, len(data) - 4)
        yield bytes(data)


def odd_request(data: bytes, rnd: random.Random) -> bytearray:
    """The same request with another code, or other values in some fields."""
    reader = FrameReader(len(data) + 1)
    reader.room()[: len(data)] = data
    ((header, body),) = reader.received(len(data))
    ext = {name: rnd.choice((value, rnd.choice(VALUES))) for name, value in header.ext.items()}
    for name in rnd.sample(sorted(ext), min(len(ext), rnd.randrange(3))):
        del ext[name]
    code = rnd.choice((header.code, header.code, rnd.choice(CODES)))
    odd: RemotingHeader = header._replace(code=code, ext=ext)

    return bytearray(frame_head(odd, len(body)) + bytes(body))


def throw(place: tuple[str, int], count: int, seed: int) -> int:
    """Sends `count` of them over many connections; returns how many of those were ended."""
    rnd, ended, left = random.Random(seed), 0, count
    frames = mutations(requests(), rnd)
    while left:
        now = min(left, rnd.randint(1, FRAMES_OF_A_CONNECTION))
        left -= now
        with closing(socket.create_connection(place, timeout=ANSWER_S)) as one:
            try:
                for _ in range(now):
                    one.sendall(next(frames))
                one.shutdown(socket.SHUT_WR)
                while one.recv(1 << 16):
                    pass  # to the end: what is closed with unread replies is lost on its way
            except OSError as error:
                assert not isinstance(error, TimeoutError), "the gateway takes nothing"
                ended += 1
    return ended


def check_fuzzed(root: Path, count: int, seed: int) -> None:
    with RunningNode(root, (REMOTING,), queue_workers=1, readers=1) as node:
        place = remoting_place(node.stderr)
        with closing(RemotingPeer(place)) as friend:
            assert friend.ask(310, send_fields("safe", i="KEYS\x01k\x02"), b"before").code == 0
            throw(place, count // 10, seed + 1)
            (gateway,) = node.pids()["gateway"]
            before = psutil.Process(gateway).memory_info().rss
            for thrown in range(0, count, FRAMES_AT_ONCE):
                throw(place, min(FRAMES_AT_ONCE, count - thrown), seed + thrown)
                answered = friend.ask(310, send_fields("safe"), b"after")
                assert answered.code == ResponseCode.SUCCESS, answered.header.remark
            grown = psutil.Process(gateway).memory_info().rss - before
            assert grown < 64 * MIB, f"it has grown by {grown / MIB:.0f} MiB"
        assert node.pids()["gateway"] == [gateway], "it was started again"
        assert "Traceback" not in node.stderr
        assert [m.body for m in node.client.pull("safe", 0, 0, wait=5).messages][:1] == [b"before"]


@pytest.mark.process
def test_broken_frames_harm_nobody(tmp_path: Path) -> None:
    check_fuzzed(tmp_path / "store", 2_000, seed=1)


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_hundred_thousand_broken_frames_harm_nobody_and_take_no_memory(tmp_path: Path) -> None:
    check_fuzzed(tmp_path / "store", 100_000, seed=2)


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_million_broken_frames_harm_nobody_and_take_no_memory(tmp_path: Path) -> None:
    check_fuzzed(tmp_path / "store", 1_000_000, seed=3)
