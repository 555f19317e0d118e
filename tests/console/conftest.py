"""A console without a node, for what it decides by itself; and a node with messages to show."""

from collections.abc import Iterator

import pytest

from tests.console.shown_store import Shown, shown_node
from tests.support.console import Site, served


@pytest.fixture
def site() -> Iterator[Site]:
    with served() as found:
        yield found


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One for all tests of a process: who uses it removes nothing."""
    with shown_node(tmp_path_factory.mktemp("console") / "store") as found:
        yield found
