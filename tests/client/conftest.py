"""What tests of the clients share: a node in a thread, and a plain client of it."""

from collections.abc import Iterator

import pytest

import keelog
from tests.support.fake_node import FakeNode, fake_node


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_node() as running:
        yield running


@pytest.fixture
def mq(node: FakeNode) -> Iterator[keelog.Client]:
    with keelog.connect(node.url, timeout=30.0) as client:
        yield client
