"""A node that signs: what name servers and other masters hear of it, and of an old master."""

import asyncio
import logging
from pathlib import Path
from typing import cast

import pytest

from keelog.client.core import ClientCore
from keelog.gateway import name_servers
from keelog.gateway.name_servers import OtherMasters, Refuses, Registrar
from keelog.gateway.settings import BrokerName, LiveSettings
from keelog.gateway.topics import Topics
from node.access.own_credentials import OwnCredentials
from node.runtime.run_files import (
    FollowState,
    OtherMaster,
    read_other_master,
    write_follow_state,
)
from node.runtime.settings import Settings
from node.store.config.topics_file import Topic, TopicsFile
from node.store.identity.places import create_store
from node.store.identity.roles import MASTER, StoreRole, save_role
from protocol.access.credentials import INNER_FORM, Credentials
from protocol.access.signature import is_signed
from protocol.remoting.headers import RemotingHeader
from tests.gateway.test_registrar import QUICK
from tests.support.asked_node import REFUSED, AskedNode, Reply
from tests.support.name_server import FakeNameServer

NAME = BrokerName("c", "b", announced="192.0.2.7:10911")
USER, SECRET = "inner", "inner-secret"
AS_MASTER, AS_SLAVE = b"brokerRole=ASYNC_MASTER\nbrokerId=0\n", b"brokerRole=SLAVE\nbrokerId=1\n"


@pytest.fixture
def own(tmp_path: Path) -> OwnCredentials:
    path = tmp_path / "inner.json"
    path.touch(0o600)
    path.write_bytes(INNER_FORM.text(Credentials(USER, SECRET)))
    return OwnCredentials(str(path))


def guarded(settings: bytes) -> AskedNode:
    """A broker where users log in; `settings` is what it says of itself."""

    def decide(header: RemotingHeader, body: bytes) -> Reply:
        good = is_signed(SECRET, header.ext, body, header.version)
        return (0, None, settings) if good else REFUSED

    return AskedNode(decide)


def test_each_request_to_a_name_server_is_signed(tmp_path: Path, own: OwnCredentials) -> None:
    (tmp_path / "config").mkdir()
    TopicsFile(tmp_path).put([Topic("first", 4, 4)], 1)
    topics = Topics(TopicsFile(tmp_path), cast(ClientCore, None), LiveSettings(Settings()), NAME)

    async def scenario() -> None:
        async with FakeNameServer() as server:
            others = OtherMasters(tmp_path, NAME, None, own)
            registrar = Registrar([server.place], NAME, topics, QUICK, others, None, own)
            failed: list[BaseException] = []
            registrar.start(failed.append)
            await server.until(lambda: "b" in server.brokers, "not registered")
            await registrar.stop()
            assert {901, 103, 104} <= set(server.codes())
            for header, body in server.asked:
                assert header.ext["AccessKey"] == USER
                assert is_signed(SECRET, header.ext, body, header.version)
            assert failed == []

    asyncio.run(scenario())


def test_a_master_with_users_is_seen_by_who_logs_in_and_a_slave_is_no_master(
    tmp_path: Path, own: OwnCredentials
) -> None:
    signed, stranger = OtherMasters(tmp_path, NAME, None, own), OtherMasters(tmp_path, NAME)
    with guarded(AS_MASTER) as master, guarded(AS_SLAVE) as slave:
        assert asyncio.run(signed.lives(master.place)) is True
        assert asyncio.run(signed.lives(slave.place)) is False
        for one in (master, slave):
            refused = asyncio.run(stranger.lives(one.place))
            assert isinstance(refused, Refuses)
            assert "inner_client_authentication_credentials_file" in refused.why


def promoted(root: Path, old_master: str) -> None:
    """A store that followed a master there, and was promoted."""
    create_store(root)
    save_role(root, StoreRole(MASTER, old_master, 1, 100))
    write_follow_state(root, FollowState(remoting=old_master))


async def watched(others: OtherMasters) -> None:
    """A few looks at the place of the old master."""
    task = asyncio.ensure_future(others.watch_old_master(1))
    await asyncio.sleep(0.3)
    task.cancel()


def test_an_old_master_with_users_is_noticed_by_a_node_with_credentials(
    tmp_path: Path, own: OwnCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_servers, "LOOK_S", 0.02)
    with guarded(AS_MASTER) as old:
        promoted(tmp_path / "store", old.place)
        asyncio.run(watched(OtherMasters(tmp_path / "store", NAME, None, own)))
        assert read_other_master(tmp_path / "store") == OtherMaster(old.place, leads=False)


def test_without_credentials_it_is_told_once_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(name_servers, "LOOK_S", 0.02)
    with guarded(AS_MASTER) as old:
        promoted(tmp_path / "store", old.place)
        asyncio.run(watched(OtherMasters(tmp_path / "store", NAME)))
        assert len(old.asked) > 2
    assert read_other_master(tmp_path / "store") is None
    (told,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert told.getMessage() == "not known whether the old master is still one"
    assert "inner_client_authentication_credentials_file" in str(getattr(told, "fields", {}))


def test_a_newer_master_that_refuses_to_say_more_leads(tmp_path: Path) -> None:
    """The name server has said that it is the master: two would take messages."""

    async def scenario() -> None:
        async with FakeNameServer() as server:
            with guarded(AS_MASTER) as newer:
                made = []
                for name, place, epoch in (("new", newer.place, 9), ("old", NAME.announced, 0)):
                    root = tmp_path / name
                    create_store(root)
                    broker = BrokerName("c", "b", announced=place, epoch=epoch)
                    file, live = TopicsFile(root), LiveSettings(Settings())
                    topics = Topics(file, cast(ClientCore, None), live, broker)
                    others = OtherMasters(root, broker)
                    one = Registrar([server.place], broker, topics, QUICK, others)
                    one.start(lambda error: None)
                    await server.until(lambda: "b" in server.brokers, "not registered")
                    made.append(one)
                wanted = OtherMaster(newer.place, leads=True)
                for _ in range(400):
                    if read_other_master(tmp_path / "old") == wanted:
                        break
                    await asyncio.sleep(0.05)
                assert read_other_master(tmp_path / "old") == wanted
                for one in made:
                    await one.stop()

    asyncio.run(scenario())
