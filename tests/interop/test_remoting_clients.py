"""RocketMQ's own Java client, unmodified, at a node with a gateway: no JVM on the server's side."""

import subprocess
from pathlib import Path

import pytest

from keelog.cli.main import run
from node.runtime.settings import load_settings
from node.store.identity.places import create_store
from node.store.opening import open_store
from node.store.verify.verify import verify
from tests.interop import probe
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, remoting_place

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]
COUNT = 200
RUN_S = 240
JAVA = Path(probe.RUN).parent


def run_client(home: Path, program: str, *arguments: str) -> dict[str, str]:
    """What a program printed. Its client is RocketMQ's of 5.5.0."""
    libraries = (JAVA / "target" / "cp.txt").read_text().strip()
    command = [
        "java",
        "-Xmx512m",
        f"-Duser.home={home}",
        "-cp",
        f"{JAVA}/target/classes:{libraries}",
    ]
    done = subprocess.run(
        [*command, program, *arguments],
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.partition("=") for line in done.stdout.splitlines() if "=" in line)
    return {name: value for name, _, value in lines}


def good_facts(queues: int, brokers: int) -> dict[str, str]:
    """What RemotingClient prints after its first line, where all goes well."""
    return {
        "answered": "true failed 0",
        "batch": "SEND_OK",
        "queues": str(queues),
        "brokers": str(brokers),
        "all": "true",
        "shared": "true",
        "taken over": "true",
        "all after it": "true",
        "goes on": "true",
        "repeated": "0",
        "by SQL": "true",
        "by SQL in the end": str(COUNT),
        "bad SQL": "true",
    }


def test_producer_and_push_consumers_share_take_over_and_go_on(tmp_path: Path) -> None:
    probe.build()
    root = tmp_path / "store"
    with RunningNode(root, (REMOTING,), queue_workers=1, readers=1) as node:
        host, port = remoting_place(node.stderr)
        found = run_client(tmp_path, "RemotingClient", f"{host}:{port}", "orders", str(COUNT))
        first = found.pop("first").split()
        assert first[0] == "SEND_OK"
        assert found == good_facts(queues=4, brokers=1)
        by_id = node.client.get(first[1])
        assert (by_id.body, by_id.keys) == (b"body 0", ["k0"])
    assert not verify(root).findings
    with open_store(root) as store:
        ends = [queue.max_offset for one in range(4) if (queue := store.queue("orders", one))]
    assert sum(ends) == 5 * COUNT, "each message once"


def test_delays_retries_dead_letters_and_order_are_as_at_a_broker(tmp_path: Path) -> None:
    probe.build()
    root = tmp_path / "store"
    levels = "message_delay_level=1s 2s 1s 2s 3s"
    with RunningNode(root, (REMOTING, levels), queue_workers=1, readers=1) as node:
        # Else its consumers would learn of the topic when they next ask for routes, 30 s later.
        node.client.create_topic("tasks", 4)
        host, port = remoting_place(node.stderr)
        found = run_client(tmp_path, "RetryClient", f"{host}:{port}", "tasks")
        assert found == {
            "sent": "SEND_OK",
            "late arrives": "true",
            "late by": "true",
            "again": "true",
            "thrice": "true",
            "once": "[tasks:0, tasks:1]",
            "never": "[tasks:0, tasks:1, tasks:2]",
            "ordered all": "true",
            "in order": "true",
        }
        (dead,) = node.client.tail("%DLQ%group-tasks", "earliest", until_end=True)
        assert (dead.body, dead.record.head.reconsume_times) == (b"fails always", 3)
        assert dead.properties["RETRY_TOPIC"] == "tasks"
    assert not verify(root, settings=load_settings([levels])).findings


RIGHTS = (
    ("asker", "Topic:questions", "pub"),
    ("replier", "Topic:questions", "sub"),
    ("replier", "Group:answering-questions", "sub"),
    ("replier", "Topic:DefaultCluster_REPLY_TOPIC", "pub"),
)
"""What docs/security.md names for requests and replies, and the right of any consumer."""


def make_users(root: Path, secret: Path) -> list[str]:
    """Users of a store at rest; their names and passwords, as a program of Java takes them."""
    place = ["--store", str(root), "--json"]
    for name in ("asker", "replier"):
        assert run(["user", "create", name, "--password-file", str(secret), *place]) == 0
    for name, resource, actions in RIGHTS:
        assert run(["acl", "allow", name, resource, actions, *place]) == 0
    password = secret.read_text()
    return ["asker", password, "replier", password]


@pytest.mark.parametrize("users_log_in", [False, True])
def test_producers_that_ask_get_the_replies_of_a_consumer(
    tmp_path: Path, users_log_in: bool
) -> None:
    probe.build()
    root, users = tmp_path / "store", list[str]()
    if users_log_in:
        (tmp_path / "secret").write_text("password-of-both")
        create_store(root)
        users = make_users(root, tmp_path / "secret")
    with RunningNode(root, (REMOTING,), queue_workers=1, readers=1) as node:
        node.client.create_topic("questions", 4)
        address = ":".join(map(str, remoting_place(node.stderr)))
        found = run_client(tmp_path, "RequestClient", address, "questions", "100", *users)
        assert len(found.pop("reply id")) > 1
        assert found == {
            "right": "100",
            "called back": "re: async",
            "large": "true",
            "no reply": "true",
            "to nobody": "true",
            "replied": "102",
            "failures": "",
            "reply": "SEND_OK",
        }
        replies = list(node.client.tail("DefaultCluster_REPLY_TOPIC", "earliest", until_end=True))
        assert len(replies) == 103, "each is stored, also that to nobody"
    assert not verify(root).findings
