"""The list of held pulls, on a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.reader.pull_desk import Held, LongPolls, Pull
from node.store.query.pull import PullRequest
from protocol.errors import NodeBusy
from protocol.ids import Queue

A, B = Queue("a", 0), Queue("b", 1)
INFINITE = float("inf")


def hold(queue: Queue = A, deadline: float = 1.0, peer: bytes = b"p", number: int = 0) -> Held:
    return Held(peer, number, Pull(queue, 5, PullRequest(), 1_000), deadline, 5)


def test_who_waits_for_a_queue_is_found_in_the_order_of_coming() -> None:
    holds = LongPolls()
    first, other, second = hold(A, 9), hold(B), hold(A, 1)
    for held in (first, other, second):
        holds.add(held)
    assert holds.of(A) == [first, second]
    assert holds.of(Queue("c", 0)) == []
    assert set(holds.queues()) == {A, B}
    assert holds.count == 3


def test_pulls_come_due_in_the_order_of_their_times_and_once() -> None:
    holds = LongPolls()
    late, soon = hold(A, 30.0), hold(B, 10.0)
    holds.add(late)
    holds.add(soon)
    assert holds.next_deadline == 10.0
    assert list(holds.take_due(9.9)) == []
    assert list(holds.take_due(10.0)) == [soon]
    assert list(holds.take_due(10.0)) == []
    assert holds.next_deadline == 30.0
    assert list(holds.take_due(INFINITE)) == [late]
    assert holds.next_deadline == INFINITE
    assert holds.count == 0


def test_an_answered_pull_does_not_come_due() -> None:
    holds = LongPolls()
    held = hold()
    holds.add(held)
    holds.remove(held)
    holds.remove(held)
    assert holds.count == 0
    assert holds.next_deadline == INFINITE
    assert list(holds.take_due(99)) == []
    assert A not in holds.queues()


def test_one_pull_too_many_is_refused_as_busy_and_room_comes_back() -> None:
    holds = LongPolls(limit=2)
    first = hold()
    holds.add(first)
    holds.add(hold())
    with pytest.raises(NodeBusy):
        holds.add(hold())
    assert holds.count == 2
    holds.remove(first)
    holds.add(hold())


def test_all_pulls_of_a_peer_that_is_gone_are_forgotten_and_no_others() -> None:
    holds = LongPolls()
    gone = [hold(A, peer=b"gone"), hold(B, peer=b"gone")]
    stays = hold(A, peer=b"stays")
    for held in (*gone, stays):
        holds.add(held)
    holds.forget(b"gone")
    holds.forget(b"gone")
    holds.forget(b"never seen")
    assert holds.of(A) == [stays]
    assert holds.queues() == [A]
    assert list(holds.take_due(INFINITE)) == [stays]


def test_answered_pulls_take_no_memory_until_their_time() -> None:
    holds = LongPolls()
    for number in range(20_000):
        held = hold(deadline=30.0 + number)
        holds.add(held)
        holds.remove(held)
    assert len(holds._times) < 3_000


def test_a_pull_looks_on_behind_what_its_filter_refused() -> None:
    held = hold()
    assert held.look() is held.pull
    held.next_offset = 8
    assert held.next_offset != held.begin
    assert held.look().offset == 8
    assert held.pull.offset == 5


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "due", "forget"]), st.integers(0, 9))))
def test_it_is_the_same_as_a_plain_list(steps: list[tuple[str, int]]) -> None:
    holds, plain = LongPolls(limit=6), list[Held]()
    now = 0.0
    for step, number in steps:
        if step == "add" and len(plain) < 6:
            held = hold((A, B)[number % 2], now + number, bytes([number % 3]))
            holds.add(held)
            plain.append(held)
        elif step == "remove" and plain:
            holds.remove(plain.pop(number % len(plain)))
        elif step == "due":
            now += number
            due = list(holds.take_due(now))
            assert set(due) == {held for held in plain if held.deadline <= now}
            plain = [held for held in plain if held.deadline > now]
        elif step == "forget":
            holds.forget(bytes([number % 3]))
            plain = [held for held in plain if held.peer != bytes([number % 3])]
        assert holds.count == len(plain)
        for queue in (A, B):
            assert holds.of(queue) == [held for held in plain if held.pull.queue == queue]
        assert holds.next_deadline == min((held.deadline for held in plain), default=INFINITE)
