"""What a supervisor decides about its children, without one process."""

import pytest

from node.runtime.process import EXIT_DISK_ERROR
from node.supervisor.bind import parse_bind
from node.supervisor.plan import (
    Child,
    ChildRole,
    ChildState,
    RestartLimits,
    Sign,
    backoff_s,
    has_settled,
    is_due,
    is_stalled,
    must_end,
    next_due,
    note_exit,
    note_ready,
    note_recovery,
    note_sign,
    note_start,
    plan_children,
    serves_what_was_asked_for,
    summary,
)
from protocol.errors import BadRequest

LIMITS = RestartLimits()


def running(role: ChildRole = ChildRole.WRITER) -> Child:
    child = Child(role, 0)
    note_start(child, 1, 0.0)
    note_ready(child, "tcp://127.0.0.1:1")
    return child


def test_the_pause_before_a_restart_doubles_up_to_its_maximum() -> None:
    assert [backoff_s(n, LIMITS) for n in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert backoff_s(9, LIMITS) == backoff_s(10_000, LIMITS) - 4.4 == pytest.approx(25.6)


def test_a_crashed_child_is_due_after_its_pause_and_not_before() -> None:
    child = running()
    note_exit(child, -9, 10.0, LIMITS)
    assert child.state is ChildState.BACKING_OFF
    assert not is_due(child, [child], 10.05)
    assert is_due(child, [child], 10.1)
    assert next_due([child]) == 10.1


@pytest.mark.parametrize(
    ("code", "state"), [(2, ChildState.REFUSED), (5, ChildState.DAMAGED), (6, ChildState.REFUSED)]
)
def test_exit_codes_that_ask_for_no_restart_get_none(code: int, state: ChildState) -> None:
    child = running()
    note_exit(child, code, 1.0, LIMITS)
    assert child.state is state
    assert not is_due(child, [child], 1e9)


def failing(role: ChildRole = ChildRole.WRITER, code: int = 1) -> Child:
    """In a crash loop since its fifth end, at 8 s."""
    child = running(role)
    for second in range(0, 10, 2):
        note_start(child, 1, float(second))
        note_exit(child, code, float(second), LIMITS)
    return child


def test_five_crashes_in_a_row_are_a_crash_loop_which_is_tried_again_for_ever() -> None:
    child = failing(ChildRole.TASKS)
    now, pauses = 8.0, []
    for _ in range(30):
        assert child.state is ChildState.FAILING
        assert not is_due(child, [child], child.start_at - 0.01)
        assert is_due(child, [child], child.start_at)
        pauses.append(child.start_at - now)
        now = child.start_at
        note_start(child, 1, now)
        assert child.is_failing  # until it is ready
        now += 20.0
        note_exit(child, 1, now, LIMITS)
    assert pauses[:4] == pytest.approx([1.6, 3.2, 6.4, 12.8])
    assert pauses[5:] == pytest.approx([LIMITS.backoff_s_max] * 25)


def test_a_crash_loop_that_becomes_ready_in_between_is_still_one() -> None:
    child = failing(ChildRole.TASKS)
    note_start(child, 1, child.start_at)
    note_ready(child, "")
    assert (child.state, child.is_failing) == (ChildState.RUNNING, False)
    note_exit(child, 1, child.start_at + 5.0, LIMITS)
    assert (child.state, child.crashes) == (ChildState.FAILING, 6)
    note_start(child, 1, 100.0)
    note_ready(child, "")
    note_exit(child, 1, 161.0, LIMITS)
    assert (child.state, child.crashes) == (ChildState.BACKING_OFF, 1)


def test_a_process_that_cannot_be_started_at_all_is_in_a_crash_loop_too() -> None:
    child = Child(ChildRole.READER, 0)
    now = 1000.0
    for _ in range(5):
        note_exit(child, 1, now, LIMITS)
        now = child.start_at
    assert (child.state, child.crashes) == (ChildState.FAILING, 5)


def test_a_writer_whose_disk_fails_is_given_up_and_no_other_process() -> None:
    assert failing(code=EXIT_DISK_ERROR).state is ChildState.GIVEN_UP
    assert failing(ChildRole.INDEX, EXIT_DISK_ERROR).state is ChildState.FAILING


def test_crashes_far_apart_are_no_crash_loop_and_pause_but_shortly() -> None:
    child = running()
    for minute in range(20):
        note_start(child, 1, minute * 61.0 + 1)
        note_exit(child, 1, (minute + 1) * 61.0 + 1.5, LIMITS)
        assert child.state is ChildState.BACKING_OFF
        assert child.start_at == pytest.approx((minute + 1) * 61.0 + 1.6)


def test_without_a_limit_there_is_no_crash_loop() -> None:
    child = running()
    for second in range(100):
        note_exit(child, 1, second / 10, RestartLimits(crashes_max=0))
    assert (child.state, child.is_failing) == (ChildState.BACKING_OFF, False)


def test_a_child_that_was_asked_to_stop_is_stopped_whatever_its_code() -> None:
    child = running()
    child.state = ChildState.STOPPING
    note_exit(child, 1, 1.0, LIMITS)
    assert child.state is ChildState.STOPPED


def test_a_restarted_child_keeps_its_endpoint() -> None:
    child = running()
    note_exit(child, 1, 1.0, LIMITS)
    note_start(child, 2, 2.0)
    assert (child.endpoint, child.state) == ("tcp://127.0.0.1:1", ChildState.STARTING)


def test_the_others_wait_for_the_first_start_of_the_writer() -> None:
    children = plan_children(2, 1, with_index=True)
    assert [child.role for child in children] == ["writer", "queue", "queue", "index", "reader"]
    assert [is_due(child, children, 0.0) for child in children] == [True, *[False] * 4]
    note_start(children[0], 1, 0.0)
    note_ready(children[0], "")
    assert [is_due(child, children, 0.0) for child in children] == [False, *[True] * 4]


def test_the_others_start_when_the_writer_fails_too() -> None:
    children = plan_children(1, 1, with_index=False)
    children[0] = failing()
    children[0].was_ready = False
    assert all(is_due(child, children, 0.0) for child in children[1:])
    assert must_end(children) is None
    assert not serves_what_was_asked_for(children)


@pytest.mark.parametrize("code", [2, 5, 6])
def test_a_writer_that_refuses_the_store_at_its_first_start_ends_the_node(code: int) -> None:
    children = plan_children(1, 1, with_index=True)
    note_start(children[0], 1, 0.0)
    note_exit(children[0], code, 1.0, LIMITS)
    assert must_end(children) == code


def test_a_writer_that_meets_damage_later_leaves_the_node_up_for_reading() -> None:
    children = plan_children(1, 1, with_index=True)
    note_start(children[0], 1, 0.0)
    note_ready(children[0], "")
    note_exit(children[0], 5, 1.0, LIMITS)
    assert must_end(children) is None


def test_a_node_is_ready_with_its_writer_and_one_reader() -> None:
    children = plan_children(1, 2, with_index=False)
    for child in (children[0], children[2]):
        note_start(child, 1, 0.0)
        note_ready(child, "tcp://h:1")
    assert serves_what_was_asked_for(children)
    assert not has_settled(children, 1.0, LIMITS)
    assert summary(children) == "writer tcp://h:1, 0 queue workers, 1 reader"


@pytest.mark.parametrize("role", [ChildRole.GATEWAY, ChildRole.TASKS, ChildRole.FOLLOWERS])
def test_what_an_option_asked_for_is_needed_to_be_ready(role: ChildRole) -> None:
    children = plan_children(1, 1, True, with_gateway=True, with_followers=True)
    for child in children:
        note_start(child, 1, 0.0)
        note_ready(child, "tcp://h:1")
    assert serves_what_was_asked_for(children)
    (asked,) = [child for child in children if child.role is role]
    note_exit(asked, 1, 1.0, LIMITS)
    assert not serves_what_was_asked_for(children)


def test_a_first_start_waits_for_slow_workers_only_so_long() -> None:
    children = plan_children(1, 1, with_index=False)
    for child in children:
        note_start(child, 1, 0.0)
    for child in (children[0], children[2]):
        note_ready(child, "")
    assert not has_settled(children, LIMITS.settle_s_max, LIMITS)
    assert has_settled(children, LIMITS.settle_s_max + 0.1, LIMITS)
    note_exit(children[1], 1, 1.0, LIMITS)
    assert has_settled(children, 1.0, LIMITS)


def test_children_listen_above_the_control_port_or_on_free_ports() -> None:
    place = parse_bind("tcp://127.0.0.1:7850")
    assert [place.child(n).bound for n in (1, 2)] == [
        "tcp://127.0.0.1:7851",
        "tcp://127.0.0.1:7852",
    ]
    assert place.child(2, before="tcp://127.0.0.1:9").bound == "tcp://127.0.0.1:9"
    free = parse_bind("tcp://127.0.0.1:0").with_port_of("tcp://127.0.0.1:4711")
    assert (free.port, free.child(1).bound) == (4711, "tcp://127.0.0.1:0")


@pytest.mark.parametrize(
    ("bind", "loopback", "local"),
    [
        ("tcp://127.0.0.1:1", True, True),
        ("tcp://[::1]:1", True, False),
        ("tcp://localhost:1", True, True),
        ("tcp://0.0.0.0:1", False, False),
        ("tcp://*:1", False, False),
        ("tcp://10.0.0.1:1", False, False),
    ],
)
def test_an_address_that_others_can_reach_is_known(bind: str, loopback: bool, local: bool) -> None:
    """Local sockets are for clients that come from 127.0.0.1 in any case."""
    place = parse_bind(bind)
    assert (place.is_loopback, place.takes_local) == (loopback, local)


@pytest.mark.parametrize("bind", ["", "127.0.0.1", "tcp://x", "tcp://x:70000", "ipc:///tmp/x"])
def test_what_is_no_tcp_address_is_refused(bind: str) -> None:
    with pytest.raises(BadRequest):
        parse_bind(bind)


def computing(seconds: int, recovered_at: int | None = None) -> Child:
    """A process that starts, and of which nothing is seen but processor time."""
    child = Child(ChildRole.WRITER, 0)
    note_start(child, 1, 0.0)
    for second in range(seconds + 1):
        note_sign(child, Sign(7, 4096, float(second)), 1.0)
        if second == recovered_at:
            note_recovery(child, 0.5)
    return child


def test_a_start_may_compute_for_minutes_and_not_for_ever() -> None:
    assert not is_stalled(computing(300), LIMITS)
    assert is_stalled(computing(301), LIMITS)


def test_a_recovery_that_goes_on_is_a_sign_of_life() -> None:
    assert not is_stalled(computing(301, recovered_at=1), LIMITS)
    assert not is_stalled(computing(600, recovered_at=300), LIMITS)
