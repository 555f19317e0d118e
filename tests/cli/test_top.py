"""`keelog top`: figures of two looks, the screen as lines, keys."""

import re
from typing import Any

import pytest

from keelog.cli.node.top import SORTS, figures, fitted, lines


def process(role: str, index: int = 0, **changes: Any) -> dict[str, Any]:
    usual = {
        "role": role,
        "index": index,
        "pid": 10 + index,
        "state": "running",
        "restarts": 0,
        "uptime_s": 47.2,
        "rss_bytes": 45 << 20,
        "cpu_s": 1.0,
        "lag_bytes": 0,
    }
    return {**usual, **changes}


def operation(op: str, requests: int, failed: int, buckets: list[int]) -> dict[str, Any]:
    times = {"p50_ms": 1.0, "p99_ms": 1.0, "buckets": buckets}
    return {"op": op, "requests": requests, "failed": failed, **times}


def status(records: int = 0, appended: int = 0, **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "ready": True,
        "mode": "normal",
        "cause": None,
        "store": "/var/lib/keelog/store",
        "log": {"records": records, "appended": appended, "flushed": appended // 2, "epoch": 3},
        "disk": {"free_bytes": 5 << 30, "used_ratio": 0.5},
        "groups": {"rows": []},
        "operations": [],
        "processes": [process("writer"), process("queue"), process("index"), process("reader")],
    }
    return {**usual, **changes}


def test_rates_are_of_the_interval_and_never_below_nothing() -> None:
    before, after = status(100, 5_000), status(350, 9_000)
    assert figures(before, after, 2.0)["rates"] == {
        "records_per_s": 125.0,
        "appended_bytes_per_s": 2000.0,
    }
    # A writer that was started again counts its records from 0.
    assert figures(after, status(1, 9_100), 1.0)["rates"]["records_per_s"] == 0.0


def test_times_are_those_of_the_interval_alone() -> None:
    before = status(operations=[operation("append", 1000, 0, [0] * 10 + [1000])])
    after = status(operations=[operation("append", 1100, 10, [0] * 10 + [1000] + [0] * 11 + [90])])
    (row,) = figures(before, after, 10.0)["operations"]
    assert (row["op"], row["per_s"], row["failed_per_s"]) == ("append", 10.0, 1.0)
    assert (1 << 21) / 1e6 < row["p50_ms"] <= row["p99_ms"] <= (1 << 22) / 1e6
    (idle,) = figures(after, after, 10.0)["operations"]
    assert (idle["per_s"], idle["p50_ms"], idle["p99_ms"]) == (0.0, None, None)


def test_an_operation_that_is_new_and_counts_that_began_anew_do_no_harm() -> None:
    older_node = {name: value for name, value in status().items() if name != "operations"}
    full = status(operations=[operation("pull", 5, 0, [0, 5])])
    assert figures(older_node, older_node, 1.0)["operations"] == []
    assert figures(status(), full, 1.0)["operations"][0]["per_s"] == 5.0
    (anew,) = figures(full, status(operations=[operation("pull", 1, 0, [1])]), 1.0)["operations"]
    assert (anew["per_s"], anew["p50_ms"]) == (0.0, None)


def test_cpu_is_a_share_of_one_processor_for_a_process_that_was_there_all_the_time() -> None:
    before = status(processes=[process("writer"), process("queue"), process("index", cpu_s=None)])
    rows = [process("writer", cpu_s=1.5), process("queue", pid=99, cpu_s=0.1), process("index")]
    found = figures(before, status(processes=rows), 2.0)["processes"]
    assert [row["cpu_percent"] for row in found] == [25.0, None, None]


def test_the_lag_is_that_of_the_slowest_worker() -> None:
    rows = [
        process("queue", 0, lag_bytes=5),
        process("queue", 1, lag_bytes=70),
        process("index", lag_bytes=None),
    ]
    found = figures(status(), status(processes=rows), 1.0)
    assert found["dispatch_lag_bytes"] == {"queues": 70, "index": 0}


@pytest.mark.parametrize(
    ("sort", "first"),
    [("process", "writer"), ("cpu", "queue"), ("memory", "index"), ("lag", "reader")],
)
def test_processes_can_be_sorted_the_largest_first(sort: str, first: str) -> None:
    rows = [
        process("writer"),
        process("queue", cpu_s=9.0),
        process("index", rss_bytes=1 << 40),
        process("reader", lag_bytes=7, rss_bytes=None),
    ]
    found = figures(status(), status(processes=rows), 1.0, sort)["processes"]
    assert found[0]["role"] == first
    assert len(found) == 4


def test_every_sort_takes_processes_that_do_not_run() -> None:
    gone = process("reader", pid=None, rss_bytes=None, cpu_s=None, lag_bytes=None, uptime_s=0.0)
    for sort in SORTS:
        found = figures(status(), status(processes=[gone, process("writer")]), 1.0, sort)
        assert any("reader 0" in line for line in lines(found, sort))


def test_groups_are_shown_with_the_age_of_their_oldest_message() -> None:
    row = {"group": "billing", "topic": "orders", "members": 2, "lag": 1_200, "in_flight": 32}
    rows = [{**row, "lag_ms": 200_000}, {**row, "group": "old", "lag_ms": None}]
    shown = lines(figures(status(), status(groups={"rows": rows}), 1.0), "process")
    assert any(re.search(r"^billing +orders +2 +1,200 +32 +3 m 20 s$", line) for line in shown)
    assert any(re.search(r"^old +orders +2 +1,200 +32$", line) for line in shown)


def test_a_busy_node_fits_into_80_columns() -> None:
    operation_rows = [operation("append", 987_654_321, 1_234_567, [0] * 33 + [987_654_321])]
    rows = [
        process(role, 63, pid=4_194_304, state="recovering", restarts=1234, lag_bytes=1 << 50)
        for role in ("writer", "reader")
    ]
    found = figures(
        status(processes=rows), status(10**9, 1 << 40, operations=operation_rows, processes=rows), 1
    )
    shown = lines(found, "process", "; s: by the next, q: end")
    assert max(map(len, shown)) <= 80, "\n".join(shown)
    assert any(
        re.search(r"append +987,654,321 +1,234,567 +[\d,.]+ +[\d,.]+$", one) for one in shown
    )
    assert "in     1,000,000,000 messages/s, 1,099,511.63 MB/s" in shown


def test_why_appends_are_refused_stands_on_the_screen() -> None:
    full = status(ready=False, mode="disk_full", cause="no room")
    shown = lines(figures(full, full, 1.0), "process")
    assert shown[0].endswith("not ready, disk_full, epoch 3")
    assert shown[1] == "appends are refused, reads go on. no room"


def test_what_does_not_fit_is_cut_and_counted() -> None:
    assert fitted(["a" * 12, "b"], 10, 5) == ["a" * 9 + "…", "b"]
    assert fitted(["a", "b", "c"], 10, 3) == ["a", "b", "c"]
    assert fitted(["a", "b", "c"], 10, 2) == ["a", "… 2 more lines"]
