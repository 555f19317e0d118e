"""A master of RocketMQ that lost its end, as in a power cut, and went on: what a replica makes of
it, and what a slave of RocketMQ does in the same case."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from keelog.cli.main import cli
from node.runtime.run_files import STOPPED, FollowState, read_follow_state
from protocol.names import COMMIT_LOG_DIR
from scripts.rivals.rocketmq import Addresses, class_path, missing
from tests.cluster.java_master import BROKER, TOPIC, JavaMaster, replica_of, wait_copied
from tests.cluster.java_slave import JavaSlave
from tests.cluster.same_store import differing_log, differing_queues
from tests.soak.cluster.java_master import MASTER_SIZES
from tests.soak.harness import SMALL_FILES
from tests.support.node import RunningNode, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
LOST = 20


@pytest.fixture
def master(tmp_path: Path) -> Iterator[JavaMaster]:
    with JavaMaster(tmp_path / "master", MASTER_SIZES) as found:
        yield found


@pytest.fixture
def slave(master: JavaMaster, tmp_path: Path) -> Iterator[JavaSlave]:
    addresses = replace(Addresses.free(), name_server=master.addresses.name_server)
    names = {"brokerName": BROKER, "brokerClusterName": BROKER}
    found = JavaSlave(class_path(), tmp_path / "slave", addresses, {**names, **MASTER_SIZES})
    found.broker.start()
    yield found
    found.remove()


def last_records(node: RunningNode, count: int) -> int:
    """Where the last records of its log begin."""
    tail = node.client.tail(TOPIC, start=-count, until_end=True)
    return sorted(message.physical_offset for message in tail)[-count]


def lose_from(store: Path, offset: int) -> None:
    """Zeros from there on, as a power cut leaves what was not flushed."""
    for path in sorted((store / COMMIT_LOG_DIR).iterdir()):
        start, size = int(path.name), path.stat().st_size
        if start + size > offset:
            kept = max(offset - start, 0)
            with path.open("r+b") as file:
                file.seek(kept)
                file.write(bytes(size - kept))


def stopped_state(node: RunningNode) -> FollowState:
    wait_until(lambda: read_follow_state(node.root).state == STOPPED, "nothing was noticed", 60)
    return read_follow_state(node.root)


def test_a_replica_names_what_a_slave_of_rocketmq_does_not_see_and_is_mended(
    master: JavaMaster, slave: JavaSlave, tmp_path: Path
) -> None:
    with replica_of(master, tmp_path / "copy", *SMALL_FILES) as node:
        master.send(3_000)
        before = wait_copied(master, node)
        slave.wait_for(before)
        cut = last_records(node, LOST)
        master.broker.kill()
        lose_from(master.store, cut)
        master.restart()
        assert master.facts().end == cut
        state = stopped_state(node)
        assert (state.kind, state.acknowledged) == ("MasterShorter", before)
        assert f"{cut}" in state.reason
        master.send(1_000)
        end, begin = master.facts().end, master.facts().begin
        assert end > before
        # It took the new master's bytes after its own old ones, and nobody said a word.
        wait_until(lambda: slave.end() >= end, "the slave does not go on", 120)
        assert differing_log(slave.store, master.store, begin, before) != []
        assert read_follow_state(node.root).acknowledged == before
    shown = CliRunner().invoke(
        cli, ["replica", "rewind", str(node.root), "--to", str(cut), "--apply"]
    )
    assert shown.exit_code == 0, shown.output
    kept = [path for path in (node.root / "keelog" / "quarantine").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) >= before - cut
    with replica_of(master, node.root, *SMALL_FILES) as mended:
        end = wait_copied(master, mended)
        mended.stop()
        master.broker.stop()
    assert differing_log(node.root, master.store, begin, end) == []
    assert differing_queues(node.root, master.store) == []
