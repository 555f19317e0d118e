"""A machine without IPv4: every end of a node, its client, its followers and its name servers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nodes

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 240
ALONE = """
ip link set lo up
ip addr del 127.0.0.1/8 dev lo
ip addr add fd00::7/128 dev lo nodad
exec "$@"
"""
"""Inside a network namespace, which has a loopback alone."""
OPEN = """
import asyncio, re, subprocess, sys
from contextlib import ExitStack
from pathlib import Path
from keelog.testing import TestNode
from tests.support.name_server import FakeNameServer
from tests.support.node import wait_until

ENDS = {
    "serve.remoting": "[::]:0", "serve.ha_listen": "[::]:0", "serve.http": "[::1]:0",
    "serve.open_ends": "remoting,ha",
}

async def registers(folder):
    async with FakeNameServer("fd00::7") as names:
        settings = ENDS | {"broker.namesrv_addr": names.place}
        node = TestNode(folder / "node", settings)
        await asyncio.to_thread(node.start)
        while not names.brokers:
            await asyncio.sleep(0.05)
        (found,) = names.brokers.values()
    return node, found.address

folder = Path(sys.argv[1])
for name in ("node", "copy"):
    (folder / name).mkdir()
node, address = asyncio.run(registers(folder))
assert address.startswith("[fd00::7]:"), address
ends = ExitStack()
ends.callback(node.stop)
client = ends.enter_context(node.connect())
"""
"""A new store, RocketMQ's ends at all addresses, and a name server, with `ends` open."""
USE = """
with ends:
    assert client.endpoint.startswith("tcp://[::1]:"), client.endpoint
    assert client.routes().remoting == f"tcp://[::1]:{address.rpartition(':')[2]}"
    sent = client.send("orders", b"apples", keys="k1", queue_id=0)
    assert client.get(sent.msg_id).body == b"apples"
    assert client.pull("orders", 0, sent.queue_offset, wait=5).messages[0].body == b"apples"
    with client.consumer("pickers", "orders", start="earliest") as consumer:
        assert consumer.get(60).body == b"apples"
    assert client.health().ready, client.health()
"""
COPY = """
with ends:
    sent = client.send("orders", b"apples", queue_id=0)
    ha = re.search(r"followers at \\[::\\]:([0-9]+)", node.log)[1]
    copy = {"follow": f"[::1]:{ha}", "follow_remoting": address}
    with TestNode(folder / "copy", copy) as replica, replica.connect() as other:
        wait_until(lambda: other.get(sent.msg_id).body == b"apples", "no copy")
bench = [sys.executable, "-m", "keelog", "bench", "send", "--duration", "1"]
subprocess.run(bench, check=True, timeout=120, cwd=folder)
"""


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """The words before a command that runs it without IPv4."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("a network namespace needs root, and the programs ip and unshare")
    words = ["unshare", "-n", "sh", "-ec", ALONE, "sh"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no network namespace without IPv4 here: {tried.stderr.strip()}")
    return words


@pytest.mark.parametrize(
    "part", [USE, pytest.param(COPY, marks=pytest.mark.faults)], ids=["a group", "a copy, a bench"]
)
def test_all_ends_work_by_ipv6_alone(tmp_path: Path, alone: list[str], part: str) -> None:
    words = [*alone, sys.executable, "-c", OPEN + part, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=ROOT, env=env
    )
    assert done.returncode == 0, done.stderr


def test_the_default_address_is_refused_with_the_one_that_there_is(
    tmp_path: Path, alone: list[str]
) -> None:
    words = [*alone, sys.executable, "-m", "keelog", "serve", str(tmp_path / "store")]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=ROOT
    )
    assert done.returncode == 2, done.stderr
    assert "cannot listen at 127.0.0.1:7850" in done.stderr
    assert "Cannot assign requested address" in done.stderr
    assert list(tmp_path.iterdir()) == []
