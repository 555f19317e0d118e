"""A long recovery says how far it is: on stderr, and to the supervisor, which shows it."""

from pathlib import Path

from node.runtime.settings import Settings
from node.supervisor.bind import Advertised
from node.supervisor.child_process import parse_report
from node.supervisor.options import Options
from node.supervisor.plan import (
    ChildState,
    RestartLimits,
    note_exit,
    note_recovery,
    note_start,
    plan_children,
)
from node.supervisor.status import NodeView, health, status
from node.writer.recovery import RecoveryProgress, progress_line

MIB = 1024 * 1024


def view(root: Path) -> NodeView:
    children = plan_children(1, 1, with_index=False)
    note_start(children[0], 1, now=0.0)
    return NodeView(
        root,
        Options(root),
        Settings(),
        children,
        Advertised("127.0.0.1"),
        False,
        False,
        now=90.0,
        started_at=0.0,
    )


def test_the_line_names_the_part_that_is_done_and_the_time_that_is_left() -> None:
    line = progress_line(300 * MIB, 1200 * MIB, elapsed_s=5.0)
    assert line == "recovering: 25% of 1200 MiB of the log, about 15 s left"
    assert progress_line(0, 0, 0.0) == "recovering: 0% of 0 MiB of the log"


def test_a_line_comes_each_second_and_a_short_recovery_says_nothing() -> None:
    now = [0.0]
    said: list[str] = []
    reports: list[tuple[int, int]] = []
    progress = RecoveryProgress(lambda *pair: reports.append(pair), said.append, lambda: now[0])
    for tenth in range(35):
        now[0] = 100 + tenth / 10
        progress(1_000 + tenth, 1_100)
    assert [line.split()[1] for line in said] == ["10%", "20%", "30%"]
    assert reports[0] == (0, 100)
    assert 10 <= len(reports) <= 18


def test_a_recovering_writer_is_neither_dead_nor_silent(tmp_path: Path) -> None:
    node = view(tmp_path)
    report = parse_report(b'{"recovering": [340, 1000]}')
    assert report is not None
    assert report.recovered is not None
    note_recovery(node.children[0], report.recovered)
    row = status(node).processes[0]
    assert (row.state, row.recovered) == ("recovering", 0.34)
    check = next(one for one in health(node).checks if one.name == "writer")
    assert (check.ok, check.detail) == (False, "0 of 1 running, writer recovering, 34% done")
    assert node.children[0].state is ChildState.STARTING


def test_what_a_dead_writer_had_recovered_is_forgotten(tmp_path: Path) -> None:
    node = view(tmp_path)
    note_recovery(node.children[0], 0.5)
    note_exit(node.children[0], -9, 1.0, RestartLimits())
    row = status(node).processes[0]
    assert (row.state, row.recovered) == ("backing_off", None)
