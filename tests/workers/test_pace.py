"""How long a worker sleeps between turns: woken at once in quiet times and for who waits."""

from workers.pace import IDLE_S, Sleep, TurnPace


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
