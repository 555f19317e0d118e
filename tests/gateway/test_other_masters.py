"""Two masters of one broker name: both hear of it, and the older one takes no messages."""

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import cast
from unittest.mock import AsyncMock

import pytest

from keelog.client.core import ClientCore
from keelog.gateway.name_servers import OtherMasters, Pace, Registrar, promoted_at
from keelog.gateway.settings import BrokerName, LiveSettings
from keelog.gateway.topics import Topics
from node.runtime import disk
from node.runtime.run_files import OtherMaster, read_other_master, write_other_master
from node.runtime.settings import Settings
from node.store.config.topics_file import TopicsFile
from node.store.identity.places import create_store
from node.store.identity.roles import MASTER, REPLICA, StoreRole, save_role
from node.supervisor.bind import free_ports
from protocol.errors import ServiceNotAvailable
from tests.support.name_server import FakeNameServer
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING

QUICK = Pace(period_s=0.05, answer_s=2.0, spacing_s=0.01, look_s=0.05)
OLD, NEW = "192.0.2.1:10911", "192.0.2.2:10911"


def registrar(root: Path, server: FakeNameServer, place: str, epoch: int = 0) -> Registrar:
    """The registrar of a master `b` at `place`, whose store is `root`."""
    create_store(root)
    name = BrokerName("c", "b", announced=place, epoch=epoch)
    # Only requests to make a topic would use the client.
    topics = Topics(TopicsFile(root), cast(ClientCore, None), LiveSettings(Settings()), name)
    return Registrar([server.place], name, topics, QUICK, OtherMasters(root, name))


async def until(root: Path, wanted: OtherMaster | None) -> None:
    for _ in range(400):
        if read_other_master(root) == wanted:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{read_other_master(root)}, not {wanted}")


def addresses(server: FakeNameServer) -> list[str]:
    return [one.address for one in server.brokers.values()]


def fail(error: BaseException) -> None:
    raise error


def test_a_newer_master_that_is_dead_holds_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server:
            dead = f"127.0.0.1:{free_ports(1)}"  # its machine is lost, the name server has it still
            lost = registrar(tmp_path / "lost", server, dead, epoch=4_711)
            lost.start(fail)
            await server.until(lambda: "b" in server.brokers, "not registered")
            other = registrar(tmp_path / "other", server, OLD)
            other.start(fail)
            await until(tmp_path / "other", OtherMaster(dead, leads=False))
            await lost.stop()
            await until(tmp_path / "other", None)
            await other.stop()

    asyncio.run(scenario())


def test_an_address_that_nobody_can_have_is_that_of_no_master(tmp_path: Path) -> None:
    """A name server says what a broker told it."""
    others = OtherMasters(tmp_path, BrokerName("c", "b", OLD))
    for address in ("nonsense", "a.b:", f"{'x' * 70}.example:10911", "127.0.0.1:99999"):
        assert asyncio.run(others.lives(address)) is False


def test_what_a_full_disk_does_not_take_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, found = OtherMasters(tmp_path, BrokerName("c", "b", OLD)), OtherMaster(NEW, leads=True)
    (tmp_path / "keelog/run").mkdir(parents=True)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "replace_unsynced", full)
        others.note("ns", found)
    assert read_other_master(tmp_path) is None
    others.note("ns", found)
    assert read_other_master(tmp_path) == found


def test_the_older_master_hears_of_the_promoted_one_and_stays_off_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherMasters, "lives", AsyncMock(return_value=True))

    async def scenario() -> None:
        async with FakeNameServer() as server:
            promoted = registrar(tmp_path / "new", server, NEW, epoch=4_711)
            promoted.start(fail)
            await server.until(lambda: "b" in server.brokers, "not registered")
            old = registrar(tmp_path / "old", server, OLD)
            old.start(fail)
            await until(tmp_path / "old", OtherMaster(NEW, leads=True))
            assert server.brokers["b"].address == NEW
            await promoted.stop()
            await server.until(lambda: addresses(server) == [OLD], "it is not alone")
            # What it lacks it lacks still.
            assert read_other_master(tmp_path / "old") == OtherMaster(NEW, leads=True)
            await old.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    (told,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert told.getMessage() == "takes no messages: another master leads"
    assert NEW in str(getattr(told, "fields", {}))


def test_two_masters_of_which_none_is_newer_both_say_so_until_one_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeNameServer() as server:
            first = registrar(tmp_path / "first", server, OLD)
            second = registrar(tmp_path / "second", server, NEW)
            first.start(fail)
            second.start(fail)
            await until(tmp_path / "first", OtherMaster(NEW, leads=False))
            await until(tmp_path / "second", OtherMaster(OLD, leads=False))
            await second.stop()
            await until(tmp_path / "first", None)
            await first.stop()

    asyncio.run(scenario())


def test_a_node_that_another_master_replaced_takes_no_messages_until_it_starts_again(
    tmp_path: Path,
) -> None:
    with RunningNode(tmp_path / "s", (REMOTING,), queue_workers=1, readers=1) as node:
        node.client.send("t", b"before")
        assert {check.name: check.ok for check in node.client.health().checks}["masters"]
        write_other_master(node.root, OtherMaster(NEW, leads=True))

        def is_refused() -> bool:
            try:
                node.client.send("t", b"x", timeout=1.0)
            except ServiceNotAvailable as error:
                assert NEW in str(error)
                return True
            return False

        wait_until(is_refused, "messages are taken")
        health = node.client.health()
        found = {check.name: check for check in health.checks}
        assert not health.ready
        assert not found["masters"].ok
        assert NEW in found["masters"].detail
        assert "another_master" in found["appends"].detail
        found_bodies = [one.body for one in node.client.tail("t", "earliest", until_end=True)]
        assert b"before" in found_bodies
    with RunningNode(tmp_path / "s", (REMOTING,), queue_workers=1, readers=1) as node:
        node.client.send("t", b"after")


def test_only_a_promoted_store_is_newer_than_others(tmp_path: Path) -> None:
    create_store(tmp_path)
    assert promoted_at(tmp_path) == 0
    for role, newer in (
        (StoreRole(MASTER, "192.0.2.1:10912", 3, 500), 500),
        (StoreRole(MASTER, "", 3, 500), 0),
        (StoreRole(REPLICA, "192.0.2.1:10912", 3, 500), 0),
    ):
        save_role(tmp_path, role)
        assert promoted_at(tmp_path) == newer
