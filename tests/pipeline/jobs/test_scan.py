"""Ranges of the log: cut anywhere they read what one walk reads, also past forged records."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.jobs.scan import (
    RangeEnds,
    RangeScan,
    ScanRange,
    plan_ranges,
    scan_ends,
    stitch,
)
from keelog.pipeline.stores.access import StoreAt
from keelog.pipeline.task_spec import LogAt
from node.store.file_cache import OpenFiles
from node.store.opening import open_store
from protocol.record.codec import SHORT_HEAD
from tests.pipeline.jobs.forged_log import forged_log
from tests.support.golden import GetStore
from tests.workers.living_log import SETTINGS, LivingLog

STORES = ("mixed-kinds", "small-torn", "trimmed")


def log_of(root: Path) -> LogAt:
    with open_store(root, SETTINGS) as store:
        return LogAt.of(StoreAt("", str(root)), store.log)


def read(log: LogAt, span: ScanRange) -> tuple[list[int], RangeEnds]:
    files = OpenFiles()
    scan = RangeScan(log.open(files), span)
    starts = [start for columns in scan for start in columns.physical_offset.tolist()]
    files.close()
    return starts, scan.ends()


def cut(log: LogAt, places: list[float]) -> list[ScanRange]:
    """Ranges with borders at these shares of the log, and at each segment."""
    span = log.end - log.start
    borders = {log.start, log.end} | {log.start + int(span * share) for share in places}
    borders |= {segment for segment in log.segments if segment < log.end}
    return [
        ScanRange(number, low, high, low in log.segments)
        for number, (low, high) in enumerate(pairwise(sorted(borders)))
    ]


@pytest.fixture(scope="module")
def logs(golden: GetStore) -> dict[str, tuple[LogAt, list[int]]]:
    """Each store's log, and where its records start by one walk."""
    found = {}
    for name in STORES:
        log = log_of(golden(name))
        files = OpenFiles()
        reader = log.open(files)
        starts = [
            start for part in reader.columns(log.start) for start in part.physical_offset.tolist()
        ]
        files.close()
        found[name] = log, starts
    return found


@given(st.sampled_from(STORES), st.lists(st.floats(0, 1), max_size=8))
def test_any_cut_reads_what_one_walk_reads(
    logs: dict[str, tuple[LogAt, list[int]]], name: str, places: list[float]
) -> None:
    log, expected = logs[name]
    ranges = cut(log, places)
    found = [read(log, span) for span in ranges]
    assert [start for starts, _ in found for start in starts] == expected
    stitched = stitch(log, ranges, [ends for _, ends in found])
    assert (stitched.is_same, stitched.torn) == (True, None)
    assert [span.start for span in stitched.ranges] == [starts[0] for starts, _ in found if starts]


def test_planned_ranges_cover_the_log_once_and_never_cross_a_segment(golden: GetStore) -> None:
    log = log_of(golden("trimmed"))
    for length, least in ((50_000, 1), (1 << 30, 1), (1 << 30, 37)):
        ranges = plan_ranges(log, length, least)
        assert [span.start for span in ranges[1:]] == [span.stop for span in ranges[:-1]]
        assert (ranges[0].start, ranges[-1].stop) == (log.start, log.end)
        step = log.segment_bytes
        assert all(span.start // step == (span.stop - 1) // step for span in ranges)
        assert all(span.is_proven == (span.start in log.segments) for span in ranges)
        assert len(ranges) >= least


def test_a_body_that_imitates_a_record_at_its_own_place_trips_the_stitch_and_is_repaired(
    tmp_path: Path,
) -> None:
    start, place = forged_log(tmp_path)
    log = log_of(tmp_path)
    ranges = [
        ScanRange(0, 0, start + 100, True),
        ScanRange(1, start + 100, place + 1000, False),
        ScanRange(2, place + 1000, log.end, False),
    ]
    tripped = scan_ends(log, ranges[1])
    assert tripped.first == place
    stitched = stitch(log, ranges, [scan_ends(log, span) for span in ranges])
    assert (stitched.is_same, stitched.torn) == (False, None)
    again = stitched.ranges
    found = [read(log, span) for span in again]
    whole, _ = read(log, ScanRange(0, 0, log.end, True))
    assert [one for starts, _ in found for one in starts] == whole
    assert place not in whole
    assert stitch(log, again, [ends for _, ends in found]).is_same


def test_damage_is_named_where_a_walk_meets_it(tmp_path: Path) -> None:
    log = LivingLog(tmp_path, segment_bytes=64 * 1024)
    log.grow(200)
    log.close()
    at = log.starts[100]
    with (tmp_path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(at + SHORT_HEAD.offsets["physical_offset"])
        file.write(b"\1")
    ranges = cut(log_of(tmp_path), [0.1, 0.3, 0.5, 0.6, 0.9])
    stitched = stitch(log_of(tmp_path), ranges, [read(log_of(tmp_path), r)[1] for r in ranges])
    assert stitched.torn is not None
    assert (stitched.torn.position, stitched.torn.kind) == (at, "wrong_place")
