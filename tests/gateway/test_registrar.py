"""How a gateway registers at name servers, and what it makes of their ends, silences and lies."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

from keelog.client.core import ClientCore
from keelog.gateway.name_servers import Pace, Registrar
from keelog.gateway.settings import SELF_TEST_TOPIC, TBW102, BrokerName, LiveSettings
from keelog.gateway.topics import Topics
from node.runtime.settings import Settings
from node.store.config.topics_file import Topic, TopicsFile
from protocol.record.codec import CRC_MASK
from protocol.remoting.bodies import RegisterBrokerBody
from protocol.remoting.codes import VERSION, RequestCode
from protocol.remoting.java_json import parse_java_json, read_body
from tests.protocol.remoting.golden_frames import ReadFrame, golden_frames, read_one
from tests.support.name_server import FakeNameServer
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields

REGISTER, UNREGISTER = int(RequestCode.REGISTER_BROKER), int(RequestCode.UNREGISTER_BROKER)
NAME = BrokerName("c", "b", announced="192.0.2.7:10911")
QUICK = Pace(
    period_s=60, answer_s=0.3, pause_s_min=0.05, pause_s_max=0.2, spacing_s=0.01, look_s=0.02
)


class Site:
    """The topics of a node, and its registrar."""

    def __init__(self, root: Path, servers: list[str], pace: Pace, settings: Settings) -> None:
        self.file = TopicsFile(root)
        self.file.put([Topic("first", 4, 4)], 1)
        # Only requests to make a topic would use the client.
        topics = Topics(TopicsFile(root), cast(ClientCore, None), LiveSettings(settings), NAME)
        self.registrar = Registrar(servers, NAME, topics, pace)
        self.failed: list[BaseException] = []
        self.registrar.start(self.failed.append)

    def add(self, name: str) -> None:
        """As the writer adds a topic."""
        self.file.put([Topic(name, 2, 2, 4)], 2)

    def remove(self, name: str) -> None:
        """As the writer removes one."""
        self.file.remove(name, 3)


@asynccontextmanager
async def site(
    root: Path, servers: list[str], pace: Pace = QUICK, settings: Settings | None = None
) -> AsyncIterator[Site]:
    (root / "config").mkdir()
    running = Site(root, servers, pace, settings or Settings())
    try:
        yield running
    finally:
        await running.registrar.stop()
        assert running.failed == []


async def said(caplog: pytest.LogCaptureFixture, server: FakeNameServer, count: int) -> list[str]:
    """The events about a name server, in their order, once there are so many."""
    for _ in range(100):
        lines = [(one.getMessage(), getattr(one, "fields", {})) for one in caplog.records]
        found = [event for event, values in lines if values.get("name_server") == server.place]
        if len(found) >= count:
            break
        await asyncio.sleep(0.05)
    return found


REGISTERED, NOT_REGISTERED = "registered at a name server", "not registered at a name server"


def golden_103() -> ReadFrame:
    """The first one that a broker sent."""
    frames = (read_one(one.data) for one in golden_frames() if one.server == "name server")
    return next(one for one in frames if one.header.code == REGISTER and not one.header.is_answer)


def test_all_topics_and_the_standard_ones_are_registered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]):
            await server.until(lambda: "b" in server.brokers, "not registered")
            broker = server.brokers["b"]
            assert (broker.address, broker.cluster) == ("192.0.2.7:10911", "c")
            shown = {
                name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
                for name, topic in broker.topics.items()
            }
            assert shown == {
                "first": (4, 4, 6), "b": (1, 1, 7), "c": (16, 16, 7), "c_REPLY_TOPIC": (1, 1, 6),
                SELF_TEST_TOPIC: (1, 1, 6), TBW102: (8, 8, 7),
            }  # fmt: skip

    asyncio.run(scenario())


def test_the_frame_has_the_fields_of_a_brokers(tmp_path: Path) -> None:
    golden = golden_103()

    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]):
            await server.until(lambda: bool(server.asked), "nothing came")
            header, body = server.asked[0]
            assert set(header.ext) == set(golden.header.ext)
            assert header.version == golden.header.version == VERSION
            assert header.ext["brokerId"] == golden.header.ext["brokerId"] == "0"
            ours, theirs = parse_java_json(body.decode()), parse_java_json(golden.body.decode())
            assert set(ours) == set(theirs)
            wrapper, known = (one["topicConfigSerializeWrapper"] for one in (ours, theirs))
            assert set(wrapper) == set(known)
            assert set(wrapper["topicConfigTable"][TBW102]) == set(
                known["topicConfigTable"][TBW102]
            )
            assert wrapper["topicConfigTable"][TBW102] == known["topicConfigTable"][TBW102]

    asyncio.run(scenario())


def test_the_checksum_is_that_of_a_broker() -> None:
    golden = golden_103()
    assert str(crc32(golden.body) & CRC_MASK) == golden.header.ext["bodyCrc32"]


def test_a_broker_without_topics_begins_with_more_than_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "config").mkdir()
        name = BrokerName("same", "same", announced="h:1")
        settings = Settings(auto_create_topic_enable=False)
        topics = Topics(TopicsFile(tmp_path), cast(ClientCore, None), LiveSettings(settings), name)
        async with FakeNameServer() as server:
            registrar = Registrar([server.place], name, topics, QUICK)
            registrar.start(lambda error: None)
            await server.until(lambda: "same" in server.brokers, "refused")
            await registrar.stop()

    asyncio.run(scenario())


def test_a_new_topic_is_registered_at_once_and_all_are_again_when_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]) as running:
            await server.until(lambda: "b" in server.brokers, "not registered")
            running.add("second")
            await server.until(lambda: "second" in server.brokers["b"].topics, "not told")
            assert server.brokers["b"].topics["second"].perm == 4
            versions = [
                read_body(RegisterBrokerBody, one.body).topic_config_serialize_wrapper.data_version
                for one in server.asked
            ]
            assert [one.counter for one in versions] == [1, 2]
            assert server.connections == 1

    asyncio.run(scenario())


def test_a_topic_that_is_removed_loses_its_route_unless_others_have_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]) as running:
            running.add("shared")
            await server.until(
                lambda: "b" in server.brokers and "shared" in server.brokers["b"].topics, "no topic"
            )
            known = server.brokers["b"]
            server.brokers["other"] = known._replace(topics={"shared": known.topics["shared"]})
            running.remove("shared")
            running.remove("first")
            await server.until(lambda: "first" not in server.brokers["b"].topics, "not withdrawn")
            running.add("last")
            await server.until(lambda: "last" in server.brokers["b"].topics, "not told")
            assert "shared" in server.brokers["other"].topics
            assert server.connections == 1

    asyncio.run(scenario())


def test_it_is_registered_again_when_the_period_has_passed(tmp_path: Path) -> None:
    async def scenario() -> None:
        pace = QUICK._replace(period_s=0.05)
        async with FakeNameServer() as server, site(tmp_path, [server.place], pace):
            await server.until(lambda: server.codes().count(REGISTER) >= 4, "not again")
            assert server.connections == 1

    asyncio.run(scenario())


def test_a_stop_unregisters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server:
            async with site(tmp_path, [server.place]):
                await server.until(lambda: "b" in server.brokers, "not registered")
            assert server.codes() == [REGISTER, UNREGISTER]
            assert dict(server.asked[1].header.ext) == {
                "brokerName": "b", "brokerAddr": "192.0.2.7:10911",
                "clusterName": "c", "brokerId": "0",
            }  # fmt: skip

    asyncio.run(scenario())


def test_a_name_server_that_comes_back_gets_all_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]) as running:
            await server.until(lambda: "b" in server.brokers, "not registered")
            await server.stop()
            await asyncio.sleep(0.5)
            running.add("meanwhile")
            await server.start()
            await server.until(lambda: "b" in server.brokers, "not back")
            assert {"first", "meanwhile"} <= set(server.brokers["b"].topics)
            events = await said(caplog, server, 3)
            assert events == [REGISTERED, NOT_REGISTERED, REGISTERED], "not each try"

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["hangs", "sends_garbage", "refuses"])
def test_one_that_misbehaves_is_tried_again_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]):
            await server.until(lambda: "b" in server.brokers, "not registered")
            setattr(server, fault, True)
            began = len(server.asked)
            # Its connection ends, or a topic changes: the next request meets the fault.
            server.brokers["b"].connection.transport.abort()
            await server.until(lambda: len(server.asked) >= began + 3, "not tried again")
            setattr(server, fault, False)
            await server.until(lambda: "b" in server.brokers, "not registered again")
            events = await said(caplog, server, 3)
            assert events == [REGISTERED, NOT_REGISTERED, REGISTERED]

    asyncio.run(scenario())


def test_a_refusal_costs_no_connection_as_a_name_server_would_forget_the_node(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server, site(tmp_path, [server.place]) as running:
            await server.until(lambda: "b" in server.brokers, "not registered")
            server.refuses = True
            running.add("second")
            await server.until(lambda: server.codes().count(REGISTER) >= 3, "not tried again")
            assert "b" in server.brokers
            server.refuses = False
            await server.until(lambda: "second" in server.brokers["b"].topics, "not told")
            assert server.connections == 1

    asyncio.run(scenario())


def test_one_name_server_that_is_away_does_not_matter_to_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with FakeNameServer() as here, FakeNameServer() as away:
            await away.stop()
            async with site(tmp_path, [away.place, here.place]):
                await here.until(lambda: "b" in here.brokers, "not registered")
                await asyncio.sleep(0.3)
                assert await said(caplog, away, 1) == [NOT_REGISTERED]
                await away.start()
                await away.until(lambda: "b" in away.brokers, "not found")
            assert UNREGISTER in here.codes()
            assert UNREGISTER in away.codes()

    asyncio.run(scenario())


def test_a_stop_does_not_wait_for_one_that_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with FakeNameServer() as server:
            async with site(tmp_path, [server.place], QUICK._replace(leave_s=0.2)):
                await server.until(lambda: "b" in server.brokers, "not registered")
                server.hangs = True
                began = loop.time()
            assert loop.time() - began < 2

    asyncio.run(scenario())


def test_changes_one_after_the_other_are_few_registrations(tmp_path: Path) -> None:
    async def scenario() -> None:
        pace = QUICK._replace(spacing_s=0.2)
        async with FakeNameServer() as server, site(tmp_path, [server.place], pace) as running:
            await server.until(lambda: "b" in server.brokers, "not registered")
            for number in range(30):
                running.add(f"t{number}")
                await asyncio.sleep(0.01)
            await server.until(lambda: "t29" in server.brokers["b"].topics, "not told")
            assert len(server.asked) < 10

    asyncio.run(scenario())


def test_without_name_servers_nothing_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, []):
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("server", "announced", "broker_id", "events"),
    [
        ("127.0.0.1:1", "127.0.0.1:2", 0, []),
        ("192.0.2.1:1", "192.0.2.7:2", 0, []),
        ("ns1:1", "127.0.0.1:2", 0, ["other machines cannot connect to the address"]),
        ("127.0.0.1:1", "h:2", 1, ["the node is registered as a slave, but follows no master"]),
    ],
)
def test_what_is_seldom_meant_is_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    server: str,
    announced: str,
    broker_id: int,
    events: list[str],
) -> None:
    async def scenario() -> None:
        name = BrokerName("c", "b", "", broker_id, announced)
        topics = Topics(
            TopicsFile(tmp_path), cast(ClientCore, None), LiveSettings(Settings()), name
        )
        registrar = Registrar([server], name, topics, QUICK)
        registrar.start(lambda error: None)
        await registrar.stop()

    asyncio.run(scenario())
    found = [one.getMessage() for one in caplog.records]
    assert len(found) == len(events)
    for event, expected in zip(found, events, strict=True):
        assert event.startswith(expected)


@pytest.mark.process
def test_a_node_registers_tells_of_topics_and_unregisters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server:
            settings = (REMOTING, f"broker.namesrv_addr={server.place}", "broker.broker_name=n1")
            node = RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1)
            await asyncio.to_thread(node.start)
            try:
                await server.until(lambda: "n1" in server.brokers, "not registered")
                place = remoting_place(node.stderr)
                assert server.brokers["n1"].address == f"{place[0]}:{place[1]}"
                await asyncio.to_thread(send_one, place, "sent")
                await server.until(lambda: "sent" in server.brokers["n1"].topics, "not told")
                await asyncio.to_thread(node.client.create_topic, "made", 3)
                await server.until(lambda: "made" in server.brokers["n1"].topics, "not told")
            finally:
                await asyncio.to_thread(node.stop)
            assert server.codes()[-1] == UNREGISTER

    asyncio.run(scenario())


def send_one(place: tuple[str, int], topic: str) -> None:
    peer = RemotingPeer(place)
    assert peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x").code == 0
    peer.close()
