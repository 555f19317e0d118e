"""The cursors of a removed topic: a later topic of the name must not be read from their places."""

from pathlib import Path

import pytest

from node.store.config.consumer_offsets import ConsumerOffsets
from node.writer.topic_table import TopicTable
from tests.support.owned_store import Owner, some

TOPIC, CURSOR = "orders", "billing"


class KilledError(Exception):
    """The end of the process, at some call."""


@pytest.mark.parametrize(
    ("owner_of_call", "call"),
    [(ConsumerOffsets, "forget"), (ConsumerOffsets, "save"), (TopicTable, "forget")],
)
def test_a_removal_that_is_killed_after_its_note_leaves_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner_of_call: type, call: str
) -> None:
    owner = Owner(tmp_path / "store")
    owner.append(some(3))
    owner.flush()
    store = owner.store
    ends = {queue.queue_id: end for queue, end in store.placement.tails.items()}
    store.offsets.commit(TOPIC, CURSOR, ends)
    store.offsets.save()

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(owner_of_call, call, kill)
        with pytest.raises(KilledError):
            store.remove_topic(TOPIC)
    owner.kill()
    again = Owner(owner.root)
    assert not again.store.has_topic(TOPIC)
    assert again.store.offsets.get(TOPIC, CURSOR) == {}
    again.stop()


def test_a_lost_table_of_topics_makes_no_topic_of_now_a_removed_one(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "store")
    for is_removed in (True, False):
        owner.append(some(3))
        owner.flush()
        if is_removed:
            owner.store.remove_topic(TOPIC)
    ends = {queue.queue_id: end for queue, end in owner.store.placement.tails.items()}
    owner.store.offsets.commit(TOPIC, CURSOR, ends)
    owner.store.offsets.save()
    owner.stop()
    for path in (owner.root / "config").glob("topics.json*"):
        path.unlink()
    again = Owner(owner.root)
    assert again.store.offsets.get(TOPIC, CURSOR) == ends
    again.stop()
