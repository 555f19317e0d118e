"""Lines for a reader who does not read: they go at once or not at all, and nobody waits."""

import fcntl
import os
import pty
import socket
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from node.runtime.event_log import LineOutput

LINE = "x" * 99 + "\n"
_AT_ONCE_S = 5.0
"""Far more than a call takes that does not wait, far less than for ever."""


class Reader:
    """The other end of a descriptor."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing

    def stop(self) -> None:
        """As Ctrl-S at a terminal."""
        if os.isatty(self.writing):
            termios.tcflow(self.writing, termios.TCOOFF)

    def go_on(self) -> None:
        """As Ctrl-Q."""
        if os.isatty(self.writing):
            termios.tcflow(self.writing, termios.TCOON)

    def read(self) -> bytes:
        os.set_blocking(self.reading, False)
        found = b""
        with suppress(BlockingIOError):
            while data := os.read(self.reading, 1 << 16):
                found += data
        return found


@contextmanager
def pipe() -> Iterator[Reader]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield Reader(reading, writing)
    os.close(reading)
    os.close(writing)


@contextmanager
def terminal() -> Iterator[Reader]:
    reading, writing = pty.openpty()
    found = Reader(reading, writing)
    yield found
    found.go_on()
    os.close(reading)
    os.close(writing)


@contextmanager
def stream() -> Iterator[Reader]:
    """As the journal of systemd reads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield Reader(ours.fileno(), theirs.fileno())


READERS: dict[str, Any] = {"pipe": pipe, "terminal": terminal, "socket": stream}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    with READERS[request.param]() as found:
        yield found


@pytest.fixture(params=["beside", "without /proc"])
def output(
    request: pytest.FixtureRequest, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LineOutput]:
    """Once with a terminal or pipe that can be opened again, once with one that cannot."""
    if request.param != "beside":

        def refuse(*_: object) -> int:
            raise FileNotFoundError

        monkeypatch.setattr(os, "open", refuse)
    made = LineOutput(reader.writing)
    yield made
    made.close()


def fill(output: LineOutput, reader: Reader) -> int:
    """Writes until a line is dropped; returns how many went."""
    reader.stop()
    gone = 0
    while output.write(LINE):
        gone += 1
        assert gone < 100_000
    return gone


def test_a_line_that_does_not_go_at_once_is_dropped_and_counted(
    output: LineOutput, reader: Reader
) -> None:
    flags = fcntl.fcntl(reader.writing, fcntl.F_GETFL)
    began = time.monotonic()
    fill(output, reader)
    for _ in range(100):
        assert not output.write(LINE)
    assert output.dropped == 101
    assert time.monotonic() - began < _AT_ONCE_S
    # The descriptor is the shell's and other programs', too.
    assert fcntl.fcntl(reader.writing, fcntl.F_GETFL) == flags


def test_what_was_cut_short_swallows_nothing_of_the_next_line(reader: Reader) -> None:
    output = LineOutput(reader.writing)
    gone = fill(output, reader)
    output.write("y" * 200_000 + "\n")
    reader.go_on()
    whole = [line for line in reader.read().splitlines() if line == LINE.strip().encode()]
    assert len(whole) == gone
    assert output.write("next\n")
    assert reader.read().splitlines()[-1] == b"next"
    output.close()


def test_last_words_wait_for_a_reader_as_long_as_they_may(reader: Reader) -> None:
    output = LineOutput(reader.writing)
    fill(output, reader)
    began = time.monotonic()
    assert not output.write(LINE, 0.2)
    assert 0.2 <= time.monotonic() - began < _AT_ONCE_S
    output.close()


def test_a_file_takes_all(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = LineOutput(file.fileno())
        assert output.write("z" * 1_000_000 + "\n")
        output.close()
    assert (tmp_path / "log").stat().st_size == 1_000_001


def test_a_descriptor_that_is_closed_is_no_reason_to_end() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    assert not LineOutput(writing).write(LINE)
