"""A node that other hosts reach, with a login at each end: who gets in, and who does not."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import keelog
from keelog.cli.main import run
from node.supervisor.bind import free_ports
from protocol.errors import MqError
from protocol.remoting.codes import RequestCode
from tests.support.node import RunningNode
from tests.support.remoting import RemotingPeer

pytestmark = pytest.mark.nodes

TOKEN = "0123456789abcdef-token"
NO_PERMISSION = 16


def status_of(url: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=30
        ) as got:
            return int(got.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


@pytest.mark.attack(55, 64, 68)
def test_each_end_lets_in_who_is_known_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root, token = tmp_path / "store", tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    where = ["--store", str(root)]
    assert run(["user", "create", "operator", "--super", *where]) == 0
    assert run(["key", "init", str(root)]) == 0
    assert run(["key", "new", "operator"]) == 0
    assert run(["user", "set", "operator", "--public-key", "operator.key", *where]) == 0
    port, http, remoting = free_ports(3), free_ports(1), free_ports(3) + 2
    settings = (
        f"serve.remoting=0.0.0.0:{remoting}", "serve.ha_listen=0.0.0.0:0",
        f"serve.http=0.0.0.0:{http}", f"http_token_file={token}", "ha_allowed_peers=192.0.2.7",
    )  # fmt: skip
    bind = f"tcp://0.0.0.0:{port}"
    with RunningNode(root, settings, queue_workers=1, readers=1, bind=bind) as node:
        page = f"http://127.0.0.1:{http}"
        assert [status_of(f"{page}/{one}") for one in ("livez", "readyz")] == [200, 200]
        assert [status_of(f"{page}/metrics", one) for one in ("", "x" * 20, TOKEN)] == [
            401, 401, 200
        ]  # fmt: skip
        peer = RemotingPeer(("127.0.0.1", remoting))
        answer = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert answer.header.code == NO_PERMISSION
        peer.socket.close()
        url = f"tcp://127.0.0.1:{port}"
        with pytest.raises(MqError):
            keelog.connect(url, timeout=2.0)
        keys = {"key": "operator.key_secret", "server_key": root / "keelog/auth/server.key"}
        with keelog.connect(url, timeout=30, **keys) as client:  # type: ignore[arg-type]
            assert client.send("orders", b"x").status == "PUT_OK"
            checks = {one.name for one in client.health().checks}
        assert "open_ends" not in checks
        assert "everybody who reaches" not in node.stderr
    audit = (root / "keelog/auth/audit.http.log").read_text().splitlines()
    assert [json.loads(one)["outcome"] for one in audit] == ["refused", "refused", "done"]
    capsys.readouterr()
