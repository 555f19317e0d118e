"""The code that pages show: found, run, and held against what the page says it prints.

Numbers, ids and the width of columns may differ; `…` stands for anything, as a line for any lines.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple
from unittest.mock import patch

from keelog.cli.main import run as run_keelog

_MARK = re.compile(r"^(?P<fence> *```)(?P<language>\w*)$")
_COMMAND_S = 120
_ELSEWHERE = ("serve", "demo", "bench", "spark")
"""These start processes of their own, as from a shell."""
_ECHOED = re.compile(r"echo (?P<text>[^|]+) \| (?P<command>keelog .*)")
_FOR_A_SHELL = re.compile(r"[|&;<>`$(\n]")


class Block(NamedTuple):
    """Text set as code: fenced, with its language, or indented by four columns and more."""

    line: int
    language: str
    text: str
    is_fenced: bool

    @property
    def first(self) -> str:
        """Its first line, by which people know it."""
        return self.text.partition("\n")[0].strip()


class Step(NamedTuple):
    """A command of the page, or a program in Python, and what it prints."""

    line: int
    command: str
    is_python: bool
    expected: str


def blocks(text: str) -> Iterator[Block]:
    """Every block of code of a page, in order."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        found = _MARK.match(lines[at])
        begin = at
        if found:
            at = lines.index(found["fence"], at + 1)
            yield Block(begin + 1, found["language"], _joined(lines[begin + 1 : at]), True)
            at += 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield Block(begin + 1, "", _joined(lines[begin:at]).rstrip() + "\n", False)
        else:
            at += 1


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def steps(text: str) -> Iterator[Step]:
    """Every `console` command and every `python` program; what it prints is the `text` block."""
    found = [block for block in blocks(text) if block.is_fenced]
    for block, following in zip(found, [*found, None][1:], strict=True):
        if block.language == "python":
            prints = following is not None and following.language == "text"
            yield Step(block.line, block.text, True, following.text if prints and following else "")
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                yield Step(block.line, command, False, expected)


def shape(text: str) -> str:
    """What must agree: without numbers, ids, ports and widths."""
    text = re.sub(r"\b[0-9A-F]{32}\b", "ID", text)
    text = re.sub(r"\d+(\.\d+)?", "#", text)
    lines = (re.sub(r" {2,}", "  ", line).rstrip() for line in text.splitlines())
    return "\n".join(lines).strip()


def agrees(expected: str, actual: str) -> bool:
    """Whether this was printed, as far as the page says it."""
    lines = shape(expected).split("\n")
    pattern = "".join(r"(?s:\n.*)?" if line == "…" else rf"\n{re.escape(line)}" for line in lines)
    pattern = pattern.replace("…", ".*")
    return re.fullmatch(pattern, f"\n{shape(actual)}") is not None


def printed(command: str, folder: Path, variables: Mapping[str, str]) -> str:
    """What a command of a page prints in a folder, stderr included.

    A plain command of `keelog` runs in this process, also behind `echo … |`, which is quicker; all
    others in a shell.
    """
    echoed = _ECHOED.fullmatch(command)
    plain = echoed["command"] if echoed else command
    words = [] if _FOR_A_SHELL.search(plain) else shlex.split(plain)
    if words[:1] != ["keelog"] or words[1] in _ELSEWHERE:
        return in_a_shell(["bash", "-c", command], folder, variables)
    data = io.BytesIO()
    talk = io.TextIOWrapper(data, write_through=True)
    with (
        TemporaryFile("w+") as typed,
        chdir(folder),
        patch.dict(os.environ, variables),
        patch.object(sys, "argv", words),
        patch.object(sys, "stdin", typed),
        redirect_stdout(talk),
        redirect_stderr(talk),
    ):
        if echoed:
            typed.write(" ".join(shlex.split(echoed["text"])) + "\n")
            typed.seek(0)
        run_keelog(words[1:])
    return data.getvalue().decode()


def in_a_shell(words: list[str], folder: Path, variables: Mapping[str, str]) -> str:
    """The same, as a process that finds `keelog` on its PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PATH": path, **variables}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=_COMMAND_S, check=False,
    )  # fmt: skip
    return done.stdout
