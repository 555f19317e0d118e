"""Fixtures of pytest, found where Keelog is installed; `pytest -p no:keelog` leaves them out.

One node serves all tests of a session (with pytest-xdist: of a process), and each test has a topic
of its own. A test that fails shows the node's log beside its own output.

    def test_an_order_is_announced(keelog_client, keelog_topic):
        announce(keelog_client, keelog_topic, order=17)
        message = next(keelog_client.tail(keelog_topic, "earliest"))
        assert message.keys == ["order-17"]

A test that needs a store of its own, or other settings, makes a `keelog.testing.TestNode`.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    # Not before a fixture is asked for: pytest loads this in sessions that use none of it.
    from keelog.client.client import Client
    from keelog.testing import TestNode

NAME_CHARS_MAX = 80
"""Of a test's name in its topic, which may have 127 characters."""
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")


@pytest.fixture(scope="session")
def keelog_settings() -> Mapping[str, object]:
    """Settings of the session's node: changed by a fixture of this name in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def keelog_node(keelog_settings: Mapping[str, object]) -> "Iterator[TestNode]":
    """The session's node, ready: a `keelog.testing.TestNode`."""
    from keelog.testing import TestNode

    with TestNode(settings=keelog_settings) as node:
        yield node


@pytest.fixture
def keelog_client(keelog_node: "TestNode") -> "Iterator[Client]":
    """A client of the session's node, for this test alone. A node that an earlier test has killed
    is started again."""
    if not keelog_node.is_running:
        keelog_node.start()
    with keelog_node.connect() as client:
        yield client


@pytest.fixture
def keelog_topic(request: "pytest.FixtureRequest") -> str:
    """A name for a topic that no other test has. The topic is made by the first message for it."""
    name = _ILLEGAL.sub("-", request.node.name)[:NAME_CHARS_MAX]
    return f"{name}-{uuid4().hex[:8]}"


@pytest.hookimpl(hookwrapper=True)  # its later form would end every run of pytest 7.2 and older
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Adds the node's log to the report of a test that failed."""
    outcome = yield
    node = getattr(item, "funcargs", {}).get("keelog_node")
    # A report that another plugin could not make is not ours to raise.
    if node is not None and outcome.excinfo is None and outcome.get_result().failed:
        outcome.get_result().sections.append(("keelog node", node.log_end))
