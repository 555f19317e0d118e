"""How far a long command is: a line that moves, or plain lines, and what they say."""

import io
import os
import re
from pathlib import Path

import pytest

from keelog.cli.main import run
from keelog.cli.messages.produce import input_meter
from keelog.text import CommandProgress, duration_text, progress_line, size_text, status_line
from tests.cli.tree import leaves
from tests.support.golden import GetStore

GIB = 1 << 30
LONG = {
    *("produce", "consume", "store dump", "store verify", "store repair", "store rebuild"),
    *("store backup", "store restore"),
    *("export", "store export"),
}


class Terminal(io.StringIO):
    """A stream that says that a person looks."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("done", "elapsed_s", "line"),
    [
        (0, 9.0, "checked 0% (0 B of 4.0 GiB)"),
        (GIB, 0.5, "checked 25% (1.0 GiB of 4.0 GiB)"),
        (GIB, 10.0, "checked 25% (1.0 GiB of 4.0 GiB), about 30 s left"),
        (4 * GIB, 10.0, "checked 100% (4.0 GiB of 4.0 GiB), about 0 s left"),
    ],
)
def test_a_line_says_how_far_how_much_and_how_long_yet(
    done: int, elapsed_s: float, line: str
) -> None:
    assert progress_line("checked", done, 4 * GIB, "bytes", elapsed_s) == line


def test_nothing_to_do_is_no_division_by_zero() -> None:
    assert progress_line("done", 0, 0, "parts", 5.0) == "done 0% (0 of 0 parts)"
    assert progress_line("done", 3, 0, "parts", 6.0).startswith("done 100% (3 of 0 parts)")


def test_durations_and_sizes_are_for_people() -> None:
    assert [duration_text(s) for s in (0.4, 59, 200, 7500)] == [
        "0 s",
        "59 s",
        "3 m 20 s",
        "2 h 5 m",
    ]
    assert [size_text(n) for n in (None, 7, 3 << 10, 5 << 40)] == ["", "7 B", "3.0 KiB", "5.0 TiB"]


def test_a_log_gets_a_plain_line_each_five_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = CommandProgress(stream=stream, clock=clock)
    with progress.shown():
        advance = progress.meter("checked", "parts")
        for second in range(1, 13):
            clock.now += 1
            advance(second, 20)
    assert stream.getvalue() == (
        "checked 25% (5 of 20 parts), about 15 s left\n"
        "checked 50% (10 of 20 parts), about 10 s left\n"
    )


CONTROL = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen(written: str) -> list[str]:
    """The lines that a terminal shows after this, those without text left out."""
    lines, row, column = [""], 0, 0
    for number, command, moved, text in CONTROL.findall(written):
        if text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        elif moved == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
            column = 0
        elif moved == "\r":
            column = 0
        elif command == "A":
            row -= int(number or 1)
        elif command == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        else:
            assert command in "mhl", f"{number}{command}: colours, and the cursor's sight"
    return [line for line in lines if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_a_terminal_gets_one_line_that_is_gone_after_the_work(terminal: Terminal) -> None:
    clock, seen = Clock(), []
    progress = CommandProgress(stream=terminal, clock=clock)
    with pytest.raises(OSError, match="full"), progress.shown():
        advance = progress.meter("checked", "parts")
        for part in range(1, 4):
            clock.now += 0.5
            advance(part, 4)
            seen.append(screen(terminal.getvalue()))
            written = terminal.getvalue()
            assert written.rindex("?25h") > written.rindex("?25l"), "the cursor can be seen"
        raise OSError("full")
    assert [len(lines) for lines in seen] == [1, 1, 1]
    assert "checked 25% (1 of 4 parts)" in seen[0][0]
    assert "checked 75% (3 of 4 parts), about 0 s left" in seen[2][0]
    assert seen[0][0].startswith("━"), "a bar"
    assert screen(terminal.getvalue()) == [], "the line is cleared, also by an error"


def test_a_line_that_was_cleared_comes_back_below_what_was_written(terminal: Terminal) -> None:
    clock = Clock()
    progress = CommandProgress(stream=terminal, clock=clock)
    with progress.shown():
        advance = progress.meter("dumped", "queues")
        clock.now += 1
        advance(1, 4)
        progress.clear()
        terminal.write("damage: here\n")
        clock.now += 1
        advance(2, 4)
        first, second = screen(terminal.getvalue())
        assert first == "damage: here"
        assert "dumped 50% (2 of 4 queues), about 2 s left" in second
    assert screen(terminal.getvalue()) == ["damage: here"]


def test_a_terminal_is_not_written_to_at_each_step(terminal: Terminal) -> None:
    clock = Clock()
    advance = (progress := CommandProgress(stream=terminal, clock=clock)).meter("checked")
    with progress.shown():
        for _ in range(3):
            clock.now += 0.06
            advance(1, 2)
        assert terminal.getvalue() == ""
        clock.now += 0.06
        advance(1, 2)
        assert terminal.getvalue() != ""


def test_the_bar_has_no_colours(terminal: Terminal) -> None:
    clock = Clock()
    with (progress := CommandProgress(stream=terminal, clock=clock)).shown():
        advance = progress.meter("checked")
        clock.now += 1
        advance(1, 2)
    assert "checked" in terminal.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", terminal.getvalue())


def test_phases_of_a_load_move_below_the_lines_that_stay(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", terminal)
    with status_line() as (show, print_line):
        show("warming up")
        print_line("   1 s | sent 5k/s")
    assert screen(terminal.getvalue()) == ["   1 s | sent 5k/s"]


def test_phases_are_plain_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with status_line() as (show, print_line):
        show("warming up")
        print_line("   1 s | sent 5k/s")
    assert capsys.readouterr().err == "warming up\n   1 s | sent 5k/s\n"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream, clock = Terminal(), Clock()
    advance = CommandProgress(stream=stream, clock=clock).meter("checked")
    clock.now += 5
    advance(1, 2)
    assert stream.getvalue().endswith("left\n")
    assert "\x1b" not in stream.getvalue()


def test_a_file_that_is_sent_has_an_end_and_a_pipe_has_none(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), Clock()
    progress = CommandProgress(stream=stream, clock=clock)
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 100)
    with file.open("rb", buffering=0) as source:
        advance = input_meter(progress, source.fileno())
        source.read(25)
        clock.now += 5
        advance()
    assert stream.getvalue() == "sent 25% (25 B of 100 B), about 15 s left\n"
    reading, writing = os.pipe()
    clock.now += 5
    input_meter(progress, reading)()
    os.close(reading)
    os.close(writing)
    assert stream.getvalue().count("\n") == 1


def test_who_wants_no_progress_gets_none() -> None:
    stream, clock = io.StringIO(), Clock()
    advance = CommandProgress(True, stream, clock).meter("checked")
    clock.now += 60
    advance(1, 2)
    assert stream.getvalue() == ""


def test_every_long_command_shows_progress_and_can_be_told_not_to() -> None:
    with_option = {
        path
        for path, one in leaves().items()
        if any("--no-progress" in param.opts for param in one.params)
    }
    assert with_option == LONG


def test_long_commands_tell_while_they_walk_and_the_data_stays_the_same(
    golden_copy: GetStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("keelog.text.LINE_EVERY_S", 0.0)
    store = str(golden_copy("small-clean"))

    def talk(*words: str) -> str:
        capsys.readouterr()
        assert run(["store", *words]) == 0, words
        loud = capsys.readouterr()
        return loud.err

    assert "checked " in talk("verify", store, "--deep")
    assert "checked " in talk("repair", store)
    assert "dumped " in talk("dump", store, "--limit", "5000")
    assert "queues)" in talk("dump", store, "--what", "queues")
    assert "index files)" in talk("dump", store, "--what", "index")
    assert "exported " in talk("export", store, "--sqlite", str(tmp_path / "x.db"))
    assert "queues: done " in talk("rebuild", store)
    assert "checked" not in talk("verify", store, "--no-progress")
