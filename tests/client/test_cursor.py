"""A named cursor: what is committed, and when."""

from keelog.client.subscription import COMMIT_EVERY_MESSAGES, COMMIT_EVERY_S, Cursor


def finished(cursor: Cursor, now: float) -> list[list[list[int]]]:
    """The offsets of each request of a commit that the node has taken."""
    sent = []
    commit = cursor.commit(now, now + 1)
    try:
        call = next(commit)
        while True:
            sent.append(call.fields["offsets"])
            call = commit.send(None)  # type: ignore[arg-type]
    except StopIteration:
        return sent


def test_all_starts_are_committed_so_that_silent_queues_are_known() -> None:
    cursor = Cursor("orders", "billing")
    cursor.begin({}, {0: 7, 1: 0})
    assert cursor.is_due(100.0)
    assert finished(cursor, 100.0) == [[[0, 7], [1, 0]]]
    assert not cursor.is_due(200.0)


def test_only_what_moved_is_committed_and_once_a_second() -> None:
    cursor = Cursor("orders", "billing")
    cursor.begin({0: 7, 1: 0}, {0: 7, 1: 0})
    assert not cursor.is_due(0.0)
    cursor.read_to(0, 8)
    assert finished(cursor, 0.0) == [[[0, 8]]]
    cursor.read_to(0, 9)
    assert not cursor.is_due(COMMIT_EVERY_S / 2)
    assert cursor.is_due(COMMIT_EVERY_S)
    cursor.read_to(0, 9 + COMMIT_EVERY_MESSAGES)
    assert cursor.is_due(COMMIT_EVERY_S / 2)


def test_what_the_node_did_not_take_is_sent_again() -> None:
    cursor = Cursor("orders", "billing")
    cursor.begin({0: 0}, {0: 0})
    cursor.read_to(0, 3)
    next(cursor.commit(0.0, 1.0))
    assert not cursor.is_due(0.5)
    assert finished(cursor, 2.0) == [[[0, 3]]]


def test_many_queues_go_in_several_requests() -> None:
    cursor = Cursor("orders", "billing")
    cursor.begin({}, dict.fromkeys(range(1200), 1))
    assert [len(pairs) for pairs in finished(cursor, 0.0)] == [500, 500, 200]
