"""A name server in the process of the tests: it follows RocketMQ's rules, or misbehaves."""

import asyncio
import json
from collections.abc import Callable
from ssl import SSLContext
from typing import NamedTuple, Self

from protocol.remoting.bodies import QueueData, RegisterBrokerBody, TopicConfig, TopicRouteData
from protocol.remoting.codes import BrokenFrame, RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import read_body, write_body

PATIENCE_S = 20.0
GARBAGE = b"HTTP/1.1 400 Bad Request\r\n\r\n"


class Asked(NamedTuple):
    """A request that came."""

    header: RemotingHeader
    body: bytes


class Registered(NamedTuple):
    """A broker, as a name server knows it."""

    address: str
    cluster: str
    topics: dict[str, TopicConfig]
    state_version: int
    connection: asyncio.StreamWriter


class FakeNameServer:
    """Start it in a loop; it stays at its port over `stop` and `start`."""

    def __init__(self, host: str = "127.0.0.1", tls: SSLContext | None = None) -> None:
        self._host = host
        self._tls = tls
        self.port = 0
        self.asked: list[Asked] = []
        self.connections = 0
        self.brokers: dict[str, Registered] = {}
        self.hangs = False
        """It takes requests and does not answer."""
        self.sends_garbage = False
        self.refuses = False
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends as a process does that is killed: it knows nothing afterwards."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0)
        self.brokers.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def codes(self) -> list[int]:
        """Those of all requests."""
        return [one.header.code for one in self.asked]

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until it holds after some request or connection."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{what}; the requests: {self.codes()}") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.connections += 1
        frames = FrameReader()
        try:
            while data := await reader.read(1 << 16):
                self._take(data, frames, writer)
                self._changed.set()
        except (BrokenFrame, ConnectionError):
            pass
        finally:
            self.brokers = {
                name: one for name, one in self.brokers.items() if one.connection is not writer
            }
            self._open.discard(writer)
            writer.close()
            self._changed.set()

    def _take(self, data: bytes, frames: FrameReader, writer: asyncio.StreamWriter) -> None:
        while data:
            room = frames.room()
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            for header, body in frames.received(len(piece)):
                self.asked.append(Asked(header, bytes(body)))
                if self.sends_garbage:
                    writer.write(GARBAGE)
                elif not self.hangs:
                    code, reply = self._serve_one(header, bytes(body), writer)
                    answer = header.answer(code, {}, None if code == 0 else "refused")
                    writer.write(frame_head(answer, len(reply)) + reply)

    def _serve_one(
        self, header: RemotingHeader, body: bytes, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes]:
        topic = header.ext.get("topic", "")
        if header.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = [QueueData(name) for name, one in self.brokers.items() if topic in one.topics]
            route = write_body(TopicRouteData(queue_datas=tuple(queues)), standard=True)
            return (0, route) if queues else (ResponseCode.TOPIC_NOT_EXIST, b"")
        if header.code == RequestCode.GET_BROKER_MEMBER_GROUP:
            found = self.brokers.get(header.ext["brokerName"])
            places = {} if found is None else {"0": found.address}
            return 0, json.dumps({"brokerMemberGroup": {"brokerAddrs": places}}).encode()
        if header.code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
            for one in self.brokers.values():
                if one.cluster == header.ext["clusterName"]:
                    one.topics.pop(topic, None)
            return 0, b""
        return self._believe(header, body, writer), b""

    def _believe(self, header: RemotingHeader, body: bytes, writer: asyncio.StreamWriter) -> int:
        name = header.ext["brokerName"]
        if self.refuses:
            return ResponseCode.SYSTEM_ERROR
        if header.code == RequestCode.UNREGISTER_BROKER:
            self.brokers.pop(name, None)
            return ResponseCode.SUCCESS
        assert header.code == RequestCode.REGISTER_BROKER
        table = read_body(RegisterBrokerBody, body).topic_config_serialize_wrapper
        known = self.brokers.get(name)
        if known is None and len(table.topic_config_table) == 1:
            return ResponseCode.SYSTEM_ERROR
        version = table.data_version.state_version
        address = header.ext["brokerAddr"]
        if known is not None and known.address != address and known.state_version > version:
            return ResponseCode.SUCCESS  # as RouteInfoManager, which ignores the older one
        topics = {**(known.topics if known else {}), **table.topic_config_table}
        self.brokers[name] = Registered(address, header.ext["clusterName"], topics, version, writer)
        return ResponseCode.SUCCESS
