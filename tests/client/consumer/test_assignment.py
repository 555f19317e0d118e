"""Who takes which queue: the same as Java's members, whatever the lists are."""

from hypothesis import given
from hypothesis import strategies as st

from keelog.client.consumer.engine import averagely
from protocol.remoting.bodies import MessageQueue

IDS = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=9)


def as_java_does(queues: list[MessageQueue], ids: list[str], own: str) -> list[MessageQueue]:
    """AllocateMessageQueueAveragely#allocate of 5.5.0, step by step."""
    index = ids.index(own)
    rest = len(queues) % len(ids)
    if len(queues) <= len(ids):
        average = 1
    elif rest > 0 and index < rest:
        average = len(queues) // len(ids) + 1
    else:
        average = len(queues) // len(ids)
    start = index * average if rest > 0 and index < rest else index * average + rest
    size = min(average, len(queues) - start)
    return [queues[(start + number) % len(queues)] for number in range(size)]


def queues_of(*brokers: tuple[str, int]) -> list[MessageQueue]:
    return [
        MessageQueue("t", broker, number) for broker, count in brokers for number in range(count)
    ]


@given(IDS, st.integers(0, 30), st.integers(0, 5), st.randoms())
def test_every_member_takes_what_java_would(
    ids: list[str], count: int, others: int, shuffle: object
) -> None:
    queues = queues_of(("a", count), ("b", others))
    # Java sorts both lists before: these are in its order already.
    ordered = sorted(ids, key=lambda one: one.encode("utf-16-be", "surrogatepass"))
    mixed = queues[::-1]
    for own in set(ids):
        assert averagely(mixed, ids, own) == as_java_does(queues, ordered, own)


@given(st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=9), st.integers(0, 30))
def test_members_of_different_names_share_all_queues_and_none_twice(
    ids: set[str], count: int
) -> None:
    queues = queues_of(("a", count))
    taken = [queue for own in ids for queue in averagely(queues, ids, own)]
    assert sorted(taken) == queues


def test_queues_are_sorted_by_topic_broker_and_number() -> None:
    queues = queues_of(("b", 11), ("a", 2))
    assert averagely(queues, ["x", "y"], "x") == [
        *queues_of(("a", 2)), *queues_of(("b", 11))[:5],
    ]  # fmt: skip


def test_who_is_not_in_the_list_takes_nothing() -> None:
    assert averagely(queues_of(("a", 4)), ["x"], "y") == []


def test_names_are_compared_as_java_compares_texts() -> None:
    # U+FFFD is above U+1F600 there, whose first unit is a surrogate.
    assert averagely(queues_of(("a", 2)), ["\U0001f600", "\ufffd"], "\U0001f600") == queues_of(
        ("a", 1)
    )
