"""RocketMQ's Java and Go clients by TLS, and RocketMQ's own tests of it, at a node."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from scripts.rivals.rocketmq import class_path, missing
from tests.clients.programs import BUILD_S, CLIENTS, RUN_S, go_by_tls, run_scenario
from tests.clients.rocketmq_tests import PASSED, PROJECT, Servers, compare, run_classes
from tests.clients.sides import BROKER, CLUSTER, Side, running_broker, running_node
from tests.support.certificates import Authority, Pair
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, remoting_place

JAVA, GO = CLIENTS["java-5.5.0"], CLIENTS["go-2.1.2"]
THEIR_TESTS = ("tls.TlsIT", "tls.TlsMixIT", "tls.TlsMix2IT")
pytestmark = [pytest.mark.access, pytest.mark.timeout(RUN_S + BUILD_S)]
needs_java = pytest.mark.skipif(bool(missing()), reason=missing())
LIKE_A_BROKER = "recall_message_enable=true", "transaction_check_interval=1000"


def as_pkcs8(pair: Pair) -> Pair:
    """The key in the form that Netty reads."""
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pair


def properties(folder: Path, trust: Path, own: Pair | None) -> str:
    """The option of a client that verifies."""
    file = folder / f"{trust.stem}-{own is not None}.properties"
    lines = ["tls.test.mode.enable=false", "tls.client.authServer=true"]
    lines.append(f"tls.client.trustCertPath={trust}")
    if own is not None:
        lines += [f"tls.client.certPath={own.cert}", f"tls.client.keyPath={own.key}"]
    file.write_text("\n".join(lines))
    return f"-Dtls.config.file={file}"


@needs_java
@pytest.mark.parametrize("asks", ["none", "require"])
def test_a_java_client_sees_by_tls_what_it_sees_without(
    tmp_path: Path, request: pytest.FixtureRequest, asks: str
) -> None:
    program = JAVA.build(request.config.cache.mkdir("clients"))
    java, *rest = program.scenario
    (tmp_path / "other").mkdir()
    ours, stranger = Authority(tmp_path), Authority(tmp_path / "other", "stranger")
    own = as_pkcs8(ours.pair("own", "client"))
    settings = [REMOTING, *ours.pair("server").server, *LIKE_A_BROKER]
    settings += [f"tls_server_need_client_auth={asks}", f"tls_server_trust_cert_path={ours.trust}"]
    shown = own if asks == "require" else None

    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        place = "{}:{}".format(*remoting_place(node.stderr))

        def run(topic: str, *options: str) -> subprocess.CompletedProcess[str]:
            command = [java, "-Dtls.enable=true", *options, *rest, place, topic]
            return subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S, check=False
            )

        done = run("verifies", properties(tmp_path, ours.trust, shown))
        assert (done.stdout, done.returncode) == (JAVA.transcript(), 0), done.stderr[-4000:]
        refused = run("mistrusts", properties(tmp_path, stranger.trust, shown))
        assert refused.returncode
        if asks == "require":
            assert run("shows_none", properties(tmp_path, ours.trust, None)).returncode
        else:
            # RocketMQ's test mode, its default, in which a client trusts anybody.
            assert run("test_mode").stdout == JAVA.transcript()


@pytest.mark.skipif(bool(GO.missing()), reason=GO.missing())
@pytest.mark.parametrize("mode", ["enforcing", "disabled"])
def test_a_go_client_with_tls_sees_what_it_sees_without_and_nothing_where_there_is_none(
    tmp_path: Path, request: pytest.FixtureRequest, mode: str
) -> None:
    program = go_by_tls(request.config.cache.mkdir("clients"))
    settings = [REMOTING, *Authority(tmp_path).pair("server").server, *LIKE_A_BROKER]
    settings += [f"tls_server_mode={mode}"]
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        place = "{}:{}".format(*remoting_place(node.stderr))
        done = run_scenario(program.scenario, place, "go_by_tls", tmp_path)
        if mode == "disabled":
            assert (done.stdout, done.returncode) == ("", 2), done.stderr[-4000:]
            return
        assert (done.stdout, done.returncode) == (GO.transcript(), 0), done.stderr[-4000:]
        plain = GO.build(request.config.cache.mkdir("clients"))
        assert run_scenario(plain.scenario, place, "go_plain", tmp_path).returncode == 2


@pytest.fixture
def permissive(tmp_path: Path) -> Iterator[tuple[Servers, Servers]]:
    """A broker with its name server, which serve by TLS and plainly by default, and a node which is
    told so."""
    settings = (*Authority(tmp_path).pair("server").server, "tls_server_mode=permissive")
    with (
        running_broker(tmp_path / "rocketmq") as broker,
        running_node(tmp_path / "store", settings=settings) as (node, _),
    ):
        yield _servers("RocketMQ", broker), _servers("Keelog", node)


def _servers(name: str, side: Side) -> Servers:
    return Servers(name, side.name_server, CLUSTER, BROKER)


@needs_java
def test_rocketmqs_own_tests_of_tls_pass_at_a_node(
    permissive: tuple[Servers, Servers], tmp_path: Path
) -> None:
    """Producer and consumer by TLS, and each of them while the other one is plain."""
    found = run_classes(THEIR_TESTS, permissive, class_path(PROJECT), tmp_path / "tests", 1)
    compared = list(compare(*(found[one.side] for one in permissive)))
    assert len(compared) == len(THEIR_TESTS)
    assert all(one.passed for one in compared), compared


@needs_java
def test_rocketmqs_test_of_tls_passes_where_nobody_is_served_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of RocketMQ that cannot make TLS goes on without it, which a permissive node does
    not show."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dtls.enable=true")  # the tools that make its topic
    settings = (*Authority(tmp_path).pair("server").server, "tls_server_mode=enforcing")
    with running_node(tmp_path / "store", settings=settings) as (side, _):
        servers = [_servers("Keelog", side)]
        found = run_classes(THEIR_TESTS[:1], servers, class_path(PROJECT), tmp_path / "tests", 1)
    outcomes = [one.outcome for one in found["Keelog"][THEIR_TESTS[0]].values()]
    assert outcomes == [PASSED]
