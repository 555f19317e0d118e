"""Control characters of messages, and of what a node says: no command hands one to a terminal."""

import io
import json
import logging
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keelog
from keelog.cli.failures import unforeseen
from keelog.cli.main import run
from keelog.cli.output import FORMATS, Output
from keelog.cli.shapes import body_shape
from node.runtime.event_log import JsonLines, TextLines, fields
from node.runtime.process import print_error
from protocol.errors import MqError
from tests.support.lying_node import LyingNode, lying_node, truthful_status

CONTROLS = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
LINES = {ord("\n"), ord("\t")}
ODD = st.sampled_from([chr(code) for code in sorted(CONTROLS)])
TEXT = st.text(st.one_of(ODD, st.characters(exclude_categories=["Cs"])), min_size=1, max_size=20)
ALL = "".join(map(chr, sorted(CONTROLS)))
ASKING = (
    ("status",),
    ("health",),
    ("topic", "ls"),
    ("topic", "describe", "orders"),
    ("top", "--once", "--interval", "0.05"),
    ("consume", "orders", "-e"),
    ("msg", "find", "--topic", "orders", "--key", "k"),
    ("produce", "orders"),
)


@pytest.fixture(scope="module")
def liar() -> Iterator[LyingNode]:
    with lying_node() as node:
        yield node


class Said:
    """What a command wrote, as text."""

    def __init__(self, words: tuple[str, ...]) -> None:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
        with mock.patch.multiple(sys, stdout=out, stderr=err, stdin=io.StringIO("x\n")):
            try:
                self.code = run(words)
            except Exception:  # noqa: BLE001  (as the console script: the hook shows it)
                unforeseen(sys.__excepthook__, lambda: True)(*sys.exc_info())
            out.flush()
            err.flush()
            self.out, self.err = (one.buffer.getvalue().decode() for one in (out, err))

    def assert_clean(self) -> None:
        for text in (self.out, self.err):
            assert not {ord(sign) for sign in text} & CONTROLS - LINES, text


@given(TEXT, st.sampled_from(ASKING), st.sampled_from(FORMATS), st.booleans())
def test_whatever_a_node_says_no_control_character_is_shown(
    liar: LyingNode, word: str, words: tuple[str, ...], format: str, refuses: bool
) -> None:
    liar.status = truthful_status(word)
    liar.checks = [{"name": word, "ok": False, "detail": word, "needed": True}]
    liar.topics = [word, "orders"]
    liar.writer_error = {"name": word, "code": 1, "message": word, "hint": word}
    operations = ("status", "topics", "offsets", "find", "routes") if refuses else ()
    liar.refuse = {op: [MqError(word, word)] * 3 for op in operations}
    formats = ("--format", format) if words[0] != "produce" else ()
    Said((*words, "--node", liar.url, *formats)).assert_clean()


@pytest.mark.parametrize("words", ASKING[:6], ids=" ".join)
def test_what_a_node_says_is_shown_escaped(liar: LyingNode, words: tuple[str, ...]) -> None:
    word = "\x1b[31m\x9b\u202e"
    liar.status = truthful_status(word)
    liar.checks = [{"name": word, "ok": False, "detail": word, "needed": True}]
    liar.topics = [word, "orders"]
    liar.refuse = {"offsets": [MqError(word, word)] * 3}
    said = Said((*words, "--node", liar.url))
    said.assert_clean()
    assert "\\u001b[31m\\u009b\\u202e" in said.out + said.err


@pytest.fixture(scope="module")
def honest() -> Iterator[LyingNode]:
    with lying_node() as node:
        node.topics = ["orders"]
        yield node


@given(TEXT, TEXT, TEXT, TEXT, TEXT)
def test_whatever_a_message_holds_it_is_shown_escaped_and_equal_when_parsed(
    honest: LyingNode, body: str, key: str, tag: str, name: str, value: str
) -> None:
    honest.memory.records.clear()
    honest.memory.queues.clear()
    with keelog.connect(honest.url) as client:
        sent = {"keys": key, "tags": tag, "properties": {name: value}}
        for parts in (sent, {"tags": tag}, {"keys": key}, {"properties": {name: value}}, {}):
            with suppress(MqError):  # a text that no property can hold
                client.send("orders", body.encode(), queue_id=0, **parts)
    parsed = []
    for format in FORMATS:
        said = Said(("consume", "orders", "-e", "--node", honest.url, "--format", format))
        said.assert_clean()
        if format == "json":
            parsed.append(json.loads(said.out))
        elif format == "jsonl":
            parsed.append([json.loads(line) for line in said.out.split("\n")[:-1]])
    assert parsed[0] == parsed[1]
    assert parsed[0]
    shape = body_shape(body.encode())
    assert all(shape.items() <= row.items() for row in parsed[0])


def test_a_format_string_writes_bytes_as_they_are_but_for_json(honest: LyingNode) -> None:
    honest.memory.records.clear()
    honest.memory.queues.clear()
    with keelog.connect(honest.url) as client:
        client.send("orders", "\x1b[31m\x9b".encode(), queue_id=0)
    said = Said(("consume", "orders", "-e", "--node", honest.url, "-f", "%v %v{json}"))
    assert said.out == '\x1b[31m\x9b "\\u001b[31m\\u009b"'


@given(TEXT, TEXT)
def test_a_table_on_a_terminal_holds_no_control_character_of_its_data(head: str, cell: str) -> None:
    stream = io.BytesIO()
    output = Output("table", stream)
    with mock.patch.object(Output, "is_terminal", True), mock.patch.dict(os.environ, TERM="dumb"):
        output.rows([{head: cell}])
    with mock.patch.object(Output, "is_terminal", True), mock.patch.dict(os.environ, TERM="xterm"):
        output.rows([{head: cell}])
        output.document({head: cell}, title=cell)
    shown = {ord(sign) for sign in stream.getvalue().decode()}
    assert not shown & CONTROLS - LINES


@pytest.mark.parametrize("kind", [JsonLines, TextLines])
@given(text=TEXT)
def test_a_log_line_is_one_line_without_control_characters(
    kind: type[JsonLines | TextLines], text: str
) -> None:
    record = logging.LogRecord("keelog.x", logging.WARNING, __file__, 1, "%s", (text,), None)
    vars(record).update(fields(why=text, other=f" {text}"))
    line = kind("writer").format(record)
    assert not {ord(sign) for sign in line} & CONTROLS
    if kind is JsonLines:
        assert json.loads(line)["why"] == text


@pytest.mark.parametrize("kind", [JsonLines, TextLines])
def test_a_traceback_in_the_log_holds_none(kind: type[JsonLines | TextLines]) -> None:
    found = (RuntimeError, RuntimeError(ALL), None)
    record = logging.LogRecord("keelog.x", logging.ERROR, __file__, 1, "it ends", (), found)
    assert not {ord(sign) for sign in kind("writer").format(record)} & CONTROLS - LINES


def test_the_three_lines_of_a_process_that_ends_hold_none(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print_error(ALL, MqError(ALL, ALL))
    text = capfd.readouterr().err
    assert text.count("\n") == 3
    assert not {ord(sign) for sign in text.replace("\n", "")} & CONTROLS


def test_the_screen_of_top_shows_none(liar: LyingNode) -> None:
    liar.refuse = {}
    liar.status = {**truthful_status("\x1b]0;pwned\x07\x9b31m"), "ready": True}
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "keelog", "top", "--node", liar.url])
    shown = b""
    try:
        while b"pwned" not in shown:
            shown += os.read(terminal, 65536)
        os.write(terminal, b"q")
        with suppress(OSError):
            while part := os.read(terminal, 65536):
                shown += part
    finally:
        os.waitpid(pid, 0)
        os.close(terminal)
    assert b"\\u001b]0;pwned\\u0007" in shown
    assert b"\x1b]0;" not in shown
    assert b"\xc2\x9b" not in shown
