"""What the pages of docs/ show is what happens: their commands run against one node.

README.md has a node of its own: tests/test_readme.py. Which block is run by whom, and which is
not: tests/test_pages.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.damaged_store import make_store
from tests.support.node import RunningNode
from tests.support.pages import agrees, printed, steps

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("command-line", "operations", "troubleshooting")
DAMAGED = "/var/lib/keelog/store"
"""On the pages the store of a node that does not start: one record of it is damaged."""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store with one bad byte in a message of the topic orders."""
    store = make_store(tmp_path_factory.mktemp("damaged") / "broken")
    bad = [record for record in store.records if record.topic == "orders"][5]
    store.flip(bad.physical_offset + bad.head.total_size - 1)
    return store.root


@pytest.fixture
def names(node: RunningNode, damaged: Path) -> Callable[[str], str]:
    """Puts the places of these tests where a text has those of the page."""
    processes = node.client.status().processes
    writer = next(one.endpoint for one in processes if one.role == "writer")
    assert writer is not None
    places = {
        "tcp://127.0.0.1:7850": node.endpoint,
        "127.0.0.1:7850": node.endpoint.removeprefix("tcp://"),
        "tcp://127.0.0.1:7851": writer,
        DAMAGED: damaged.name,
    }

    def named(text: str) -> str:
        for shown, here in places.items():
            text = text.replace(shown, here)
        return text

    return named


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_does_what_it_shows(
    page: str, node: RunningNode, damaged: Path, names: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "store").symlink_to(node.root)
    (tmp_path / damaged.name).symlink_to(damaged)
    node.client.create_topic("greetings", 8, exist_ok=True)
    node.client.create_topic("orders", 8, exist_ok=True)
    node.client.send("orders", b"one to back up")
    variables = {
        "KEELOG_NODE": node.endpoint, "XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "80",
    }  # fmt: skip
    wrong = []
    for step in steps((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        actual = printed(names(step.command), tmp_path, variables)
        if not agrees(names(step.expected), actual):
            wrong.append(f"{page}.md, line {step.line}: {step.command}\n{step.expected}\n{actual}")
    assert not wrong, "\n\n".join(wrong)
