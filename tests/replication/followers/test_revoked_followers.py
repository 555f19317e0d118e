"""Those who follow, and may be no more: addresses that are named no more, certificates that are
trusted no more."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelog.replication.followers.allowed import LOOK_S, FollowerPeers
from node.runtime.event_log import note_hangup
from protocol.errors import BadRequest, RefusedError
from tests.support.certificates import Authority
from tests.support.follower import HA, LogFollower, followers_place
from tests.support.node import RunningNode, wait_until

HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    """A file that names one network and one address."""
    path = tmp_path / "followers"
    path.write_text("# replicas\n10.1.0.0/16, 192.0.2.7\n")
    path.chmod(0o644)
    return path


def test_a_file_names_addresses_and_a_change_counts_at_the_next_look(peers: Path) -> None:
    allowed = FollowerPeers(f"file:{peers}")
    assert allowed.allow("10.1.2.3")
    assert allowed.allow("192.0.2.7")
    assert not allowed.allow("192.0.2.8")
    assert not allowed.look(100.0)
    peers.write_text("192.0.2.8 # the new one\n")
    assert not allowed.look(100.0 + LOOK_S / 2)
    assert allowed.look(100.0 + LOOK_S)
    assert [allowed.allow(one) for one in ("192.0.2.7", "192.0.2.8")] == [False, True]


def test_after_a_hangup_the_file_is_looked_at_at_once(peers: Path) -> None:
    allowed = FollowerPeers(f"file:{peers}")
    allowed.look(100.0)
    peers.write_text("::1")
    note_hangup()
    assert allowed.look(100.0)


@pytest.mark.parametrize("text", ["", "# nobody for now\n", " ,\n"])
def test_a_file_that_names_nobody_allows_nobody(peers: Path, text: str) -> None:
    peers.write_text(text)
    assert not FollowerPeers(f"file:{peers}").allow(HERE)


@pytest.mark.parametrize("harm", ["gone", "broken", "open", "folder"])
def test_a_file_that_cannot_be_used_is_no_start_and_later_changes_nothing(
    peers: Path, harm: str
) -> None:
    allowed = FollowerPeers(f"file:{peers}")
    if harm == "broken":
        peers.write_text("everybody")
    elif harm == "open":
        peers.chmod(0o666)
    else:
        peers.unlink()
    if harm == "folder":
        peers.mkdir()
    assert not allowed.look(100.0)
    assert allowed.allow("192.0.2.7")
    assert not allowed.allow(HERE)
    with pytest.raises((BadRequest, RefusedError), match=r"ha_allowed_peers|others may"):
        FollowerPeers(f"file:{peers}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def trust(authority: Authority) -> Path:
    path = authority.trust.with_name("trusted.pem")
    path.write_bytes(authority.trust.read_bytes())
    return path


@pytest.fixture(scope="module")
def allowed(authority: Authority) -> Path:
    path = authority.trust.with_name("followers")
    path.write_text(f"{HERE}\n{THERE}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def node(authority: Authority, trust: Path, allowed: Path) -> Iterator[RunningNode]:
    settings = (
        HA, *authority.pair("server").server, f"tls_server_trust_cert_path={trust}",
        "tls_server_mode=permissive", f"ha_allowed_peers=file:{allowed}",
    )  # fmt: skip
    root = authority.trust.with_name("store")
    with RunningNode(root, settings, queue_workers=1, readers=1) as running:
        for _ in range(3):
            running.client.send("t", b"x" * 1_000, acks="flushed")
        yield running


def follower(node: RunningNode, **how: object) -> LogFollower:
    found = LogFollower(followers_place(node), **how)  # type: ignore[arg-type]
    found.connect()
    found.wait_for(node.log_state().flushed)
    return found


def comes_back(one: LogFollower) -> None:
    def follows() -> bool:
        one.close()
        one.connect()
        return not one.is_over.wait(0.2)

    wait_until(follows, f"it does not come back: {one}")


@pytest.mark.process
def test_an_address_that_is_named_no_more_loses_its_stream(
    node: RunningNode, allowed: Path
) -> None:
    gone, stays = (follower(node, source=one) for one in (HERE, THERE))
    before = allowed.read_text()
    allowed.write_text(f"{THERE}\n")
    assert gone.is_over.wait(20)
    node.client.send("t", b"after", acks="flushed")
    stays.wait_for(node.log_state().flushed)
    assert gone.end < stays.end
    gone.connect()
    assert gone.is_over.wait(20)
    assert gone.end < stays.end
    allowed.write_text(before)
    comes_back(gone)
    gone.wait_for(node.log_state().flushed)
    for one in (gone, stays):
        one.close()


@pytest.mark.process
def test_who_came_by_a_certificate_that_is_trusted_no_more_loses_its_stream(
    node: RunningNode, authority: Authority, trust: Path, tmp_path: Path
) -> None:
    mine = authority.client(authority.pair("replica", "replica"))
    replica, plain = follower(node, tls=mine), follower(node)
    before, other = trust.read_bytes(), Authority(tmp_path, "other")
    trust.write_bytes(other.trust.read_bytes())
    os.kill(node.pid, signal.SIGHUP)
    assert replica.is_over.wait(20)
    assert not plain.is_over.is_set()
    replica.connect()
    assert replica.is_over.wait(20)
    node.client.send("t", b"after", acks="flushed")
    plain.wait_for(node.log_state().flushed)
    assert replica.end < plain.end
    trust.write_bytes(before)
    os.kill(node.pid, signal.SIGHUP)
    comes_back(replica)
    replica.wait_for(node.log_state().flushed)
    for one in (replica, plain):
        one.close()
