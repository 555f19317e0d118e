"""`keelog cheat`: every command's examples under one subject, each as `--help` shows it.

That the examples work is held by test_examples.py.
"""

import pytest

from keelog.cli.help import SUBJECTS
from keelog.cli.main import run
from tests.cli.tree import leaves


def shown(subject: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["cheat", subject]) == 0
    return capsys.readouterr().out


def test_every_example_of_every_command_is_under_exactly_one_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [line for name in SUBJECTS for line in shown(name, capsys).splitlines()]
    others = "\n".join(one.others for one in SUBJECTS.values()).splitlines()
    lines = [line for line in lines if line not in others]
    expected = sorted(example for one in leaves().values() for example in one.examples)
    assert sorted(line for line in lines if line and not line.startswith("#")) == expected
    headings = [line[2:].split(":")[0] for line in lines if line.startswith("#")]
    assert sorted(headings) == sorted(f"keelog {path}" for path in leaves())


def test_a_block_is_a_comment_and_commands_that_a_shell_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for block in shown("messages", capsys).split("\n\n"):
        comment, *examples = block.strip().splitlines()
        assert comment.startswith("# keelog ")
        assert examples
        assert all("keelog " in line for line in examples)


def test_without_a_subject_all_subjects_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cheat"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == list(SUBJECTS)


def test_an_unknown_subject_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cheat", "nonsense"]) == 2
    assert "'messages'" in capsys.readouterr().err
