"""How long a worker sleeps between turns: woken at once in quiet times and for who waits."""

import pytest

from node.runtime.wakeup import SLEEP_S_MAX
from workers.process import IDLE_S, LATE_BYTES, SHORT_BYTES, Sleep, TurnPace, gives_way


def test_in_quiet_times_the_first_new_record_wakes_it() -> None:
    pace = TurnPace(rest_s=0.004, batch_bytes=1000)
    assert pace.sleep(500, 10.0, is_waited_for=False) == Sleep(IDLE_S, 501)


def test_behind_a_turn_it_rests_until_time_has_passed_or_much_has_come() -> None:
    pace = TurnPace(rest_s=0.004, batch_bytes=1000)
    pace.worked(10.0)
    rest = pace.sleep(500, 10.001, is_waited_for=False)
    assert abs(rest.seconds - 0.003) < 1e-9
    assert rest.wake_at == 1500


def test_the_rest_is_over_after_its_time_and_begins_again_behind_the_next_turn() -> None:
    pace = TurnPace(rest_s=0.004, batch_bytes=1000)
    pace.worked(10.0)
    assert pace.sleep(500, 10.005, is_waited_for=False).wake_at == 501
    pace.worked(10.006)
    assert pace.sleep(600, 10.007, is_waited_for=False).wake_at == 1600


def test_who_is_waited_for_never_rests() -> None:
    pace = TurnPace(rest_s=0.004, batch_bytes=1000)
    pace.worked(10.0)
    assert pace.sleep(500, 10.0, is_waited_for=True) == Sleep(IDLE_S, 501)


def test_who_needs_no_ring_for_each_record_looks_now_and_then_in_quiet_times() -> None:
    pace = TurnPace(rest_s=0.1, batch_bytes=1000, idle_s=0.02, idle_bytes=1000)
    assert pace.sleep(500, 10.0, is_waited_for=False) == Sleep(0.02, 1500)
    pace.worked(10.0)
    assert pace.sleep(600, 10.0, is_waited_for=False) == Sleep(10.1 - 10.0, 1600)


def test_the_longer_the_log_is_quiet_the_longer_it_sleeps_and_a_record_ends_that() -> None:
    pace = TurnPace(rest_s=0.004, batch_bytes=1000)
    pace.worked(10.0)
    assert pace.sleep(500, 10.1, is_waited_for=False) == Sleep(IDLE_S, 501)
    assert pace.sleep(500, 11.0, is_waited_for=False) == Sleep(1 / 32, 501)
    assert pace.sleep(500, 99.0, is_waited_for=True) == Sleep(SLEEP_S_MAX, 501)
    pace.worked(99.0)
    assert pace.sleep(600, 99.005, is_waited_for=False) == Sleep(IDLE_S, 601)


def test_before_its_first_record_it_is_quiet_since_it_first_slept() -> None:
    pace = TurnPace()
    assert pace.sleep(0, 1000.0, is_waited_for=False).seconds == IDLE_S
    assert pace.sleep(0, 1003.2, is_waited_for=False).seconds == pytest.approx(0.1)


def test_who_needs_no_ring_for_each_record_is_rung_for_the_first_after_a_quiet_time() -> None:
    pace = TurnPace(rest_s=0.1, batch_bytes=1000, idle_s=0.02, idle_bytes=1000)
    pace.worked(10.0)
    assert pace.sleep(500, 10.2, is_waited_for=False) == Sleep(0.02, 1500)
    assert pace.sleep(500, 12.0, is_waited_for=False) == Sleep(2 / 32, 501)


def test_a_worker_that_others_wait_for_sleeps_shortly_on_a_quiet_log() -> None:
    pace = TurnPace()
    pace.worked(10.0)
    pace.stay_awake(50.0)
    assert pace.sleep(500, 50.0, is_waited_for=False).seconds == IDLE_S


def test_a_turn_gives_way_unless_it_is_short_or_the_worker_is_late() -> None:
    waiting = [0, SHORT_BYTES, SHORT_BYTES + 1, LATE_BYTES, LATE_BYTES + 1]
    assert [gives_way(waiting_bytes) for waiting_bytes in waiting] == [0, 0, 1, 1, 0]
