"""Programs of users whose names are those of our packages, beside an editable installation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program of a user that connects to nobody."""
    program.write_text("import keelog, keelog.store\nprint(keelog.connect.__name__)\n")
    return subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["client", "gateway", "replication", "pipeline"])
def test_a_program_with_the_name_of_an_inner_package_runs(tmp_path: Path, name: str) -> None:
    done = run(tmp_path / f"{name}.py")
    assert (done.stdout, done.stderr) == ("connect\n", "")


@pytest.mark.parametrize("name", ["node", "protocol", "workers"])
def test_a_program_that_hides_a_package_is_told_its_name(tmp_path: Path, name: str) -> None:
    done = run(tmp_path / f"{name}.py")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / name}.py hides Keelog's package '{name}'")
    assert "give the file another name" in last
