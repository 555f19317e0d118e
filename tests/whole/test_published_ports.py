"""Ports that clients reach under other numbers, as behind `docker run -p` or NAT, and a gateway at
another address than the node's."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import keelog
from node.supervisor.bind import free_ports
from protocol.errors import NotConnected
from protocol.ids import parse_offset_message_id
from protocol.remoting.codes import RequestCode
from tests.support.node import RunningNode
from tests.support.remoting import RemotingPeer

pytestmark = pytest.mark.process

CLIENT_S = 60.0


@contextmanager
def forwards(outer: dict[int, int]) -> Iterator[None]:
    """Forwards these ports of 127.0.0.1 to others."""
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_forward(outer, ready, stop)))
    thread.start()
    try:
        assert ready.wait(CLIENT_S)
        yield
    finally:
        stop.set()
        thread.join()


async def _forward(outer: dict[int, int], ready: threading.Event, stop: threading.Event) -> None:
    ends: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(own: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        there = await asyncio.open_connection("127.0.0.1", own)
        ends.append(there[1])
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    servers = [
        await asyncio.start_server(partial(serve, own), "127.0.0.1", port)
        for port, own in outer.items()
    ]
    ready.set()
    await asyncio.to_thread(stop.wait)
    for server in servers:
        server.close()
    for end in ends:
        end.transport.abort()
    await asyncio.sleep(0.1)


def check_group(client: keelog.Client, topic: str) -> None:
    sent = client.send(topic, b"apples", queue_id=0)
    assert client.pull(topic, 0, sent.queue_offset, wait=5).messages[0].body == b"apples"
    with client.consumer("pickers", topic, start="earliest") as consumer:
        message = consumer.get(CLIENT_S)
        assert message is not None
        assert message.body == b"apples"


def test_every_end_is_given_under_its_published_number(tmp_path: Path) -> None:
    own, outer = free_ports(6), free_ports(6)
    control, gateway = own, own + 5
    published = ",".join(f"{outer + n}:{own + n}" for n in (0, 1, 2, 3, 5))
    settings = [f"serve.remoting=127.0.0.1:{gateway}", f"network.advertise=127.0.0.1,{published}"]
    bind = f"tcp://127.0.0.1:{control}"
    places = {outer + n: own + n for n in (0, 1, 2, 3, 5)}
    with (
        RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1, bind=bind),
        forwards(places),
        keelog.connect(f"tcp://127.0.0.1:{outer}", timeout=CLIENT_S) as client,
    ):
        routes = client.routes()
        assert routes.writer == f"tcp://127.0.0.1:{outer + 1}"
        assert routes.readers == (f"tcp://127.0.0.1:{outer + 2}",)
        assert routes.remoting == f"tcp://127.0.0.1:{outer + 5}"
        check_group(client, "orders")
        receipt = client.send("orders", b"x")
        assert parse_offset_message_id(receipt.msg_id)[0].port == outer + 5
        peer = RemotingPeer(("127.0.0.1", outer + 5))
        answer = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        (broker,) = json.loads(answer.body.replace(b"{0:", b'{"0":'))["brokerDatas"]
        assert list(broker["brokerAddrs"].values()) == [f"127.0.0.1:{outer + 5}"]
        peer.socket.close()


def test_a_client_that_reaches_one_port_alone_hears_which_it_was_given(tmp_path: Path) -> None:
    """As behind a forward of which the node knows nothing."""
    outer = free_ports(1)
    bind = f"tcp://127.0.0.1:{free_ports(3)}"
    published = f"network.advertise=127.0.0.9,1:{int(bind.rpartition(':')[2]) + 1}"
    with RunningNode(tmp_path / "s", [published], queue_workers=1, readers=1, bind=bind) as node:
        own = int(node.endpoint.rpartition(":")[2])
        with forwards({outer: own}):
            url = f"tcp://127.0.0.1:{outer}"
            with keelog.connect(url, timeout=2.0) as client:
                with pytest.raises(NotConnected, match=f"{url} answered, but named") as found:
                    client.send("orders", b"x")
                assert "tcp://127.0.0.9:1" in found.value.reason
                assert "--advertise" in found.value.hint


def test_a_gateway_at_another_address_of_the_machine_is_found_there(tmp_path: Path) -> None:
    """Not at the host of the control socket."""
    with RunningNode(
        tmp_path / "s", ["serve.remoting=127.0.0.2:0"], queue_workers=1, readers=1
    ) as node:
        assert str(node.client.routes().remoting).startswith("tcp://127.0.0.2:")
        check_group(node.client, "orders")
