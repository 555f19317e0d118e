"""What a supervisor makes of ends for which the disk is to blame, and what it tells others."""

import errno
from pathlib import Path

import pytest

from node.runtime.process import (
    EXIT_DISK_ERROR,
    EXIT_DISK_FULL,
    EXIT_NO_RESOURCES,
    disk_error,
    end_badly,
    exit_code,
)
from node.supervisor.child_process import ChildReport, parse_report
from node.supervisor.plan import (
    Child,
    ChildRole,
    ChildState,
    Refusal,
    RestartLimits,
    hint_of_end,
    is_due,
    must_end,
    next_due,
    note_exit,
    note_ready,
    note_start,
    plan_children,
    refusal_of_appends,
)
from protocol.errors import ServiceNotAvailable, StoreDamaged

LIMITS = RestartLimits()
FULL = "disk_full: /s/keelog/epochs.new: No space left on device"


def ended(code: int, words: str = "", times: int = 1) -> Child:
    """A writer that ended so often with a code and last words, never ready in between."""
    child = Child(ChildRole.WRITER, 0)
    for second in range(times):
        note_start(child, 1, float(second))
        if words:
            child.last_words = words
        note_exit(child, code, float(second), LIMITS)
    return child


def test_a_writer_without_room_is_tried_again_for_ever_and_says_so_while_it_starts() -> None:
    child = ended(EXIT_DISK_FULL, FULL, times=50)
    assert (child.state, child.crashes) == (ChildState.DISK_FULL, 0)
    assert next_due([child]) == child.start_at == 49.0 + LIMITS.full_disk_s
    assert not is_due(child, [child], child.start_at - 0.1)
    assert is_due(child, [child], child.start_at)
    expected = Refusal("disk_full", FULL.removeprefix("disk_full: "), "")
    for _ in range(2):
        refused = refusal_of_appends(child)
        assert refused is not None
        assert refused[:2] == expected[:2]
        note_start(child, 2, 60.0)
    note_ready(child, "tcp://127.0.0.1:1")
    assert refusal_of_appends(child) is None


def test_a_writer_without_descriptors_is_tried_again_for_ever_and_says_so() -> None:
    child = ended(EXIT_NO_RESOURCES, "no_resources: /s/run: Too many open files", times=50)
    assert (child.state, child.crashes) == (ChildState.NO_RESOURCES, 0)
    assert child.restarts_by_reason == {"no_resources": 49}
    assert is_due(child, [child], child.start_at)
    refused = refusal_of_appends(child)
    assert refused is not None
    assert refused[:2] == ("no_resources", "/s/run: Too many open files")
    assert "LimitNOFILE" in refused.hint


def test_a_node_of_which_nothing_ever_ran_ends_and_one_with_a_reader_goes_on() -> None:
    children = plan_children(1, 1, with_index=True)
    for child in children:
        child.is_failing = True
    assert must_end(children) == 1
    children[-1].was_ready = True
    assert must_end(children) is None


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (-9, "", "give them more memory"),
        (EXIT_NO_RESOURCES, "no_resources: /s: Cannot allocate memory", "give them more memory"),
        (1, "no_resources: can't start new thread", "raise the limit of tasks"),
        (-6, "", "a filter of system calls may forbid what they need"),
        (EXIT_DISK_ERROR, "disk_error: /s/f: Function not implemented", "that file or its disk"),
        (1, "ImportError: typing", "see what they said above"),
    ],
)
def test_the_hint_for_a_node_that_does_not_start_follows_from_the_cause(
    code: int, words: str, hint: str
) -> None:
    found = hint_of_end([ended(code, words), ended(code, words)], False)
    assert hint in found
    assert ("memory" in found) == ("memory" in hint)


def test_where_the_address_space_is_limited_an_end_without_words_is_a_lack_of_memory() -> None:
    assert "ulimit -v" in hint_of_end([ended(1)], True)
    assert "ulimit -v" not in hint_of_end([ended(1)], False)
    assert "ulimit -v" not in hint_of_end([ended(1, "ImportError: typing")], True)


def test_others_start_to_serve_what_is_there_while_the_writer_waits_for_room() -> None:
    children = plan_children(1, 1, with_index=True)
    note_start(children[0], 1, 0.0)
    note_exit(children[0], EXIT_DISK_FULL, 0.0, LIMITS)
    assert all(is_due(child, children, 0.0) for child in children[1:])
    assert must_end(children) is None


@pytest.mark.parametrize("code", [EXIT_DISK_ERROR, 1, -9])
def test_a_writer_in_a_crash_loop_makes_the_node_read_only_for_its_last_reason(code: int) -> None:
    words = "disk_error: /s/commitlog/0: Input/output error" if code > 0 else ""
    assert refusal_of_appends(ended(code, words, times=4)) is None
    refused = refusal_of_appends(ended(code, words, times=5))
    assert refused is not None
    assert refused.reason == "read_only"
    state = "given_up" if code == EXIT_DISK_ERROR else "failing"
    assert refused.cause == f"the writer is {state}: {words or 'it ended with signal 9'}"


def test_a_damaged_log_makes_it_read_only_and_is_told_from_a_bad_disk() -> None:
    refused = refusal_of_appends(ended(5, "/s/commitlog/0, offset 7: bad"))
    assert refused is not None
    assert refused.cause == "the writer is damaged: /s/commitlog/0, offset 7: bad"
    assert "verify" in refused.hint


def test_last_words_of_one_run_are_not_taken_for_those_of_the_next() -> None:
    child = ended(EXIT_DISK_FULL, FULL)
    note_start(child, 2, 10.0)
    note_exit(child, -9, 11.0, LIMITS)
    assert (child.cause, child.lacks) == ("it ended with signal 9", None)


@pytest.mark.parametrize(
    ("line", "report"),
    [
        (b'{"ready": true, "endpoint": "tcp://h:1"}', ChildReport("tcp://h:1")),
        (b'{"ready": true}', ChildReport("")),
        (b'{"ended": "why"}', ChildReport(None, "why")),
        (b'{"ready": false}', None),
        (b"[1]", None),
        (b"no json", None),
        (b"", None),
    ],
)
def test_what_a_child_reports_is_a_line_of_json(line: bytes, report: ChildReport | None) -> None:
    assert parse_report(line) == report


@pytest.mark.parametrize(
    ("number", "code", "start"),
    [
        (errno.ENOSPC, EXIT_DISK_FULL, "disk_full: /s/f: "),
        (errno.EDQUOT, EXIT_DISK_FULL, "disk_full: /s/f: "),
        (errno.EMFILE, EXIT_NO_RESOURCES, "no_resources: /s/f: "),
        (errno.ENFILE, EXIT_NO_RESOURCES, "no_resources: /s/f: "),
        (errno.ENOMEM, EXIT_NO_RESOURCES, "no_resources: /s/f: "),
        (errno.EIO, EXIT_DISK_ERROR, "disk_error: /s/f: "),
        (errno.EROFS, EXIT_DISK_ERROR, "disk_error: /s/f: "),
    ],
)
def test_each_error_of_the_disk_has_its_exit_code_and_three_lines(
    number: int, code: int, start: str, capfd: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, "why", "/s/f")
    assert disk_error(error, "/s").reason == f"{start}why"
    assert end_badly("it stops", error, "/s", None) == code
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"]
    assert lines[1] == f"cause: {start}why"


def test_a_refused_segment_is_a_full_disk_and_damage_is_not() -> None:
    assert exit_code(ServiceNotAvailable("disk_full: no room for the segment")) == EXIT_DISK_FULL
    assert exit_code(ServiceNotAvailable("the address is taken")) == 1
    assert exit_code(StoreDamaged("f", 0, "disk_full is no reason here")) == 5


def test_an_error_without_a_file_names_the_store(tmp_path: Path) -> None:
    reason = disk_error(OSError(errno.EIO, "why"), str(tmp_path)).reason
    assert reason == f"disk_error: {tmp_path}: why"
