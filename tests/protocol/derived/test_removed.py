"""The rule of removed topics and purged queues, against a plain reading of it."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.removed import NOTHING_REMOVED, Removed, RemovedTopic
from protocol.ids import Queue
from protocol.record.columns import RecordColumns, scan
from protocol.record.encode import NewMessage, encode_message

TOPICS = ("a", "bb", "ccc")
QUEUES = st.builds(Queue, st.sampled_from(TOPICS), st.integers(0, 2))
OFFSETS = st.integers(0, 4_000)
REMOVED = st.builds(
    lambda topics, queues: Removed(1, {t: RemovedTopic(at) for t, at in topics.items()}, queues),
    st.dictionaries(st.sampled_from(TOPICS), OFFSETS),
    st.dictionaries(QUEUES, OFFSETS),
)


def columns_of(queues: list[Queue]) -> RecordColumns:
    data = b"".join(
        encode_message(NewMessage(topic=topic, queue_id=number, body=b"x"), False)
        for topic, number in queues
    )
    columns = scan(data, None).columns
    columns.physical_offset[:] = columns.start
    return columns


@given(st.lists(QUEUES, max_size=30), REMOVED)
def test_columns_and_the_plain_rule_keep_the_same_records(
    queues: list[Queue], removed: Removed
) -> None:
    columns = columns_of(queues)
    places = columns.physical_offset.tolist()
    dispatched = [
        at for at, queue in zip(places, queues, strict=True) if at >= removed.horizon(queue.topic)
    ]
    visible = [at for at, queue in zip(places, queues, strict=True) if not removed.hides(queue, at)]
    assert removed.dispatched(columns).physical_offset.tolist() == dispatched
    assert removed.visible(columns).physical_offset.tolist() == visible
    assert set(visible) <= set(dispatched)
    assert all(at < removed.end for at in set(places) - set(visible))


@given(st.lists(QUEUES, min_size=1, max_size=10))
def test_a_store_without_a_note_gets_the_very_same_columns(queues: list[Queue]) -> None:
    columns = columns_of(queues)
    assert NOTHING_REMOVED.dispatched(columns) is columns
    assert NOTHING_REMOVED.visible(columns) is columns
    later = Removed(1, {"a": RemovedTopic(0)})
    assert later.dispatched(columns) is columns, "records after every horizon are not looked at"


def test_a_removal_forgets_the_purges_of_the_topic_and_the_older_snapshots() -> None:
    removed = Removed().with_purged({Queue("a", 0): 50, Queue("bb", 0): 60})
    removed = removed.without_topic("a", 100, 7)
    assert removed.queues == {Queue("bb", 0): 60}
    assert removed.topics == {"a": RemovedTopic(100, 7)}
    known = {Queue("a", 0): 9, Queue("bb", 0): 3}
    assert removed.next_offsets(100, known) == {Queue("bb", 0): 3}
    assert removed.next_offsets(101, known) == known


def test_a_purge_never_brings_anything_back() -> None:
    removed = Removed().with_purged({Queue("a", 0): 50})
    assert removed.with_purged({Queue("a", 0): 40}) is removed
    again = removed.with_purged({Queue("a", 0): 60, Queue("a", 1): 0})
    assert again.queues == {Queue("a", 0): 60}
    assert again.number == removed.number + 1


def test_entries_below_the_begin_of_the_log_go_and_those_above_its_end_are_lowered() -> None:
    removed = Removed(3, {"a": RemovedTopic(50), "bb": RemovedTopic(200)}, {Queue("ccc", 0): 90})
    assert removed.within(0, 200) is removed
    assert removed.within(50, 200) == Removed(4, {"bb": RemovedTopic(200)}, {Queue("ccc", 0): 90})
    assert removed.within(90, 120) == Removed(4, {"bb": RemovedTopic(120)}, {})
