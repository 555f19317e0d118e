"""What README.md shows is what happens: its commands and programs run against a real node.

Numbers, ids and the width of columns may differ; `…` stands for anything, as a line for any lines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keelog.cli.settings_meanings import MEANINGS
from node.store.event_log import FORMAT_VARIABLE
from node.store.settings import Settings
from scripts.make_settings_table import PAGE, render
from tests.support.node import RunningNode

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND_S = 60
STAND_INS = {
    "make demo": "keelog demo --format table --no-spark",  # Spark has a test of its own
    "make test": "true",  # is what runs this test
}
SERVE = "keelog serve ./store"
"""The node that stands for it is started by the fixture, with small files, on free ports."""
SMALL = (
    "store.mapped_file_size_commit_log=1048576",
    "store.max_hash_slot_num=1000",
    "store.max_index_num=4000",
)


class Step(NamedTuple):
    """A command of the page, or a program in Python, and what it prints."""

    line: int
    command: str
    is_python: bool
    expected: str


def steps(text: str) -> Iterator[Step]:
    """Every `console` command and every `python` program; what it prints is the `text` block."""
    blocks = list(BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        line = text.count("\n", 0, block.start()) + 1
        if block[1] == "python":
            prints = following is not None and following[1] == "text"
            yield Step(line, block[2], True, following[2] if prints and following else "")
        elif block[1] == "console":
            for part in re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                yield Step(line, command, False, expected)


def shape(text: str) -> str:
    """What must agree: without numbers, ids, ports and widths."""
    text = re.sub(r"\b[0-9A-F]{32}\b", "ID", text)
    text = re.sub(r"\d+(\.\d+)?", "#", text)
    lines = (re.sub(r" {2,}", "  ", line).rstrip() for line in text.splitlines())
    return "\n".join(lines).strip()


def agrees(expected: str, actual: str) -> bool:
    lines = shape(expected).split("\n")
    pattern = "\n".join("(?s:.*)" if line == "…" else re.escape(line) for line in lines)
    pattern = pattern.replace("…", ".*")
    return re.fullmatch(pattern, shape(actual)) is not None


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("readme")
    # On the terminal that the page speaks of, the log is text.
    text = {FORMAT_VARIABLE: "text"}
    with RunningNode(folder / "store", SMALL, readers=1, queue_workers=1, env=text) as running:
        yield running


def run(step: Step, node: RunningNode) -> str:
    """What the step prints, stderr included."""
    command = STAND_INS.get(step.command, step.command)
    if command.startswith("keelog serve"):
        # The page names the node's default port; the node here has another.
        command = command.replace("tcp://127.0.0.1:9870", node.endpoint)
    words = [sys.executable, "-c", command] if step.is_python else ["bash", "-c", command]
    done = subprocess.run(
        words,
        cwd=node.root.parent,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KEELOG_NODE": node.endpoint,
            "COLUMNS": "80",
            "TMPDIR": str(node.root.parent),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    return done.stdout


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("readme")
def test_everything_that_the_readme_shows_happens(node: RunningNode) -> None:
    wrong = []
    for step in steps(PAGE.read_text(encoding="utf-8")):
        actual = node.stderr if step.command == SERVE else run(step, node)
        if not agrees(step.expected, actual):
            wrong.append(f"line {step.line}: {step.command}\nshown:\n{step.expected}\n{actual}")
    assert not wrong, "\n\n".join(wrong)


def test_the_readme_has_programs_and_commands() -> None:
    found = list(steps(PAGE.read_text(encoding="utf-8")))
    assert any(step.is_python and step.expected for step in found)
    assert {step.command for step in found} > {SERVE, *STAND_INS}


def test_the_settings_table_is_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- generated: settings -->") == 1
    assert render(text) == text, "stale: python -m scripts.make_settings_table"


def test_every_setting_has_a_meaning_and_no_meaning_is_left_over() -> None:
    assert list(MEANINGS) == list(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("msg_id 7F0000010000268E0000000000000000, 34.0 MiB", "msg_id " + "0" * 32 + ", 7 MiB"),
        ("name     pid\nwriter  12", "name  pid\nwriter    3  \n"),
        ("…/store/lock is held", "/tmp/x/store/lock is held"),
        ("…\nlast 1\n…", "first\nsecond\nlast 2\nbye"),
    ],
)
def test_numbers_ids_and_widths_may_differ(expected: str, actual: str) -> None:
    assert agrees(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [("error: no", "error: yes"), ("one", "one\ntwo"), ("…/lock is held", "/a\n/lock is held")],
)
def test_words_and_lines_may_not_differ(expected: str, actual: str) -> None:
    assert not agrees(expected, actual)
