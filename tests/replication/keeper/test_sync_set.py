"""Whom a master asks its controller to add to those in sync, and whom to take out."""

import random

from keelog.replication.keeper.sync_set import ADDING_S, GONE_S, SyncSet
from node.runtime.run_files import FollowerRow, FollowersState
from protocol.remoting.controller import SyncStateSet

OWN = 1
LATE_S = 15.0


def a_set(*members: int) -> SyncSet:
    return SyncSet(OWN, SyncStateSet(frozenset(members), 5), 100, LATE_S)


def row(broker_id: int, acknowledged: int, lag_s: float = 0.0) -> FollowerRow:
    return FollowerRow("a:1", 0, acknowledged, acknowledged, 0, lag_s, True, 0, broker_id)


def seen(sync: SyncSet, *rows: FollowerRow) -> FollowersState:
    """The followers, as the process says that has taken in the last state."""
    return FollowersState(1, 0, rows, (), sync.state.number)


def test_a_near_follower_is_required_first_and_added_when_it_has_what_was_there_before() -> None:
    sync = a_set(OWN)
    assert sync.turn(0.0, seen(sync, row(2, 400)), 500) is None
    assert sync.state.required == {OWN, 2}
    old = FollowersState(1, 0, (row(2, 900),), (), sync.state.number - 1)
    assert sync.turn(0.1, old, 900) is None, "the process has not heard that 2 is required"
    assert sync.turn(0.2, seen(sync, row(2, 550)), 600) is None, "it lacks what is below 600"
    assert sync.turn(0.3, seen(sync, row(2, 599)), 700) is None
    assert sync.turn(0.4, seen(sync, row(2, 600)), 800) == frozenset({OWN, 2})
    sync.adopt(SyncStateSet(frozenset({OWN, 2}), 6))
    assert sync.state.required == {OWN, 2}
    assert sync.turn(0.5, seen(sync, row(2, 800)), 800) is None


def test_a_follower_that_does_not_catch_up_is_required_no_more() -> None:
    sync = a_set(OWN)
    sync.turn(0.0, seen(sync, row(2, 400)), 500)
    assert sync.turn(0.1, seen(sync, row(2, 400)), 500) is None
    assert sync.turn(ADDING_S + 0.2, seen(sync, row(2, 400)), 900) is None
    assert sync.state.required == {OWN}


def test_a_far_follower_is_not_added() -> None:
    sync = a_set(OWN)
    assert sync.turn(0.0, seen(sync, row(2, 400, lag_s=9.0)), 500) is None
    assert sync.state.required == {OWN}


def test_a_follower_that_is_gone_stays_required_until_the_controller_has_taken_it_out() -> None:
    sync = a_set(OWN, 2, 3)
    assert sync.turn(0.0, seen(sync, row(2, 500)), 500) is None
    assert sync.turn(GONE_S, seen(sync, row(2, 500)), 500) == frozenset({OWN, 2})
    assert sync.state.required == {OWN, 2, 3}
    sync.unanswered()
    assert sync.state.required == {OWN, 2, 3}
    assert sync.turn(GONE_S + 1, seen(sync, row(2, 500)), 500) == frozenset({OWN, 2}), "asked again"
    sync.adopt(SyncStateSet(frozenset({OWN, 2}), 6))
    assert sync.state.required == {OWN, 2}


def test_a_follower_that_comes_back_in_time_stays() -> None:
    sync = a_set(OWN, 2)
    assert sync.turn(0.0, seen(sync), 500) is None
    assert sync.turn(GONE_S / 2, seen(sync, row(2, 400)), 500) is None
    assert sync.turn(GONE_S * 1.2, seen(sync), 500) is None, "gone anew"


def test_a_follower_that_is_late_for_too_long_is_taken_out() -> None:
    sync = a_set(OWN, 2)
    assert sync.turn(0.0, seen(sync, row(2, 400, lag_s=LATE_S + 1)), 500) == frozenset({OWN})


def test_an_addition_of_which_nobody_knows_stays_required_after_a_refusal() -> None:
    sync = a_set(OWN)
    sync.turn(0.0, seen(sync, row(2, 500)), 500)
    assert sync.turn(0.1, seen(sync, row(2, 500)), 500) == frozenset({OWN, 2})
    sync.unanswered()
    sync.drop_wish()
    assert sync.state.required == {OWN, 2}, "the first request may still be carried out"
    sync.adopt(SyncStateSet(frozenset({OWN}), 6))
    assert sync.state.required == {OWN}


class FakeController:
    """Keeps the set of one group, and makes a change where nobody was faster."""

    def __init__(self) -> None:
        self.found = SyncStateSet(frozenset({OWN, 2}), 5)

    def alter(self, wanted: frozenset[int], epoch: int) -> bool:
        """Whether the change was made."""
        if epoch != self.found.epoch or wanted == self.found.members:
            return False
        self.found = SyncStateSet(wanted, epoch + 1)
        return True


def test_whoever_may_be_elected_is_always_required() -> None:
    """Requests are answered, made without an answer, or made much later."""
    changes = 0
    for seed in range(300):
        rnd, controller = random.Random(seed), FakeController()
        sync = SyncSet(OWN, controller.found, 100, LATE_S)
        delayed: list[tuple[frozenset[int], int]] = []
        for step in range(60):
            rows = [row(one, 1000, rnd.choice([0.0, 0.0, 20.0])) for one in (2, 3, 4)
                    if rnd.random() < 0.7]  # fmt: skip
            asked = sync.turn(step * 0.6, seen(sync, *rows), 1000)
            if asked is not None and rnd.random() < 0.3:
                delayed.append((asked, sync.found.epoch))
                sync.unanswered()
            elif asked is not None:
                is_made = controller.alter(asked, sync.found.epoch)
                if rnd.random() < 0.3:
                    sync.unanswered()
                elif is_made:
                    sync.adopt(controller.found)
                else:
                    sync.drop_wish()
            if delayed and rnd.random() < 0.3:
                controller.alter(*delayed.pop(rnd.randrange(len(delayed))))
            assert controller.found.members <= sync.state.required, f"seed {seed}, step {step}"
            if rnd.random() < 0.3:
                sync.adopt(controller.found)
            assert controller.found.members <= sync.state.required, f"seed {seed}, step {step}"
        changes += controller.found.epoch - 5
    assert changes > 1000, "the controller was seldom asked"
