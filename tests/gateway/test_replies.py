"""Replies to requests of RocketMQ's producers (324, 325, 326), frame by frame."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keelog.gateway.to_clients import CLIENT_REQUESTS_MAX, ClientRequests
from protocol.errors import NodeBusy
from protocol.remoting.bodies import HeartbeatData, ProducerData
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.frame_reader import frame_head
from protocol.remoting.headers import ANSWER, RemotingHeader
from protocol.remoting.java_json import write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import (
    REMOTING,
    Answered,
    RemotingPeer,
    remoting_place,
    send_fields,
)

REPLY, PUSH = RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def consumer(node: RunningNode) -> Iterator[RemotingPeer]:
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
        yield peer


def producer(node: RunningNode, client_id: str) -> RemotingPeer:
    """A client that has said that it is a producer."""
    peer = RemotingPeer(remoting_place(node.stderr))
    data = HeartbeatData(client_id, (ProducerData("askers"),))
    body = write_body(data, standard=False)
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.SUCCESS
    return peer


def reply_fields(client_id: str, key: str) -> dict[str, object]:
    to = f"REPLY_TO_CLIENT\x01{client_id}\x02" if client_id else ""
    text = f"MSG_TYPE\x01reply\x02{to}UNIQ_KEY\x01{key}\x02"
    return send_fields(TOPIC, i=f"{text}CORRELATION_ID\x01{key}\x02", c="TBW102")


def answer(peer: RemotingPeer, asked: Answered, code: int = 0) -> None:
    header = RemotingHeader(code, asked.header.opaque, ANSWER)
    peer.socket.sendall(frame_head(header, 0))


@pytest.mark.process
def test_a_reply_is_pushed_to_the_producer_that_asked_and_stored(
    node: RunningNode, consumer: RemotingPeer
) -> None:
    with closing(producer(node, "10.0.0.1@a")) as asker, closing(producer(node, "b")) as other:
        opaque = consumer.send(REPLY, reply_fields("10.0.0.1@a", "K1"), b"pong")
        pushed = asker.request(PUSH)
        assert (pushed.body, pushed.ext["topic"]) == (b"pong", TOPIC)
        assert (pushed.ext["bornTimestamp"], pushed.ext["unitMode"]) == ("1700000000000", "false")
        assert pushed.ext["storeHost"] == ":".join(map(str, remoting_place(node.stderr)))
        host, port = consumer.socket.getsockname()
        assert pushed.ext["bornHost"] == f"{host}:{port}"
        pairs = dict(one.split("\x01") for one in pushed.ext["properties"].split("\x02") if one)
        assert int(pairs.pop("PUSH_REPLY_TIME")) == int(pushed.ext["storeTimestamp"])
        assert pairs == {
            "MSG_TYPE": "reply", "REPLY_TO_CLIENT": "10.0.0.1@a", "UNIQ_KEY": "K1",
            "CORRELATION_ID": "K1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        }  # fmt: skip
        other.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.socket.recv(1)
        answer(asker, pushed)
        answered = consumer.answer_to(opaque)
        assert answered.code == ResponseCode.SUCCESS, answered.header.remark
        stored = node.client.get(answered.ext["msgId"])
        place = str(stored.queue_id), str(stored.queue_offset)
        assert (answered.ext["queueId"], answered.ext["queueOffset"]) == place
        assert stored.queue_id == 0
        assert (stored.body, stored.topic, stored.unique_key) == (b"pong", TOPIC, "K1")
        assert "CLUSTER" not in stored.properties, "a broker adds it to no reply"
        assert stored.properties["TRACE_ON"] == "true"
        assert {one.topic: one.queues for one in node.client.topics()}[TOPIC] == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("client_id", "why"), [("nobody", "channel of <nobody> not found"), ("", "is null")]
)
def test_a_reply_to_nobody_is_told_and_stored(
    node: RunningNode, consumer: RemotingPeer, client_id: str, why: str
) -> None:
    answered = consumer.ask(REPLY, reply_fields(client_id, "K2"), b"late")
    assert answered.code == ResponseCode.SYSTEM_ERROR
    assert why in (answered.header.remark or "")
    assert answered.ext["MSG_REGION"] == "DefaultRegion", "a Java client reads it"
    assert node.client.get(answered.ext["msgId"]).body == b"late"


@pytest.mark.process
def test_a_producer_that_fails_goes_or_answers_something_else_fails_the_reply(
    node: RunningNode, consumer: RemotingPeer
) -> None:
    with closing(producer(node, "bad")) as asker:
        opaque = consumer.send(REPLY, reply_fields("bad", "K3"), b"1")
        answer(asker, asker.request(PUSH), ResponseCode.SYSTEM_ERROR)
        assert consumer.answer_to(opaque).code == ResponseCode.SYSTEM_ERROR
        opaque = consumer.send(REPLY, reply_fields("bad", "K4"), b"2")
        pushed = asker.request(PUSH)
        answer(consumer, pushed)  # nobody else may answer for it
        answer(asker, pushed._replace(header=pushed.header._replace(opaque=10**9)))
        began = time.monotonic()
    answered = consumer.answer_to(opaque)
    assert answered.code == ResponseCode.SYSTEM_ERROR
    assert "push reply message to bad" in (answered.header.remark or "")
    assert time.monotonic() - began < 5, "the end of a connection is known at once"
    answered = consumer.ask(REPLY, reply_fields("bad", "K5"), b"3")
    assert "channel of <bad> not found" in (answered.header.remark or "")


@pytest.mark.process
def test_replies_are_not_stored_where_the_setting_says_so(tmp_path: Path) -> None:
    settings = (REMOTING, "store_reply_message_enable=false")
    with (
        RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node,
        closing(producer(node, "p")) as asker,
        closing(RemotingPeer(remoting_place(node.stderr))) as consumer,
    ):
        opaque = consumer.send(REPLY, reply_fields("p", "K6"), b"x")
        answer(asker, asker.request(PUSH))
        answered = consumer.answer_to(opaque)
        assert (answered.code, answered.ext["msgId"]) == (ResponseCode.SUCCESS, "0")
        log = node.client.status().raw["log"]
        wait_until(lambda: log["records"] == 0, "something was stored")
        changed = b"storeReplyMessageEnable=true"
        assert consumer.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, changed).code == 0
        opaque = consumer.send(REPLY, reply_fields("p", "K7"), b"y")
        answer(asker, asker.request(PUSH))
        stored = consumer.answer_to(opaque).ext["msgId"]
        assert node.client.get(stored).body == b"y"


@dataclass(eq=False)
class Peer:
    """In place of a connection: it keeps what is sent."""

    is_closed: bool = False
    sent: list[RemotingHeader] = field(default_factory=list)

    def send(self, header: RemotingHeader, body: bytes = b"") -> None:
        self.sent.append(header)


def test_a_client_that_does_not_answer_is_given_up_and_few_are_asked_at_once() -> None:
    async def run() -> None:
        asked, peer = ClientRequests(), Peer()
        to: Any = peer
        with pytest.raises(TimeoutError):
            await asked.ask(to, PUSH, {}, b"", timeout_s=0.01)
        late = peer.sent[-1]
        asked.answered(to, late)
        assert not len(asked)
        waiting = [
            asyncio.ensure_future(asked.ask(to, PUSH, {}, b"")) for _ in range(CLIENT_REQUESTS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(NodeBusy):
            await asked.ask(to, PUSH, {}, b"")
        numbers = {header.opaque for header in peer.sent}
        assert len(numbers) == CLIENT_REQUESTS_MAX + 1, "each has its own"
        asked.answered(to, peer.sent[1]._replace(code=7))
        assert (await waiting[0]).code == 7
        asked.went(to)
        gone = await asyncio.gather(*waiting[1:], return_exceptions=True)
        assert all(isinstance(one, ConnectionResetError) for one in gone)
        assert not len(asked)
        peer.is_closed = True
        with pytest.raises(ConnectionResetError):
            await asked.ask(to, PUSH, {}, b"")

    asyncio.run(run())
