"""A whole node with a certificate: its ports, a replica by TLS, strangers, a new certificate."""

import os
import re
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keelog.cli.main import run
from node.runtime.run_files import CONNECTING, FOLLOWING, read_follow_state, read_followers
from protocol.errors import NotAllowed
from tests.support.certificates import Authority
from tests.support.follower import HA, LogFollower, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("tls")]
HTTP = "serve.http=127.0.0.1:0"
SMALL = f"mapped_file_size_commit_log={4 * 1024 * 1024}"
HTTP_PLACE = re.compile(r"metrics (https://127\.0\.0\.1:[0-9]+)/metrics")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    file = tmp_path_factory.mktemp("broker") / "tls.properties"
    pair = authority.pair("server")
    file.write_text(
        "tls.test.mode.enable=false\n"
        f"tls.server.keyPath={pair.key}\n"
        f"tls.server.certPath={pair.cert}\n"
        f"tls.server.trustCertPath={authority.trust}\n"
    )
    settings = REMOTING, HA, HTTP, SMALL, f"tls_config_file={file}"
    root = tmp_path_factory.mktemp("node") / "store"
    with RunningNode(root, settings, queue_workers=1, readers=1) as running:
        yield running


def peer_of(node: RunningNode, authority: Authority, vip: int = 0) -> RemotingPeer:
    host, port = remoting_place(node.stderr)
    peer = RemotingPeer((host, port - vip))
    peer.socket = authority.client().wrap_socket(peer.socket, server_hostname="localhost")
    return peer


def number_at(place: tuple[str, int], authority: Authority) -> object:
    """The serial number of the certificate that a port shows."""
    with (
        socket.create_connection(place, timeout=20) as plain,
        authority.client().wrap_socket(plain, server_hostname="localhost") as made,
    ):
        certificate = made.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


@pytest.mark.attack(21, 47)
@pytest.mark.parametrize("vip", [0, 2])
def test_both_ports_of_rocketmqs_clients_serve_by_tls_alone(
    node: RunningNode, authority: Authority, vip: int
) -> None:
    with closing(peer_of(node, authority, vip)) as peer:
        assert peer.ask(310, send_fields("t"), b"hello").code == 0
    host, port = remoting_place(node.stderr)
    with closing(RemotingPeer((host, port - vip))) as plain:
        plain.send(310, send_fields("t"), b"plain")
        assert plain.is_closed()


def test_the_http_end_has_the_certificate_and_shows_its_days(
    node: RunningNode, authority: Authority
) -> None:
    found = HTTP_PLACE.search(node.stderr)
    assert found is not None, node.stderr
    with urllib.request.urlopen(f"{found[1]}/metrics", context=authority.client()) as answer:
        text = answer.read().decode()
    (left,) = re.findall(r"^keelog_certificate_left_seconds ([0-9.e+]+)$", text, re.MULTILINE)
    assert float(left) > 365 * 86_400
    assert 'keelog_check_ok{check="certificate"} 1.0' in text
    check = next(one for one in node.client.health().checks if one.name == "certificate")
    assert check.detail.startswith("ends in ")
    assert not check.needed


def test_a_consumer_of_a_group_comes_by_tls(node: RunningNode, authority: Authority) -> None:
    large = os.urandom(500_000)
    for count in range(20):
        node.client.send("groups", b"%d " % count + large)
    with pytest.raises(NotAllowed, match="speaks TLS alone"):
        node.client.consumer("g", "groups")
    came = []
    with node.client.consumer("g", "groups", start="earliest", tls=authority.client()) as consumer:
        for message in consumer:
            came.append(message.body)
            message.ack()
            if len(came) == 20:
                break
    assert sorted(came) == sorted(b"%d " % count + large for count in range(20))


def follow(node: RunningNode, *settings: str) -> list[str]:
    """The settings of a replica."""
    ha, remoting = followers_place(node), remoting_place(node.stderr)
    places = f"follow={ha[0]}:{ha[1]}", f"follow_remoting={remoting[0]}:{remoting[1]}"
    return [*places, SMALL, *settings]


def test_a_replica_with_a_certificate_copies_log_and_tables(
    node: RunningNode, authority: Authority, tmp_path: Path
) -> None:
    trust = f"tls_client_trust_cert_path={authority.trust}"
    own = authority.pair("own", "replica").client
    with closing(peer_of(node, authority)) as peer:
        for count in range(100):
            assert peer.ask(310, send_fields("t"), b"%d" % count * 1000).code == 0
    settings = follow(node, "tls_enable=true", trust, *own)
    with RunningNode(tmp_path / "copy", settings, queue_workers=1, readers=1) as copy:
        wait_until(lambda: read_follow_state(copy.root).state == FOLLOWING, copy.stderr)
        end = node.log_state().appended
        wait_until(lambda: copy.log_state().flushed >= end, "the log did not come")
        wait_until(lambda: not any(read_follow_state(copy.root).metadata.values()), "no tables")
        state = read_follow_state(copy.root)
        assert (state.acknowledged, state.connections) == (end, 1)
        name = "00000000000000000000"
        logs = [(root / "commitlog" / name).read_bytes()[:end] for root in (node.root, copy.root)]
        assert logs[0] == logs[1]


@pytest.mark.attack(65, 67)
@pytest.mark.parametrize("kind", ["none", "of another authority", "plain", "wrong master"])
def test_a_stranger_copies_nothing(
    node: RunningNode, authority: Authority, tmp_path: Path, kind: str
) -> None:
    stranger = Authority(tmp_path, "stranger")
    trust = f"tls_client_trust_cert_path={authority.trust}"
    settings = {
        "none": ["tls_enable=true", trust],
        "of another authority": ["tls_enable=true", trust, *stranger.pair("own").client],
        "plain": [],
        "wrong master": ["tls_enable=true", f"tls_client_trust_cert_path={stranger.trust}"],
    }[kind]
    with RunningNode(
        tmp_path / "copy", follow(node, *settings), queue_workers=1, readers=1
    ) as copy:
        wait_until(lambda: bool(read_follow_state(copy.root).disconnected), "it is connected")
        state = read_follow_state(copy.root)
        assert state.state != FOLLOWING
        assert copy.log_state().appended == 0
        if kind == "wrong master":
            assert "CERTIFICATE_VERIFY_FAILED" in state.disconnected
            assert state.state == CONNECTING
        else:
            why = "it is plain" if kind == "plain" else "no connection by TLS"
            wait_until(
                lambda: any(why in one.reason for one in read_followers(node.root).ended),
                f"not told of: {read_followers(node.root).ended}",
            )


def test_a_slave_without_tls_is_told_why(node: RunningNode) -> None:
    with LogFollower(followers_place(node)) as slave:
        slave.is_over.wait(20)
        assert slave.log == b""


@pytest.mark.attack(53)
def test_after_a_hangup_all_ports_show_the_new_certificate_and_old_connections_live(
    node: RunningNode, authority: Authority
) -> None:
    found = HTTP_PLACE.search(node.stderr)
    assert found is not None
    http = "127.0.0.1", int(found[1].rpartition(":")[2])
    places = remoting_place(node.stderr), http
    with closing(peer_of(node, authority)) as before:
        old = [number_at(place, authority) for place in places]
        assert old[0] == old[1]
        authority.pair("server")
        os.kill(node.pid, signal.SIGHUP)
        for place in places:
            wait_until(lambda: number_at(place, authority) != old[0], "no new one")  # noqa: B023
        assert before.ask(310, send_fields("t"), b"hello").code == 0


@pytest.mark.attack(54)
def test_a_key_that_others_may_read_is_no_start_and_changes_nothing(
    authority: Authority, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pair = authority.pair("open")
    pair.key.chmod(0o644)
    given = [word for one in pair.server for word in ("-X", one)]
    assert run(["serve", str(tmp_path / "store"), *given]) != 0
    assert "its mode is 0644" in capfd.readouterr().err
    assert not (tmp_path / "store").exists()


def test_the_versions_of_tls_are_new_ones_at_the_port(
    node: RunningNode, authority: Authority
) -> None:
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(remoting_place(node.stderr), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as made,
    ):
        assert made.version() == "TLSv1.2"
