"""The frame around every command: version, errors, exit codes, pipes."""

import errno
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from keelog.cli import failures
from keelog.cli.failures import doing, exit_code, lines
from keelog.cli.main import COMMANDS, cli, run
from keelog.cli.options import CliGroup
from keelog.cli.settings import from_environment, from_file
from protocol.errors import (
    BadRequest,
    BusyError,
    IllegalMessage,
    NotConnected,
    NotFound,
    RequestTimeout,
    SendTimeout,
    StoreDamaged,
    StoreLocked,
    UnknownTopic,
)
from tests.cli.tree import commands, help_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IllegalMessage("x"), 1),
        (OSError(errno.EIO, "x"), 1),
        (BadRequest("x"), 2),
        (click.UsageError("x"), 2),
        (NotFound("x"), 3),
        (UnknownTopic("x"), 3),
        (NotConnected("x"), 4),
        (RequestTimeout("x"), 4),
        (SendTimeout("x"), 4),
        (StoreDamaged("f", 1, "x"), 5),
        (StoreLocked("x"), 6),
        (BusyError("x"), 6),
        (failures.Partial("x"), 7),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_is_three_lines_that_name_what_failed_why_and_what_to_try() -> None:
    with pytest.raises(NotFound) as caught, doing("cannot find message 12"):
        raise NotFound("no record\nthere", "keelog topic ls")
    assert lines(caught.value) == [
        "error: cannot find message 12",
        "cause: no record there",
        "try: keelog topic ls",
    ]
    assert [line.split(": ")[0] for line in lines(NotConnected("x"))] == ["error", "cause", "try"]
    assert all(line.partition(": ")[2] for line in lines(OSError(errno.ENOSPC, "full")))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("keelog", "keelog"),
        ("keelog store dump x", "keelog store dump"),
        ("keelog -c prod topic ls --json", "keelog topic ls"),
        ("keelog --debug --context prod status", "keelog status"),
    ],
)
def test_an_error_names_the_command_also_behind_a_context(line: str, command: str) -> None:
    assert failures.command_of(line.split()) == command


def test_a_wrong_command_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["no-such-command"]) == 2
    talk = capsys.readouterr()
    assert [line.split(":")[0] for line in talk.err.splitlines()] == ["error", "cause", "try"]
    assert talk.out == ""


def test_every_command_is_found_and_helps_with_an_example() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None, name
        assert command.name == name
        assert command.help, name


@pytest.mark.parametrize(("option", "heavy"), [("--version", ""), ("--help", "email")])
def test_version_and_help_load_no_command_and_no_large_library(option: str, heavy: str) -> None:
    script = (
        "import sys\nfrom keelog.cli.main import run\nassert run([sys.argv[1]]) == 0\n"
        "large = {'zmq', 'numpy', 'rich', 'tomllib', 'keelog.cli.serve', *sys.argv[2:]}\n"
        "assert not large & set(sys.modules), large & set(sys.modules)"
    )
    words = [sys.executable, "-c", script, option, heavy]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "keelog" in done.stdout


@pytest.mark.parametrize("words", ["", "topic", "store", "spark", "bench", "config", "--debug"])
def test_a_group_without_a_command_prints_its_help(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 0
    talk = capsys.readouterr()
    path = " ".join(["keelog", *words.removeprefix("--debug").split()])
    assert talk.out.startswith(f"Usage: {path} ")
    assert "Prints this help." in talk.out
    assert talk.err == ""


def test_the_help_of_a_group_has_whole_sentences() -> None:
    for path, one in commands().items():
        if isinstance(one, CliGroup):
            assert "..." not in help_of(path).replace("[ARGS]...", ""), path


def test_the_version_has_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("-V", "--version", "version"):
        assert run([word]) == 0
    assert len(set(capsys.readouterr().out.splitlines())) == 1


@pytest.mark.process
def test_an_early_interrupt_prints_no_traceback() -> None:
    for delay_s in (0.01, 0.03, 0.06, 0.1, 0.2):
        command = [sys.executable, "-c", EARLY, str(delay_s)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.strip()) == (130, ""), delay_s


EARLY = """
import os, signal, sys, threading, time
from keelog.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
def interrupt():
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
sys.argv = ["keelog", "top", "--node", "tcp://127.0.0.1:9", "--interval", "9"]
import keelog.cli  # what follows takes long enough for each of the delays
code = main()
time.sleep(1)
sys.exit(code)
"""


def test_an_unforeseen_error_is_three_lines_and_a_traceback_only_with_debug() -> None:
    script = (
        "import sys\nfrom keelog.cli import main\n"
        "main.cli.main = lambda **_: 1 // 0\nsys.exit(main.main())"
    )
    plain = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert plain.returncode == 1
    assert [line.split(":")[0] for line in plain.stderr.splitlines()] == ["error", "cause", "try"]
    debug = subprocess.run(
        [sys.executable, "-c", script, "--debug"], cwd=ROOT, capture_output=True, text=True
    )
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr


def test_settings_come_from_variables_and_from_a_file(tmp_path: Path) -> None:
    assert [one.pair for one in from_environment({"KEELOG_STORE__MAX_INDEX_NUM": "7"})] == [
        "store.max_index_num=7"
    ]
    assert from_environment({"KEELOG_NODE": "x"}) == []
    for name, value in (("MAX_INDX_NUM", "7"), ("MAX_INDEX_NUM", "many")):
        with pytest.raises(BadRequest, match=f"KEELOG_STORE__{name}: .*{name.lower()}"):
            from_environment({f"KEELOG_STORE__{name}": value})
    config = tmp_path / "keelog.toml"
    config.write_text("[store]\nmax_index_num = 9\nmessage_index_enable = false\n")
    assert [one.pair for one in from_file(config)] == [
        "store.max_index_num=9",
        "store.message_index_enable=false",
    ]
    config.write_text("[stores]\n")
    with pytest.raises(BadRequest, match="stores"):
        from_file(config)
    config.write_text("[store")
    with pytest.raises(BadRequest, match="not TOML"):
        from_file(config)


def test_help_without_docstrings_says_why_it_has_no_text() -> None:
    words = [sys.executable, "-OO", "-m", "keelog", "store", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "PYTHONOPTIMIZE=2" in done.stdout
    assert "PYTHONOPTIMIZE=2" not in CliRunner().invoke(cli, ["store", "--help"]).output
