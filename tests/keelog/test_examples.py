"""What docs/client.md and the docstrings show happens: their programs run against a real node.

Whoever makes a node of their own there gets the session's.
"""

import contextlib
import doctest
import inspect
import io
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

import keelog
import keelog.aio
import keelog.client.client
import keelog.client.send.producer
import keelog.testing
from keelog.testing import TestNode
from tests.support.pages import agrees, steps

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
MODULES = [keelog, keelog.aio, keelog.client.client, keelog.client.send.producer]
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("keelog_node")]


@pytest.fixture(autouse=True)
def default_node(monkeypatch: pytest.MonkeyPatch, keelog_node: TestNode) -> None:
    """`connect()` finds the session's node, and who makes a node gets that one."""
    if not keelog_node.is_running:
        keelog_node.start()
    monkeypatch.setenv("KEELOG_NODE", keelog_node.endpoint)
    monkeypatch.setenv("KEELOG_TIMEOUT", "30")
    monkeypatch.setattr(keelog.testing, "TestNode", lambda **_: nullcontext(keelog_node))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_of_the_docstrings_print_what_they_say(
    module: ModuleType, keelog_client: keelog.Client
) -> None:
    told = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    globs = {"keelog": keelog, "client": keelog_client}
    for example in doctest.DocTestFinder().find(module, globs=globs):
        runner.run(example, out=told.write)
    assert runner.tries > 2, "examples were not found"
    assert not runner.failures, told.getvalue()


def test_the_programs_of_the_page_print_what_it_shows(request: pytest.FixtureRequest) -> None:
    wrong = []
    for step in steps(PAGE.read_text(encoding="utf-8")):
        assert step.is_python, "a command would need a test of its own"
        names: dict[str, object] = {"__name__": "page"}
        with contextlib.redirect_stdout(io.StringIO()) as told:
            exec(compile(step.command, f"{PAGE.name}, line {step.line}", "exec"), names)
            for name, test in names.items():
                if name.startswith("test_"):
                    run_as_pytest_would(test, request)
        if not agrees(step.expected, told.getvalue()):
            wrong.append(f"line {step.line}: shown\n{step.expected}\n{told.getvalue()}")
    assert not wrong, "\n\n".join(wrong)


def run_as_pytest_would(test: object, request: pytest.FixtureRequest) -> None:
    assert inspect.isfunction(test)
    fixtures = {name: request.getfixturevalue(name) for name in inspect.signature(test).parameters}
    test(**{**fixtures, "keelog_topic": test.__name__})  # each has a topic of its own
