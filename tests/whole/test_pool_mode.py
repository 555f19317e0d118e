"""A whole node whose writer appends to memory first: a kill takes the end of the log, no more."""

from pathlib import Path

import pytest

from node.store.verify.verify import verify
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

pytestmark = pytest.mark.process

SETTINGS = (
    *("mapped_file_size_commit_log=1048576", "max_hash_slot_num=1000", "max_index_num=4000"),
    *("transient_store_pool_enable=true", "wake_commit_when_put_message=false"),
)


def send(node: RunningNode, first: int, count: int) -> list[bytes]:
    bodies = [b"%06d" % number * 100 for number in range(first, first + count)]
    for body in bodies:
        node.client.send("orders", body, queue_id=0, keys="k")
    return bodies


def pulled(node: RunningNode) -> list[bytes]:
    node.wait_dispatched()
    found: list[bytes] = []
    while messages := node.client.pull("orders", 0, len(found)).messages:
        assert [message.queue_offset for message in messages] == [
            *range(len(found), len(found) + len(messages))
        ]
        found += [message.body for message in messages]
    return found


@pytest.mark.parametrize("kills", [1, *seldom(3)])
def test_a_killed_writer_loses_a_suffix_and_queues_index_and_readers_go_on(
    tmp_path: Path, kills: int
) -> None:
    expected: list[bytes] = []
    with RunningNode(tmp_path / "store", SETTINGS) as node:
        for start in range(kills):
            expected += send(node, 1000 * start, 150)
            epoch, committed = node.log_state().epoch, node.log_state().committed
            node.kill("writer")
            wait_until(lambda: node.log_state().epoch > epoch, "no new writer")  # noqa: B023
            assert node.log_state().appended >= committed
            found = pulled(node)
            assert found == expected[: len(found)]
            expected = found
        expected += send(node, 9000, 10)
        wait_until(lambda: node.log_state().readable == node.log_state().appended, "no commit")
        assert pulled(node) == expected
        node.stop()
    assert verify(tmp_path / "store", deep=True).findings == []
