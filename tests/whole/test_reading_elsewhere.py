"""A client that sends to one node and reads from another, as from a replica. The two nodes here do
not follow each other, so that each answer shows where it comes from."""

import asyncio
from collections.abc import Iterator

import pytest

import keelog
import keelog.aio
from tests.support.node import RunningNode

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("reading_elsewhere")]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, RunningNode]]:
    folder = tmp_path_factory.mktemp("two")
    with (
        RunningNode(folder / "a", queue_workers=1, readers=1) as written,
        RunningNode(folder / "b", queue_workers=1, readers=1) as read,
    ):
        read.client.create_topic("t", 1)
        read.client.send("t", b"of the one that is read", keys="k", queue_id=0)
        read.wait_dispatched()
        written.client.create_topic("t", 1)
        yield written, read


def test_sends_go_to_the_node_and_reads_to_the_other(
    nodes: tuple[RunningNode, RunningNode],
) -> None:
    written, read = nodes
    with keelog.connect(written.endpoint, timeout=20.0, read_from=read.endpoint) as client:
        receipt = client.send("t", b"of the one that is written", queue_id=0)
        there = [message.body for message in client.pull("t", 0, 0).messages]
        tailed = next(iter(client.tail("t", start="earliest"))).body
        found = [message.body for message in client.find("t", "k")]
    assert there == found == [tailed] == [b"of the one that is read"]
    stored = written.client.get(receipt.msg_id)
    assert stored.body == b"of the one that is written"


def test_asyncio_reads_from_the_other_node_too(nodes: tuple[RunningNode, RunningNode]) -> None:
    written, read = nodes

    async def bodies() -> list[bytes]:
        async with keelog.aio.connect(written.endpoint, read_from=read.endpoint) as client:
            pulled = await client.pull("t", 0, 0)
            async for message in client.tail("t", start="earliest"):
                return [message.body, *(one.body for one in pulled.messages)]
        raise AssertionError("the tail ended")

    assert asyncio.run(bodies()) == [b"of the one that is read"] * 2


def test_a_read_fails_when_nobody_answers_there_and_sends_go_on(
    nodes: tuple[RunningNode, RunningNode],
) -> None:
    nobody = "tcp://127.0.0.1:1"
    with keelog.connect(nodes[0].endpoint, timeout=20.0, read_from=nobody) as client:
        client.send("t", b"is stored")
        with pytest.raises(keelog.NotConnected, match=r"127\.0\.0\.1:1"):
            client.pull("t", 0, 0)


def test_an_address_to_read_from_that_cannot_be_is_refused_at_once(
    nodes: tuple[RunningNode, RunningNode],
) -> None:
    with pytest.raises(keelog.BadRequest, match="no port"):
        keelog.connect(nodes[0].endpoint, read_from="tcp://127.0.0.1:0")
