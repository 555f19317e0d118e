"""Completion: scripts of three shells; commands without imports; topics, or silence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keelog.cli.help import SHELLS
from keelog.cli.main import COMMANDS, cli, run
from tests.support.node import RunningNode, wait_until
from tests.support.shell import Shell

NOWHERE = "tcp://127.0.0.1:9"
TAB_S = 60.0
SET_UP = {
    "bash": (("bash", "--norc", "-i"), 'eval "$(keelog completion bash)"'),
    "zsh": (
        ("zsh", "-f", "-i"),
        'autoload -Uz compinit; compinit -u -D; eval "$(keelog completion zsh)"',
    ),
}
"""How a shell is started at a terminal without anybody's own files, and what its user types."""


def completed(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What bash offers for the last word of a line."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setenv("_KEELOG_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        cli.main(args=[], prog_name="keelog", standalone_mode=False)
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_asks_keelog(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    assert f"_KEELOG_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_bash_takes_its_script() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "keelog", "completion", "bash"], capture_output=True, check=True
    ).stdout
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_commands_and_options_are_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed("keelog ", monkeypatch, capsys) == list(COMMANDS)
    assert completed("keelog co", monkeypatch, capsys) == [
        *("consume", "config", "context", "console", "completion")
    ]
    assert completed("keelog store ver", monkeypatch, capsys) == ["verify"]
    assert "--no-progress" in completed("keelog store verify --no", monkeypatch, capsys)
    assert completed("keelog --cont", monkeypatch, capsys) == ["--context"]


def test_commands_are_completed_without_importing_one() -> None:
    script = (
        "import os, sys\nfrom keelog.cli.main import cli\n"
        "os.environ |= {'COMP_WORDS': 'keelog ', 'COMP_CWORD': '1',"
        " '_KEELOG_COMPLETE': 'bash_complete'}\n"
        "try:\n    cli.main(args=[], prog_name='keelog')\nexcept SystemExit:\n    pass\n"
        "loaded = {'zmq', 'numpy', 'rich', 'keelog.cli.store'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "plain,serve" in done.stdout


def test_without_a_node_no_topic_is_offered_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KEELOG_NODE", NOWHERE)
    assert completed("keelog consume ", monkeypatch, capsys) == []
    assert completed("keelog -c none consume ", monkeypatch, capsys) == []
    (tmp_path / "keelog").mkdir()
    (tmp_path / "keelog" / "contexts.toml").write_text("[")
    assert completed("keelog -c ", monkeypatch, capsys) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
def test_topics_are_completed_from_the_node_that_the_line_names(
    node: RunningNode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("keelog.cli.contexts.TOPICS_S_MAX", 30.0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KEELOG_NODE", raising=False)
    for topic in ("completed-1", "completed-2"):
        node.client.create_topic(topic, 1, exist_ok=True)
    expected = ["completed-1", "completed-2"]
    asked = f"keelog consume --node {node.endpoint} compl"
    assert completed(asked, monkeypatch, capsys) == expected
    monkeypatch.delenv("_KEELOG_COMPLETE")
    assert run(["context", "add", "here", "--node", node.endpoint]) == 0
    assert completed("keelog -c here topic rm completed-", monkeypatch, capsys) == expected
    assert completed("keelog -c here msg find --topic completed-2", monkeypatch, capsys) == [
        "completed-2"
    ]
    assert completed("keelog -c h", monkeypatch, capsys) == ["here"]
    assert completed("keelog context use ", monkeypatch, capsys) == ["here"]


def found_here(shell: str) -> str:
    """The shell's program; skips the test where there is none."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not on the PATH")
    return path


def environment(node: RunningNode) -> dict[str, str]:
    """That of somebody who has `keelog` on the PATH and talks to this node."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "KEELOG_NODE": node.endpoint}


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
@pytest.mark.parametrize("shell", SET_UP)
def test_tab_completes_commands_and_topics_at_a_terminal(shell: str, node: RunningNode) -> None:
    found_here(shell)
    node.client.create_topic("typed-in-a-shell", 1, exist_ok=True)
    command, line = SET_UP[shell]
    with Shell(command, environment(node)) as typed:
        typed.run(line, TAB_S)
        typed.completed("keelog store ver", "keelog store verify", TAB_S)
        typed.completed("keelog consume typed", "keelog consume typed-in-a-shell", TAB_S)


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
def test_fish_completes_commands_with_what_they_do_and_topics(
    node: RunningNode, tmp_path: Path
) -> None:
    program = found_here("fish")
    node.client.create_topic("typed-in-a-shell", 1, exist_ok=True)
    script = tmp_path / "keelog.fish"

    def offered(line: str) -> str:
        words = [program, "--no-config", "-c", f'source {script}; complete -C "{line}"']
        env = environment(node)
        return subprocess.run(words, capture_output=True, check=True, text=True, env=env).stdout

    script.write_text(
        subprocess.run(
            [sys.executable, "-m", "keelog", "completion", "fish"],
            capture_output=True, check=True, text=True,
        ).stdout
    )  # fmt: skip
    assert offered("keelog stor") == f"store\t{COMMANDS['store'].line}\n"
    topic = "typed-in-a-shell"
    wait_until(lambda: offered("keelog consume typed") == f"{topic}\n", "no topic", TAB_S)
