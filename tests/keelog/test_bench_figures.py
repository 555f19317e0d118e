"""What a load counts: histograms, plans of open loops, rows of many processes, comparisons."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.bench.job import LatencyHistogram, LoadJob, LoadPace, Recorder
from keelog.bench.load_process import follow
from keelog.bench.processes import SecondFigures, Tally
from keelog.bench.results import (
    Result,
    Stream,
    Summary,
    broken_limits,
    differences,
    regressions,
)
from keelog.bench.sending import END, PayloadHeader
from keelog.bench.workload import Sizes, Workload, batches, make_bodies
from protocol.errors import BadRequest
from protocol.human_text import bytes_of, count_of, seconds_of, share_of

SECOND = 1_000_000_000
LATER = 1 << 62


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200), st.floats(0, 100))
def test_a_percentile_is_within_half_a_percent_of_the_sorted_values(
    values: list[int], percent: float
) -> None:
    histogram = LatencyHistogram()
    histogram.add(np.array(values, np.int64))
    rank = max(1, int(np.ceil(percent / 100 * len(values))))
    exact = sorted(values)[rank - 1] / 1e6
    assert histogram.percentile_ms(percent) == pytest.approx(exact, rel=0.005)
    assert histogram.sum_ns == sum(values)


@given(st.lists(st.integers(0, 10**14)), st.lists(st.integers(0, 10**14)))
def test_merging_is_the_same_as_adding_all_to_one(first: list[int], second: list[int]) -> None:
    merged, whole = LatencyHistogram(), LatencyHistogram()
    for values in (first, second):
        part = LatencyHistogram()
        part.add(np.array(values, np.int64))
        merged.merge(LatencyHistogram.of(part.as_dict()))
    whole.add(np.array(first + second, np.int64))
    assert merged.as_dict() == whole.as_dict()
    assert merged.figures() == whole.figures()


def test_a_stream_without_a_latency_has_figures_without_numbers() -> None:
    assert set(LatencyHistogram().figures().values()) == {None}
    assert LatencyHistogram().distribution() == []


def test_the_distribution_rises_and_ends_at_the_maximum() -> None:
    histogram = LatencyHistogram()
    histogram.add(np.arange(1, 100_001) * 1000)
    percents, values = zip(*histogram.distribution(), strict=True)
    assert list(percents) == sorted(percents)
    assert list(values) == sorted(values)
    assert (percents[-1], values[-1]) == (100.0, 100.0)


def test_an_open_loop_keeps_its_plan_whatever_answers_take() -> None:
    pace = LoadPace(10 * SECOND, 0.25 * SECOND, LATER, 5)
    assert [pace.next() for _ in range(6)] == [
        *(10 * SECOND + step * SECOND // 4 for step in range(5)),
        None,
    ]


def test_a_plan_ends_in_time_even_when_it_is_behind() -> None:
    now = time.monotonic_ns()
    behind = LoadPace(now - 100 * SECOND, SECOND, now - 1, None)
    assert behind.next() is None


@pytest.mark.parametrize(("count", "batch"), [(1000, 1), (1001, 10), (7, 100)])
def test_processes_share_a_count_and_a_rate(count: int, batch: int) -> None:
    callers: Any = "batches" if batch > 1 else "threads"
    load = Workload(count=count, rate=300.0, batch=batch, callers=callers)
    moments = []
    for number in range(3):
        pace = LoadJob("send", number, 3, "", (), load).pace(0)
        while (due := pace.next()) is not None:
            moments.append(due)
    assert count <= len(moments) * batch < count + 3 * batch
    gaps = np.diff(sorted(moments))
    assert gaps == pytest.approx(np.full(len(gaps), batch * SECOND / 300), abs=2)


def test_the_queues_of_consumers_are_all_queues_once() -> None:
    load = Workload(topics=2, queues=5)
    jobs = [LoadJob("consume", number, 3, "", ("a", "b"), load) for number in range(3)]
    found = [queue for job in jobs for queue in job.queues()]
    assert sorted(found) == [(topic, queue) for topic in "ab" for queue in range(5)]
    again = msgspec.json.decode(msgspec.json.encode(jobs[1]), type=LoadJob)
    assert again.queues() == jobs[1].queues()


def _row(
    member: str, second: int, messages: int, latency_ns: int, length: float = 1.0
) -> SecondFigures:
    recorder = Recorder()
    for _ in range(messages):
        recorder.note(latency_ns, 100)
    start = second * SECOND
    return SecondFigures(member, start, start + int(length * SECOND), {"send": recorder.take()})


def test_rates_of_processes_add_up_and_the_warm_up_is_left_out() -> None:
    tally = Tally(0, 1.0)
    for row in (_row("a", 0, 90, 9_000_000), _row("b", 0, 90, 9_000_000)):
        tally.add(row)
    assert tally.close(0)["send"].messages_per_s == 180
    tally.add(_row("a", 1, 10, 1_000_000))
    tally.add(_row("b", 1, 40, 1_000_000, length=2.0))
    stream = tally.streams()["send"]
    assert (stream.summary.messages, stream.steady.messages) == (230, 50)
    assert stream.steady.messages_per_s == 10 + 20
    assert stream.steady.max_ms == 1.0 < 9.0 == stream.summary.max_ms
    assert stream.steady.mb_per_s == pytest.approx(0.003)
    assert [one.messages for one in stream.seconds] == [180, 50]


def _follower_row(start: float, end: float, messages: int, last: float | None) -> SecondFigures:
    recorder = Recorder()
    for _ in range(messages):
        recorder.note(1000, 100)
    recorder.last_ns = None if last is None else int(last * SECOND)
    return SecondFigures(
        "f", int(start * SECOND), int(end * SECOND), {"end_to_end": recorder.take()}
    )


def _followed(*rows: tuple[float, float, int, float | None]) -> Stream:
    tally = Tally(0, 1.0)
    for row in rows:
        tally.add(_follower_row(*row))
    return tally.streams()["end_to_end"]


def test_the_wait_for_the_word_that_all_was_sent_is_no_part_of_a_followers_rate() -> None:
    found = _followed(
        (0.0, 1.0, 500, 0.9), (1.0, 2.0, 500, 1.9), (2.0, 3.0, 400, 2.8), (3.0, 4.0, 0, 2.8),
        (4.0, 4.3, 0, 2.8),
    )  # fmt: skip
    assert (found.steady.seconds, found.steady.messages_per_s) == (1.8, 500)
    assert (found.summary.seconds, found.summary.messages_per_s) == (2.8, 500)
    assert found.steady.mb_per_s == 0.05


def test_a_follower_that_falls_behind_has_the_rate_at_which_messages_came() -> None:
    found = _followed(
        (0.0, 1.0, 500, 0.9), (1.0, 2.0, 100, 1.1), (2.0, 3.0, 0, 1.1), (3.0, 4.0, 100, 4.0),
    )  # fmt: skip
    assert (found.steady.seconds, found.steady.messages_per_s) == (3.0, 66.7)
    assert [one.messages_per_s for one in found.seconds] == [500, 100, 0, 100]


def test_a_follower_to_whom_nothing_came_behind_the_warm_up_has_no_rate() -> None:
    found = _followed((0.0, 1.0, 500, 0.9), (1.0, 2.0, 0, 0.9))
    assert (found.steady.seconds, found.steady.messages_per_s) == (0.0, 0)
    assert _followed((0.0, 1.0, 0, None), (1.0, 2.0, 0, None)).steady.messages_per_s == 0


class TailOfOneQueue:
    """A client whose tail brings three messages and then the word that there are no more."""

    last_sent_ns = 0

    def tail(self, *_: object, **__: object) -> Iterator[SimpleNamespace]:
        for offset, number in enumerate((0, 1, 2, END)):
            if number == END:
                self.last_sent_ns = time.monotonic_ns()
            body = PayloadHeader(time.monotonic_ns(), time.monotonic_ns(), 0, number).body(b"")
            yield SimpleNamespace(body=body, queue_id=0, queue_offset=offset)


def test_the_streams_of_a_follower_end_with_the_last_message_that_counts() -> None:
    client, streams = TailOfOneQueue(), (Recorder(), Recorder())
    began = time.monotonic_ns()
    follow(client, "t", [0], *streams, True)  # type: ignore[arg-type]
    for stream in streams:
        last = stream.take()["last"]
        assert last is not None
        assert began <= last <= client.last_sent_ns


def test_what_comes_behind_its_second_still_counts_in_the_sums() -> None:
    tally = Tally(0, 0.0)
    tally.add(_row("a", 0, 5, 1000))
    tally.close(0)
    tally.add(_row("b", 0, 5, 1000))
    assert tally.streams()["send"].summary.messages == 10


def _summary(rate: float, p99: float) -> Summary:
    return Summary(1.0, int(rate), rate, 1.0, {}, 1.0, 1.0, 1.0, p99, p99, p99)


def _result(rate: float, p99: float, cpu: float | None = 10.0) -> Result:
    summary = _summary(rate, p99)
    stream = Stream(summary, summary, [], [])
    return Result("send", "send", {}, {}, {"send": stream}, cpu_s_per_million=cpu)


def test_a_limit_is_broken_beyond_it_and_where_nothing_was_measured() -> None:
    limits = {"max_p99": 0.005, "min_rate": 1000, "max_cpu": 20}
    assert broken_limits(_result(1000, 5.0), limits) == []
    assert len(broken_limits(_result(999, 5.1, cpu=21.0), limits)) == 3
    assert len(broken_limits(_result(1000, 5.0, cpu=None), limits)) == 1


def test_a_comparison_says_what_got_worse_whichever_way_a_figure_counts() -> None:
    found = list(differences(_result(1000, 5.0), _result(800, 5.1, cpu=5.0)))
    verdicts = {one.figure: one.row()["verdict"] for one in found}
    assert verdicts["send: messages/s"] == "worse"
    assert verdicts["send: p99_ms"] == "same"
    assert verdicts["CPU s/million"] == "better"
    assert len(regressions(found, "send", 0.1)) == 1
    assert regressions(found, "send", 0.25) == []


@pytest.mark.parametrize("text", ["100", "uniform:20-40", "lognormal:64"])
def test_bodies_have_the_sizes_that_were_asked_for(text: str) -> None:
    sizes = Sizes.parse(text)
    bodies = make_bodies(sizes, seed=1)
    lengths = [len(body) for body in bodies]
    assert bodies == make_bodies(sizes, seed=1)
    assert max(lengths) <= sizes.high
    assert {"fixed": 100, "uniform": 30, "lognormal": 64}[sizes.kind] == pytest.approx(
        float(np.median(lengths)), rel=0.1
    )
    assert all(len(batch) == 7 for batch in batches(bodies, 7))


def test_quantities_are_read_as_people_write_them() -> None:
    assert (seconds_of("5ms"), seconds_of("2m"), seconds_of("1.5")) == (0.005, 120.0, 1.5)
    assert (count_of("100K"), count_of("1.5M/s"), count_of("7")) == (100_000, 1_500_000, 7)
    assert (bytes_of("1KiB"), bytes_of("4MB"), bytes_of("128")) == (1024, 4_000_000, 128)
    assert (share_of("10%"), share_of("0.25")) == (0.1, 0.25)
    for read in (seconds_of, count_of, bytes_of, share_of):
        with pytest.raises(BadRequest):
            read("-3 apples")
