"""What an operator deletes below consumequeue/ comes back at the next start."""

import shutil
from pathlib import Path

import pytest

from node.store.checkpoints import load_tails
from node.store.verify.verify import verify
from protocol.names import CONSUME_QUEUE_DIR
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPICS = ("orders", "payments")
MESSAGES = 120
SETTINGS = (
    "store.mapped_file_size_consume_queue=400",
    "store.flush_consume_queue_thorough_interval=50",
)
"""Queue files of twenty units, synced and vouched for at once."""


def send(node: RunningNode) -> None:
    """MESSAGES to each topic; returns when the workers vouch for all units."""
    for topic in TOPICS:
        with node.client.producer() as producer:
            for number in range(MESSAGES):
                producer.send_nowait(topic, b"%d" % number)
    end = node.log_state().readable
    wait_until(
        lambda: all(state.saved >= end for state in node.worker_states().values()),
        "the workers have not saved how far they are",
    )


def bodies(node: RunningNode, topic: str) -> list[int]:
    """What a reader of a whole topic gets, sorted."""
    found = node.client.tail(topic, start="earliest", until_end=True)
    return sorted(int(message.body) for message in found)


def files_below(folder: Path) -> dict[str, bytes]:
    """All files by their path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.faults
def test_a_topics_queues_deleted_behind_a_kill_come_back_though_no_snapshot_knows_them(
    tmp_path: Path,
) -> None:
    queues = tmp_path / CONSUME_QUEUE_DIR
    node = RunningNode(tmp_path, SETTINGS, queue_workers=1, readers=1)
    node.start()
    send(node)
    node.kill_all()
    tails = load_tails(tmp_path)
    assert tails is not None
    assert not tails.next_offset
    before = files_below(queues)
    shutil.rmtree(queues / "orders")

    with RunningNode(tmp_path, SETTINGS, queue_workers=1, readers=1) as again:
        again.wait_dispatched()
        assert bodies(again, "orders") == list(range(MESSAGES))
        assert files_below(queues) == before
    assert verify(tmp_path, deep=True).findings == []


@pytest.mark.parametrize("ends", ["stop", *seldom("kill")])
def test_the_first_file_of_one_queue_comes_back_at_the_next_start(
    tmp_path: Path, ends: str
) -> None:
    queues = tmp_path / CONSUME_QUEUE_DIR
    node = RunningNode(tmp_path, SETTINGS, queue_workers=1, readers=1)
    node.start()
    send(node)
    if ends == "kill":
        node.kill_all()
    else:
        node.stop()
    before = files_below(queues)
    first = max(queues.rglob(f"{0:020}"), key=lambda path: len(list(path.parent.iterdir())))
    assert len(list(first.parent.iterdir())) > 1
    first.unlink()
    assert verify(tmp_path, deep=True).findings

    with RunningNode(tmp_path, SETTINGS, queue_workers=1, readers=1) as again:
        again.wait_dispatched()
        for topic in TOPICS:
            assert bodies(again, topic) == list(range(MESSAGES))
        assert files_below(queues) == before
    assert verify(tmp_path, deep=True).findings == []
