"""A controller elects among nodes: they lead, follow, come back, and lose nothing acknowledged."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from keelog.client.client import connect
from node.runtime.state_page import LogPage
from node.store.identity.roles import load_identity, load_master_epochs
from node.supervisor.child_process import command, environment
from tests.cluster.same_store import differing_log
from tests.soak.cluster.lost_master import bodies
from tests.soak.harness import SMALL_FILES
from tests.support.controller import FakeController
from tests.support.elected_node import (
    BROKER,
    CLUSTER,
    ElectedNode,
    await_true,
    elected_nodes,
    master_of,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

WAIT_S = 60.0
SETTINGS = (*SMALL_FILES, "slave_timeout=5000")
NOWHERE = "127.0.0.1:9"
"""No name server is there: the node tries to register for ever."""


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as found:
        yield found


@contextmanager
def nodes_of(controller: FakeController, folder: Path, count: int) -> Iterator[list[ElectedNode]]:
    """Nodes that have not been started, and are gone behind the context."""
    nodes = elected_nodes(folder, count, controller.place, NOWHERE, SETTINGS)
    try:
        yield nodes
    finally:
        for node in nodes:
            if node.is_running:
                node.kill()


def await_leads(node: ElectedNode) -> None:
    await_true(lambda: node.leads, "it does not lead", [node], WAIT_S)


def await_in_sync(controller: FakeController, nodes: Sequence[ElectedNode]) -> None:
    """All of them run, and may be elected."""
    await_true(
        lambda: (
            len(controller.in_sync.members) == len(nodes)
            and sum(one.follows for one in nodes) == len(nodes) - 1
        ),
        f"not all are in sync: {controller.in_sync}",
        nodes,
        WAIT_S,
    )


def send(node: ElectedNode, *texts: str) -> list[str]:
    """What each send was answered with."""
    with connect(node.endpoint, timeout=30.0) as client:
        return [client.send("orders", text.encode()).status for text in texts]


def test_a_new_store_gets_an_id_and_leads_but_acknowledges_nothing_alone(
    controller: FakeController, tmp_path: Path
) -> None:
    with nodes_of(controller, tmp_path, 1) as [node]:
        node.begin()
        await_leads(node)
        identity = load_identity(node.root)
        assert identity is not None
        assert identity[:3] == (CLUSTER, BROKER, 1)
        assert [one[:] for one in load_master_epochs(node.root)] == [(1, 0)]
        assert controller.places == {1: node.remoting}
        await_true(lambda: send_one(node) == "SLAVE_NOT_AVAILABLE", "no answer", [node], WAIT_S)
        beat = controller.beats[1]
        assert (beat["brokerName"], beat["epoch"]) == (BROKER, "1")
        assert node.stop() == 0
    await_true(lambda: 1 not in controller.alive, "it is not dead for the controller", [], 5.0)


def send_one(node: ElectedNode) -> str:
    return send(node, "alone")[0]


def test_what_no_follower_has_stays_unseen_when_the_writer_alone_is_started_again(
    controller: FakeController, tmp_path: Path
) -> None:
    with nodes_of(controller, tmp_path, 1) as [node]:
        node.begin()
        await_leads(node)
        await_true(lambda: send_one(node) == "SLAVE_NOT_AVAILABLE", "no answer", [node], WAIT_S)
        with LogPage.open(node.root) as page:
            before = page.read()
        assert (before.readable, before.appended > 0) == (0, True)
        os.kill(before.pid, signal.SIGKILL)

        def restarted() -> bool:
            with suppress(OSError), LogPage.open(node.root) as page:
                return page.read().epoch > before.epoch
            return False

        await_true(restarted, "no new writer", [node], WAIT_S)
        with LogPage.open(node.root) as page:
            assert (page.read().readable, page.read().appended) == (0, before.appended)
        assert node.stop() == 0


# Long: half a minute.
@pytest.mark.cluster
def test_another_node_leads_when_the_master_is_killed_and_the_old_one_follows_it(
    controller: FakeController, tmp_path: Path
) -> None:
    with nodes_of(controller, tmp_path, 3) as nodes:
        for node in nodes:
            node.begin()
            if node is nodes[0]:
                await_leads(node)
        await_in_sync(controller, nodes)
        assert set(send(nodes[0], *(f"first {n}" for n in range(50)))) == {"PUT_OK"}
        nodes[0].kill()
        rest = nodes[1:]
        await_true(lambda: master_of(rest) is not None, "nobody leads", rest, WAIT_S)
        master = master_of(rest)
        assert master is not None
        await_in_sync(controller, rest)
        assert set(send(master, *(f"second {n}" for n in range(50)))) == {"PUT_OK"}
        nodes[0].begin()
        await_in_sync(controller, nodes)
        assert set(send(master, *(f"third {n}" for n in range(50)))) == {"PUT_OK"}
        await_true(lambda: len({one.end() for one in nodes}) == 1, "ends differ", nodes, WAIT_S)
        state = nodes[0].state()
        assert (state.role, state.epoch, state.master) == ("follows", 2, master.remoting)
        assert load_master_epochs(nodes[0].root) == load_master_epochs(master.root)
        check_status(nodes[0].endpoint)
        for node in nodes:
            assert node.stop() == 0
    stored, end = bodies(nodes[0].root)
    for word in ("first", "second", "third"):
        assert {f"{word} {n}".encode() for n in range(50)} <= stored
    for node in nodes[1:]:
        assert differing_log(node.root, nodes[0].root, 0, end) == []


def check_status(endpoint: str) -> None:
    """Status and health of a replica say what the controller has decided."""
    said = [
        subprocess.run(
            command("keelog", [word, "--node", endpoint, "--format", "table"]),
            capture_output=True, text=True, env=environment(), check=False,
        ).stdout
        for word in ("status", "health")
    ]  # fmt: skip
    assert "elected: node 1 follows, epoch 2, master" in said[0]
    assert "controllers: 1 of 1 hear the node" in said[0]
    assert "node 1 follows, epoch 2" in said[1]


# Long: half a minute.
@pytest.mark.cluster
def test_a_master_that_was_held_acknowledges_nothing_once_another_one_is_elected(
    controller: FakeController, tmp_path: Path
) -> None:
    with nodes_of(controller, tmp_path, 2) as nodes:
        nodes[0].begin()
        await_leads(nodes[0])
        nodes[1].begin()
        await_in_sync(controller, nodes)
        assert send(nodes[0], "before") == ["PUT_OK"]
        # The keeper alone is held: the old master takes messages, and knows of nothing.
        keeper = nodes[0].pid
        os.kill(keeper, signal.SIGSTOP)
        controller.elect(2)
        await_leads(nodes[1])
        answers = send(nodes[0], "to the old master")
        assert answers[0] in ("SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
        os.kill(keeper, signal.SIGCONT)
        await_in_sync(controller, nodes)
        assert send(nodes[1], "after") == ["PUT_OK"]
        await_true(lambda: len({one.end() for one in nodes}) == 1, "ends differ", nodes, WAIT_S)
        for node in nodes:
            assert node.stop() == 0
    stored, end = bodies(nodes[0].root)
    assert {b"before", b"after"} <= stored
    assert b"to the old master" not in stored
    assert differing_log(nodes[1].root, nodes[0].root, 0, end) == []
    kept = b"".join(p.read_bytes() for p in (nodes[0].root / "keelog/quarantine").rglob("*")
                    if p.is_file())  # fmt: skip
    assert b"to the old master" in kept


def test_a_store_of_another_group_is_refused(controller: FakeController, tmp_path: Path) -> None:
    root = tmp_path / "node-0"
    root.mkdir(mode=0o700)
    (root / "brokerIdentity").write_text("keels#other#4")
    with nodes_of(controller, tmp_path, 1) as [node]:
        node.begin()
        await_true(lambda: not node.is_running, "it still runs", [node], WAIT_S)
        assert "OtherIdentity" in node.said() or "is node 4 of keels/other" in node.said()


def test_options_that_do_not_go_with_a_controller_are_refused(tmp_path: Path) -> None:
    base = ["serve", str(tmp_path / "s"), "--controller", NOWHERE, "--remoting", "127.0.0.1:10911"]
    for extra, said in (
        ([], "no --namesrv"),
        (["--namesrv", NOWHERE], "no --ha"),
        (["--namesrv", NOWHERE, "--ha", "127.0.0.1:10912", "--follow", "h:1"], "--follow"),
        (["--namesrv", NOWHERE, "--ha", "127.0.0.1:10912", "--broker-id", "3"], "--broker-id"),
    ):
        done = subprocess.run(
            command("keelog", [*base, *extra]), capture_output=True, text=True,
            env=environment(), check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        assert said in done.stderr
    assert not (tmp_path / "s").exists()
