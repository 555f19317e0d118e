"""The node that tests of the gateway share, and a client of RocketMQ's protocol at it."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.node import RunningNode
from tests.support.remoting import RemotingPeer, remoting_place


@pytest.fixture(scope="session")
def node(shared_node: RunningNode) -> RunningNode:
    return shared_node


@pytest.fixture
def peer(node: RunningNode) -> Iterator[RemotingPeer]:
    with closing(RemotingPeer(remoting_place(node.stderr))) as connected:
        yield connected
