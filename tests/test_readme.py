"""What README.md shows is what happens: its commands and programs run against a real node."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.event_log import FORMAT_VARIABLE
from tests.cli.tree import assert_is_read
from tests.support.node import RunningNode
from tests.support.pages import Step, agrees, in_a_shell, printed, steps

PAGE = Path(__file__).resolve().parents[1] / "README.md"
STAND_INS = {
    "make demo": "keelog demo --format table --no-spark",  # Spark has a test of its own
    "pip install /path/to/keelog": "true",  # tests/whole/test_wheel.py
    "pip wheel --no-deps --wheel-dir dist /path/to/keelog": "true",
    "keelog bench e2e --duration 10s": "keelog bench e2e --help",  # tests/cli/test_bench.py
}
ON_SPARK = "local_session"
"""A program with it is run by tests/pipeline/test_spark_doc.py, in the session of its tests."""
SERVE = "keelog serve ./store --http 7855"
"""The node that stands for it is started by the fixture, with small files, on free ports."""
FETCH = f"{sys.executable} -c 'import sys, urllib.request as one;" + (
    " print(one.urlopen(sys.argv[1]).read().decode())'"
)
"""What curl does, where there is none."""
SMALL = (
    "store.mapped_file_size_commit_log=1048576",
    "store.max_hash_slot_num=1000",
    "store.max_index_num=4000",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("readme")
    # On the terminal that the page speaks of, the log is text.
    env = {FORMAT_VARIABLE: "text", "KEELOG_HTTP": "127.0.0.1:0"}
    with RunningNode(folder / "store", SMALL, readers=1, queue_workers=1, env=env) as running:
        yield running


def run(step: Step, node: RunningNode) -> str:
    """What the step prints, stderr included."""
    folder = node.root.parent
    variables = {"KEELOG_NODE": node.endpoint, "COLUMNS": "80", "TMPDIR": str(folder)}
    if step.is_python:
        return in_a_shell([sys.executable, "-c", step.command], folder, variables)
    command = STAND_INS.get(step.command, step.command).replace("curl -s", FETCH)
    # The page names the ports that a node has by default; the node here has others.
    for shown, here in (
        ("tcp://127.0.0.1:7850", node.endpoint),
        ("http://127.0.0.1:7855", node.client.status().raw["http"]),
    ):
        command = command.replace(shown, here)
    return printed(command, folder, variables)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("readme")
def test_everything_that_the_readme_shows_happens(node: RunningNode) -> None:
    wrong = []
    for step in steps(PAGE.read_text(encoding="utf-8")):
        if ON_SPARK in step.command:
            continue
        actual = node.stderr if step.command == SERVE else run(step, node)
        if not agrees(step.expected, actual):
            wrong.append(f"line {step.line}: {step.command}\nshown:\n{step.expected}\n{actual}")
    assert not wrong, "\n\n".join(wrong)


def test_the_readme_has_programs_and_commands() -> None:
    found = list(steps(PAGE.read_text(encoding="utf-8")))
    assert any(step.is_python and step.expected for step in found)
    assert {step.command for step in found} > {SERVE, *STAND_INS}
    for command in (SERVE, *STAND_INS):
        if command.startswith("keelog "):
            assert_is_read(command.split()[1:])
