"""Requests and their times in a node's status."""

from pathlib import Path

from node.runtime.stats import StatsPage, read_stats
from node.runtime.stats_series import DURATION, LOG_FLUSH, READER, REQUESTS, WRITER
from node.supervisor.status import OperationStatus, operations

MS = 1_000_000


def rows(root: Path) -> dict[str, OperationStatus]:
    return {row.op: row for row in operations(read_stats(root))}


def test_a_node_that_was_asked_for_nothing_has_no_operations(tmp_path: Path) -> None:
    with StatsPage(tmp_path, WRITER, 0), StatsPage(tmp_path, READER, 0):
        assert rows(tmp_path) == {}


def test_all_readers_of_a_node_count_together(tmp_path: Path) -> None:
    for index, took_ms in ((0, 1), (1, 5)):
        with StatsPage(tmp_path, READER, index) as page:
            counts = page.counts
            counts.observe(counts.place(DURATION, op="find"), took_ms * MS, 10)
            counts.numbers[counts.place(REQUESTS, op="find", code="OK")] += 10
            counts.numbers[counts.place(REQUESTS, op="find", code="SYSTEM_BUSY")] += index
    (row,) = rows(tmp_path).values()
    assert (row.op, row.requests, row.failed) == ("find", 21, 1)
    assert 0.5 < (row.p50_ms or 0) <= 1.05  # exact to a power of two
    assert 4 < (row.p99_ms or 0) <= 8.4
    assert (sum(row.buckets), row.buckets[-1]) == (20, 10)


def test_flushes_stand_beside_the_requests(tmp_path: Path) -> None:
    with StatsPage(tmp_path, WRITER, 0) as page:
        page.counts.observe(page.counts.place(LOG_FLUSH, mode="sync"), 3 * MS, 4)
    row = rows(tmp_path)["log_flush"]
    assert (row.requests, row.failed) == (4, 0)
    assert 2 < (row.p99_ms or 0) <= 4.2


def test_what_was_only_refused_has_no_times(tmp_path: Path) -> None:
    with StatsPage(tmp_path, WRITER, 0) as page:
        page.counts.numbers[page.counts.place(REQUESTS, op="append", code="NO_PERMISSION")] += 2
    row = rows(tmp_path)["append"]
    assert (row.requests, row.failed, row.p50_ms, row.buckets) == (2, 2, None, ())
