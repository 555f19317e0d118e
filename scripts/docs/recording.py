"""Makes docs/recording.svg, the picture of README.md: a terminal in which a node is tried.

`python -m scripts.docs.recording` runs the commands on a new node, at a terminal, and writes what
came and when as an asciinema cast (version 2), docs/figures/recording.cast; the picture is drawn
from that file alone. `--render` only draws it again.
"""

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
CAST, PICTURE = DOCS / "figures" / "recording.cast", DOCS / "recording.svg"
COMMANDS = (
    "keelog serve ./store &",
    "keelog produce orders 'three apples' --key order-17 --tags fruit",
    "keelog consume orders -e -f '%t %o %k %v\\n'",
    "keelog msg find --topic orders --key order-17",
    "keelog status",
    "keelog store export ./store --sqlite orders.db",
    "keelog store verify ./store --deep",
)
PROMPT = "$ "
COLUMNS, ROWS_MAX = 110, 40
_SMALL = {"KEELOG_STORE__MAPPED_FILE_SIZE_COMMIT_LOG": str(16 << 20)}
"""A segment takes its disk space at once."""
_TYPED_S, _PAUSE_S, _REST_S_MAX = 0.035, 0.9, 2.5
"""For a key, before a command, and the longest that the picture waits for an answer."""
_END_S_MAX = 60.0
_STYLED = re.compile(r"\x1b\[[0-9;]*m")
"""Bold and its end: the picture has one weight."""
_WORDS = re.compile(r"\S+(?: \S+)*")
"""The words of one element of the picture: programs disagree on wider gaps."""
_CHAR_PX, _LINE_PX, _EDGE_PX = 7.83, 18, 16
_STYLE = """\
text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d6dde6}
.p{fill:#7fd18b}
.t{animation:t 1ms backwards}
@keyframes t{from{visibility:hidden}to{visibility:visible}}
@media(prefers-reduced-motion){.t{animation:none}}"""
"""A viewer without animations shows all: only text that waits for its time is hidden."""


class Event(NamedTuple):
    """A text that a terminal gets, and the time."""

    at_s: float
    text: str


class Piece(NamedTuple):
    """A part of one line that appears at once."""

    row: int
    column: int
    text: str
    at_s: float


def main() -> int:
    """Writes both files, or with --render the picture alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true", help="draws the saved cast again")
    if not parser.parse_args().render:
        with tempfile.TemporaryDirectory(prefix="keelog-") as folder:
            CAST.write_text(as_cast(record(Path(folder))), encoding="utf-8")
    PICTURE.write_text(draw(from_cast(CAST.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PICTURE} written")
    return 0


def record(folder: Path) -> list[Event]:
    """Runs the commands, one after the other, and types them as somebody would."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KEELOG_")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    environment = {**kept, **_SMALL, "PATH": path, "TERM": "xterm", "NO_COLOR": "1"}
    environment["COLUMNS"] = str(COLUMNS)
    events: list[Event] = []
    clock = 0.0
    left: list[subprocess.Popen[bytes]] = []
    try:
        for command in COMMANDS:
            events.append(Event(clock, PROMPT))
            clock += _PAUSE_S
            for sign in command:
                clock += _TYPED_S
                events.append(Event(clock, sign))
            events.append(Event(clock, "\r\n"))
            for after_s, text in _answer(command, folder, environment, left):
                events.append(Event(clock + min(after_s, _REST_S_MAX), text))
            clock = events[-1].at_s + 0.3
    finally:
        for process in left:
            process.send_signal(signal.SIGTERM)
            process.wait(_END_S_MAX)
    return events


def _answer(
    command: str, folder: Path, environment: Mapping[str, str],
    left: list[subprocess.Popen[bytes]],
) -> Iterator[tuple[float, str]]:  # fmt: skip
    """Yields what a command prints at a terminal; one with `&` is left running once it is ready."""
    is_left = command.endswith("&")
    outer, inner = pty.openpty()
    begun = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command.rstrip(' &')}" if is_left else command],
        cwd=folder, env=environment, stdout=inner, stderr=inner,
    )  # fmt: skip
    os.close(inner)
    printed = ""
    # Linux says EIO when nobody has the terminal open any more.
    with suppress(OSError):
        while data := os.read(outer, 65_536):
            # The folder exists while this runs; a reader's would have another name.
            text = data.decode().replace(str(folder), "~")
            printed += text
            yield time.monotonic() - begun, text
            if is_left and "\nready " in f"\n{printed}" and printed.endswith("\n"):
                left.append(process)
                return
    os.close(outer)
    if process.wait(_END_S_MAX):
        raise SystemExit(f"{command} ended with {process.returncode}:\n{printed}")


def as_cast(events: list[Event]) -> str:
    """The events as asciinema's file: a line of JSON for the head and for each event."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS_MAX, "title": "Keelog"}
    rows = [[round(event.at_s, 3), "o", event.text] for event in events]
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in [head, *rows])


def from_cast(text: str) -> list[Event]:
    """The events of such a file."""
    _head, *rows = map(json.loads, text.splitlines())
    return [Event(at_s, written) for at_s, _kind, written in rows]


def pieces(events: list[Event]) -> list[Piece]:
    """The place of each text on the screen: lines are wrapped as a terminal does."""
    found: list[Piece] = []
    row = column = 0
    for at_s, text in events:
        for part in _STYLED.sub("", text).replace("\r\n", "\n").splitlines(keepends=True):
            line = part.rstrip("\n")
            while line:
                if column == COLUMNS:
                    row, column = row + 1, 0
                fits = line[: COLUMNS - column]
                found.append(Piece(row, column, fits, at_s))
                column, line = column + len(fits), line[len(fits) :]
            if part.endswith("\n"):
                row, column = row + 1, 0
    return found


def draw(events: list[Event]) -> str:
    """The picture: each piece at its place, shown at its time."""
    shown = pieces(events)
    rows = max(piece.row for piece in shown) + 1
    wide, high = round(COLUMNS * _CHAR_PX + 2 * _EDGE_PX), rows * _LINE_PX + 2 * _EDGE_PX
    texts = "\n".join(
        _text(Piece(piece.row, piece.column + words.start(), words[0], piece.at_s))
        for piece in shown
        for words in _WORDS.finditer(piece.text)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"'
        f' width="{wide}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="{wide}" height="{high}" rx="8" fill="#161b22"/>\n{texts}\n</svg>\n'
    )


def _text(piece: Piece) -> str:
    x = round(_EDGE_PX + piece.column * _CHAR_PX, 1)
    y = _EDGE_PX + (piece.row + 1) * _LINE_PX - 5
    kind = "t p" if piece.text == PROMPT.strip() and not piece.column else "t"
    # The width is given, so that columns stand below each other in any font.
    length = round(len(piece.text) * _CHAR_PX, 1)
    return (
        f'<text class="{kind}" x="{x}" y="{y}" textLength="{length}"'
        f' style="animation-delay:{piece.at_s:.2f}s">{escape(piece.text)}</text>'
    )


if __name__ == "__main__":
    raise SystemExit(main())
