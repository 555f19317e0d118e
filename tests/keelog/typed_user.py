"""A program as a user may write it, under `mypy --strict` of `make lint`: what each call takes and
answers, as its types say. Never run; `assert_type` fails in the checker."""

from asyncio import Future as AioFuture
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from typing import assert_type

import keelog
import keelog.aio
from keelog.store import open_store
from keelog.testing import TestNode


def plain(node: TestNode, body: memoryview, since: datetime) -> None:
    with keelog.connect("tcp://127.0.0.1:7850", 5.0, keelog.Retry(max_attempts=1)) as client:
        assert_type(client, keelog.Client)
        assert_type(client.send("t", body, keys=["a"], acks="flushed"), keelog.Receipt)
        assert_type(client.send("t", keelog.OutgoingMessage(b"x", tags="y")).queue_offset, int)
        assert_type(client.pull("t", 0, 0, wait=1.0).messages, list[keelog.Message])
        assert_type(client.tail("t", since), keelog.Follower[keelog.Message])
        follower = client.consume("t", -10, until_end=True)
        assert_type(follower, keelog.Follower[keelog.PullResult])
        assert_type(client.get("id"), keelog.Message)
        assert_type(client.find("t", "k", limit=3), Iterator[keelog.Message])
        assert_type(client.topics(), list[keelog.TopicInfo])
        assert_type(client.status().log, keelog.LogStatus)
        with client.producer(linger=0.1, when_full="raise") as producer:
            assert_type(producer.send_nowait("t", bytearray(b"x")), Future[keelog.Receipt])
            assert_type(producer.send_batch("t", [b"x"]), Future[keelog.BatchReceipt])
            assert_type(producer.send_many("t", [b"x"]), list[keelog.Receipt])
    assert_type(node.connect(), keelog.Client)


def without_a_node() -> None:
    with open_store("./store") as store:
        assert_type(store.scan(topic="t", since=0), Iterator[keelog.Message])
        assert_type(store.get("id"), keelog.Message)
        assert_type(store.find("t", "k", limit=3), Iterator[keelog.Message])


async def awaited() -> None:
    async with keelog.aio.connect() as client:
        assert_type(await client.send("t", b"x"), keelog.Receipt)
        assert_type(client.tail("t"), keelog.aio.MessageStream)
        async with client.producer() as producer:
            assert_type(producer.send_nowait("t", b"x"), AioFuture[keelog.Receipt])
            await producer.drain(1.0)


def wrong(client: keelog.Client) -> None:
    """Each of these must be an error of the checker: an ignore that is not needed is one too."""
    client.send("t", "text")  # type: ignore[arg-type]
    client.send("t", b"x", colour=1)  # type: ignore[call-arg]
    client.send("t", b"x", acks="all")  # type: ignore[arg-type]
    client.producer(linger="soon")  # type: ignore[arg-type]
    client.tail("t", "never")  # type: ignore[arg-type]
