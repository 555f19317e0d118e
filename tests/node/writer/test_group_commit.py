"""Requests that wait for the disk: who is answered when, and how many may wait."""

from node.runtime.settings import Settings
from node.writer.appender import AppendRequest
from node.writer.requests import GroupCommit, PendingRequest


def request(number: int, offset: int, size: int = 10) -> PendingRequest:
    append = AppendRequest(bytes(size), 1, physical_offset=offset)
    return PendingRequest(b"peer", number, append, None, is_send=False)


def numbers(taken: list[PendingRequest]) -> list[int]:
    return [pending.request_id for pending in taken]


def test_a_flush_answers_exactly_those_that_it_covers() -> None:
    waiting = GroupCommit(Settings())
    for number in range(5):
        waiting.put(request(number, 10 * number), now=100.0)
    assert numbers(waiting.reached(9)) == []
    assert numbers(waiting.reached(29)) == [0, 1]
    assert numbers(waiting.reached(50)) == [2, 3, 4]
    assert waiting.count == 0


def test_who_waited_sync_flush_timeout_is_taken_out_once() -> None:
    waiting = GroupCommit(Settings(sync_flush_timeout=5_000))
    waiting.put(request(1, 0), now=100.0)
    waiting.put(request(2, 10), now=101.0)
    assert numbers(waiting.overdue(104.9)) == []
    assert numbers(waiting.overdue(105.0)) == [1]
    assert numbers(waiting.reached(100)) == [2]


def test_the_number_and_the_bytes_that_wait_are_bounded() -> None:
    many = GroupCommit(Settings(send_thread_pool_queue_capacity=2))
    large = GroupCommit(Settings(waiting_bytes_max=20))
    for waiting in (many, large):
        for number in range(2):
            assert not waiting.is_full
            waiting.put(request(number, 10 * number), now=100.0)
        assert waiting.is_full
        waiting.reached(10)
        assert not waiting.is_full
