"""RocketMQ's Java client over TLS: its scenario ends as at a broker without it."""

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.clients.programs import BUILD_S, CLIENTS
from tests.support.certificates import Authority, Pair
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, remoting_place

RUN_S = 300
JAVA = CLIENTS["java-5.5.0"]
pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(RUN_S + BUILD_S),
    pytest.mark.skipif(bool(JAVA.missing()), reason=JAVA.missing()),
]
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
