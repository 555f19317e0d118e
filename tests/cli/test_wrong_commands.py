"""What somebody types wrong in the first hour: an exit code, a cause, and something to try."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from keelog.cli.main import run
from tests.support.node import RunningNode

Capture = pytest.CaptureFixture[str]

NOWHERE = "tcp://127.0.0.1:9"
STORE = "./running"
"""Stands for the directory of the node."""


class Wrong(NamedTuple):
    """A command, and what is to be said: exit code, a part of the cause, a part of the hint."""

    line: str
    code: int
    cause: str
    hint: str


WITHOUT_A_NODE = [
    Wrong("servee ./store", 2, "there is no command 'servee'", "keelog serve --help"),
    Wrong("sned", 2, "there is no command 'sned'", "keelog --help"),
    Wrong("start ./store", 2, "there is no command 'start'", "keelog serve --help"),
    Wrong("topic delete x", 2, "there is no command 'delete'", "keelog topic rm --help"),
    Wrong("topic list", 2, "there is no command 'list'", "keelog topic ls --help"),
    Wrong("topic ls -c prod", 2, "such option", "keelog -c NAME topic ls"),
    Wrong("consume orders --follow", 2, "--follow", "waits for more"),
    Wrong("consume orders --max-messages 5", 2, "--max-messages", "--count N"),
    Wrong("consume orders --offset 5", 2, "--offset", "--from 123"),
    Wrong(f"consume orders -n {10**20} -e", 2, "has more than 64 bits", "keelog consume --help"),
    Wrong(f"topic create t --queues {10**20}", 2, "more than 64 bits", "keelog topic create"),
    Wrong("store get . --topic t --queue 0 --offset 1 --max-bytes 4X", 2, "'4X'", "store get --"),
    Wrong("produce orders hello --file x", 2, "exclude each other", "keelog produce --help"),
    Wrong("consume orders --on-damage no", 2, "'skip', 'fail'", "keelog consume --help"),
    Wrong("topic creat x", 2, "there is no command 'creat'", "keelog topic create --help"),
    Wrong("serve", 2, "Missing argument 'DIR'", "keelog serve --help"),
    Wrong("serve ./file", 1, "is a file", "name a directory"),
    Wrong("serve ./new --bind 127.0.0.1", 2, "is not an address", "write tcp://127.0.0.1:7850"),
    Wrong(
        "serve ./new --bind tcp://127.0.0.1:99999", 2, "is not an address", "write tcp://127.0.0.1"
    ),
    Wrong("serve ./new --http 99999", 2, "is not an address", "write 7855 or"),
    Wrong(
        "serve ./new -X flush_disk_typ=x", 2, "'flush_disk_typ'", "did you mean flush_disk_type?"
    ),
    Wrong("serve ./new -X flush_disk_type=SYNC", 2, "is 'SYNC'", "use SYNC_FLUSH or ASYNC_FLUSH"),
    Wrong("serve ./new -X file_reserved_time=1d", 2, "is '1d'", "use a whole number"),
    Wrong("serve ./new -X flush_disk_type", 2, "sets nothing", "write name=value"),
    Wrong(
        "serve ./new --config nosuch.toml", 2, "'nosuch.toml' does not exist", "keelog serve --help"
    ),
    Wrong("serve ./new --queue-workers 0", 2, "outside [1, 64]", "keelog serve --help"),
    Wrong(
        "store verify ./nosuch", 1, "nosuch does not exist", "name the folder that holds commitlog/"
    ),
    Wrong("store info ./file", 1, "is a file", "name the folder that holds commitlog/"),
    Wrong("store dump .", 1, "holds no commitlog/", "name the folder that holds commitlog/"),
    Wrong("produce greetings -p novalue", 2, "'novalue' is no property", "write -p name=value"),
    Wrong("consume orders -e -o yesterday", 2, "'yesterday' is not a place", "keelog help places"),
    Wrong("consume orders -e -o @2026-13-45", 2, "'2026-13-45' is not a time", "2026-11-20T10:00"),
    Wrong("consume orders -e -f %z", 2, "'%z' is not known", "letters are t q o k"),
    Wrong("consume orders -e --format xml", 2, "'jsonl'", "keelog consume --help"),
    Wrong("consume orders --node localhost", 2, "is not an address", "write tcp://127.0.0.1:7850"),
    Wrong(f"consume orders -e --node {NOWHERE}", 4, "nobody answers", "keelog serve DIR"),
    Wrong(f"health --node {NOWHERE}", 4, "nobody answers", "keelog serve DIR"),
    Wrong(f"status --node {NOWHERE}", 4, "nobody answers", "keelog serve DIR"),
    Wrong("msg find --topic orders --key k --since never", 2, "'never' is not a time", "or -15m"),
    Wrong(
        "config check nosuch.toml", 2, "'nosuch.toml' does not exist", "keelog config check --help"
    ),
    Wrong("-c nosuch topic ls", 3, "there is no context 'nosuch'", "keelog context ls"),
    Wrong("bench send --body big", 2, "'big' is no size", "128, 1KiB or 4MB"),
    Wrong("help nosuch", 2, "topics are exit-codes", "keelog help --help"),
]
WITH_A_NODE = [
    Wrong("msg get 123", 2, "'123' is no message id", "32 or 56 hex digits"),
    Wrong("diag -o ./nosuch/a.zip", 1, "No such file or directory", "ls -ld nosuch"),
    Wrong("consume nosuch -e", 3, "there is no topic nosuch", "keelog topic ls"),
    Wrong(
        "consume typed-wrong -e --queue 9", 3, "has no queue 9", "keelog topic describe typed-wrong"
    ),
    Wrong("topic rm nosuch --yes", 3, "there is no topic nosuch", "keelog topic ls"),
    Wrong("topic rm typed-wrong", 2, "nobody can confirm it", "keelog topic rm typed-wrong --yes"),
    Wrong(
        "topic purge typed-wrong --before 3",
        2,
        "nobody can confirm it",
        "keelog topic purge typed-wrong --before 3 --yes",
    ),
    Wrong("topic purge typed-wrong --before -3 --yes", 2, "cannot purge to '-3'", "123"),
    Wrong("topic purge nosuch --before 3 --yes", 3, "nosuch does not exist", "keelog topic ls"),
    Wrong(
        "msg find --topic typed-wrong --key no", 3, "has the key 'no'", "keelog consume typed-wrong"
    ),
    Wrong("msg get 7F0000010000268E00000000FFFFFFFF", 3, "outside the log", "keelog status"),
    Wrong("produce typed-wrong --queue 9", 2, "queue 9 of", "keelog topic describe typed-wrong"),
    Wrong("produce a/b", 1, "'a/b' has characters other than", "rename the topic"),
    Wrong("produce - --jsonl", 1, "line 1: Expecting value", "one JSON object a line"),
    Wrong(f"store rebuild {STORE}", 6, "is held by another process", "stop the node or broker"),
    Wrong(f"store export {STORE} --sqlite ./nosuch/a.db", 1, "unable to open", "ls -ld"),
]


def assert_says(told: tuple[int, str], wrong: Wrong) -> None:
    """Exactly three lines, with what is expected in the second and third."""
    code, text = told
    lines = text.splitlines()
    heads = [line.split(":")[0] for line in lines]
    assert (code, heads) == (wrong.code, ["error", "cause", "try"]), (wrong, text)
    assert wrong.cause in lines[1], text
    assert wrong.hint in lines[2], text
    assert "--debug" not in text, "an error that nobody foresaw"


@pytest.mark.parametrize("wrong", WITHOUT_A_NODE, ids=lambda wrong: wrong.line)
def test_a_wrong_command_is_told_what_to_try(
    wrong: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KEELOG_NODE", NOWHERE)
    Path("file").write_text("text")
    words = wrong.line.split()
    monkeypatch.setattr("sys.argv", ["keelog", *words])
    assert_says((run(words), capsys.readouterr().err), wrong)
    assert not Path("new").exists(), "a refused start makes no directory"


@pytest.fixture
def typed(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Callable[[list[str], bytes], tuple[int, str]]:
    """Runs a command with a stdin, against the node: its exit code, and what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEELOG_NODE", node.endpoint)

    def one(words: list[str], stdin: bytes) -> tuple[int, str]:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        with source.open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            monkeypatch.setattr("sys.argv", ["keelog", *words])
            return run(words), capsys.readouterr().err

    return one


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
def test_what_a_node_refuses_is_told_with_what_to_try(
    node: RunningNode, typed: Callable[[list[str], bytes], tuple[int, str]]
) -> None:
    node.client.create_topic("typed-wrong", 1, exist_ok=True)
    for wrong in WITH_A_NODE:
        words = [str(node.root) if word == STORE else word for word in wrong.line.split()]
        assert_says(typed(words, b"\n"), wrong)
    wrong = Wrong("status", 2, "is a process of a node", "keelog serve says it is ready at")
    for process in node.client.status().processes:
        if process.endpoint:
            assert_says(typed(["status", "--node", process.endpoint], b""), wrong)


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
def test_an_empty_stdin_sends_nothing_and_says_so(
    typed: Callable[[list[str], bytes], tuple[int, str]],
) -> None:
    assert typed(["produce", "typed-wrong"], b"") == (
        *(0, "nothing sent: there was no line on stdin\n"),
    )
