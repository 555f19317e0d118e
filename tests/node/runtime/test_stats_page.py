"""Stats pages: counts outlive processes, and no page is believed that is not one."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.runtime import stats as module
from node.runtime.stats import BUCKETS, SUM, Counts, StatsPage, read_stats, stats_dir
from node.runtime.stats_series import (
    APPEND,
    CODES,
    DURATION,
    IN_FLIGHT,
    LOG_BATCH,
    OK,
    REQUESTS,
    SERIES,
    WRITER,
    series,
)
from protocol import errors

ANSWERED = series(REQUESTS, op=APPEND, code=OK)


def count(root: Path, requests: int, durations_ns: tuple[int, ...] = ()) -> None:
    """One life of a writer."""
    with StatsPage(root, WRITER, 0) as page:
        counts = page.counts
        counts.numbers[counts.place(REQUESTS, op=APPEND, code=OK)] += requests
        counts.numbers[counts.place(IN_FLIGHT, op=APPEND)] += requests
        for duration_ns in durations_ns:
            counts.observe(counts.place(DURATION, op=APPEND), duration_ns)


def test_a_slot_goes_on_counting_after_a_restart_and_its_gauges_begin_anew(tmp_path: Path) -> None:
    count(tmp_path, 5, (3, 1000))
    count(tmp_path, 2, (4,))
    (slot,) = read_stats(tmp_path)
    assert (slot.role, slot.index) == (WRITER, 0)
    assert slot.values[ANSWERED] == 7
    assert slot.values[series(IN_FLIGHT, op=APPEND)] == 2
    durations = slot.histograms[series(DURATION, op=APPEND)]
    assert (durations.total, durations.value_sum) == (3, 1007)
    assert [number for number, n in enumerate(durations.buckets) if n] == [2, 3, 10]


def test_what_is_not_published_is_not_seen_and_what_is_survives_a_kill(tmp_path: Path) -> None:
    page = StatsPage(tmp_path, WRITER, 0)
    place = page.counts.place(REQUESTS, op=APPEND, code=OK)
    page.counts.numbers[place] = 9
    assert read_stats(tmp_path)[0].values[ANSWERED] == 0
    page.publish()
    page.counts.numbers[place] = 10  # and the process is killed
    assert StatsPage(tmp_path, WRITER, 0).counts.numbers[place] == 9


@given(st.data())
def test_a_page_with_other_bytes_is_replaced_and_never_believed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    count(root, 5)
    path = stats_dir(root) / "writer-0"
    good = path.read_bytes()
    size = data.draw(st.sampled_from((0, 7, len(good) - 8, len(good), len(good) + 4096)))
    bad = bytearray(good[:size].ljust(size, b"\0"))
    if size == len(good):
        at = data.draw(st.integers(0, 15))
        bad[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bad)
    assert read_stats(root) == []
    count(root, 3)
    assert read_stats(root)[0].values[ANSWERED] == 3


def test_numbers_that_nobody_can_have_counted_are_damage(tmp_path: Path) -> None:
    count(tmp_path, 5)
    path = stats_dir(tmp_path) / "writer-0"
    bad = bytearray(path.read_bytes())
    bad[16:24] = b"\xff" * 8
    path.write_bytes(bad)
    assert read_stats(tmp_path) == []


def test_strangers_in_the_folder_are_no_pages(tmp_path: Path) -> None:
    count(tmp_path, 1)
    for name in ("writer-0.new", "nobody-0", "writer-x"):
        (stats_dir(tmp_path) / name).write_bytes((stats_dir(tmp_path) / "writer-0").read_bytes())
    (stats_dir(tmp_path) / "reader-0").mkdir()
    assert [(slot.role, slot.index) for slot in read_stats(tmp_path)] == [(WRITER, 0)]


def test_a_full_disk_costs_the_counts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    count(tmp_path, 5)
    assert "counts are not kept" in caplog.text
    assert read_stats(tmp_path) == []


@given(st.lists(st.integers(0, 2**40), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_within_the_bucket_of_the_value_at_its_rank(
    values: list[int], part: float
) -> None:
    counts = Counts(WRITER)
    place = counts.place(LOG_BATCH)
    for value in values:
        counts.observe(place, value)
    buckets = tuple(counts.numbers[place : place + SUM])
    found = module.Histogram(buckets, counts.numbers[place + SUM])
    rank = max(0, -int(-part * len(values) // 1) - 1)
    exact = sorted(values)[rank]
    quantile = found.quantile(part)
    assert quantile is not None
    assert exact // 2 <= quantile <= 2 * exact + 1
    assert found.plus(found).since(found) == found


def test_no_histogram_reaches_into_the_next_series() -> None:
    counts = Counts(WRITER)
    counts.observe(counts.place(DURATION, op=APPEND), 2**61)
    assert sum(1 for number in counts.numbers if number) == 2
    assert (2**61).bit_length() < SUM < BUCKETS


def test_each_error_of_a_node_has_its_code_and_each_series_its_place_once() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    statuses = {kind.status for kind in kinds if issubclass(kind, errors.MqError)}
    assert statuses - {"OUTCOME_UNKNOWN", "TIMEOUT"} <= set(CODES)
    for declared in SERIES.values():
        assert len(set(declared)) == len(declared)
