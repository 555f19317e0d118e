"""Pages ahead of the log's end: asked for where the log will come, and never waited for."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from node.writer.log.ahead import (
    LEAD_BYTES,
    NICE,
    PAGES_AHEAD_BYTES,
    PAGES_STEP_BYTES,
    PIECE_BYTES,
    GrowthPoint,
    PagePrefetch,
    next_pages,
)
from tests.support.rolling_log import check_that_it_rolls, claim

SEGMENT_BYTES = 32 << 20
WAIT_S = 60.0
START = 12_345
PLACE = GrowthPoint(Path("segment"), SEGMENT_BYTES, START)


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class Asked:
    """What the kernel was asked for: name of the file, start and end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.parts: list[tuple[str, int, int]] = []
        self.nice = 0
        self._real = os.posix_fadvise
        patch.setattr(os, "posix_fadvise", self._ask)

    def _ask(self, descriptor: int, start: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self._real(descriptor, start, size, advice)
        self.nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        self.parts.append((name, start, start + size))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture
def ahead() -> Iterator[PagePrefetch]:
    made = PagePrefetch()
    yield made
    made.close()


def make_file(path: Path) -> Path:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, SEGMENT_BYTES)
    return path


def all_steps(claimed: int, done: int) -> list[int]:
    steps = []
    while (start := next_pages(PLACE, claimed, done)) is not None:
        steps.append(start)
        done = start + PAGES_STEP_BYTES
    return steps


def test_little_is_asked_for_while_the_log_grew_little() -> None:
    assert all_steps(START, START) == []
    assert all_steps(START + PAGES_STEP_BYTES, START) == []
    grown = START + 2 * PAGES_STEP_BYTES
    assert all_steps(grown, START) == [grown + LEAD_BYTES]


def test_pages_are_asked_for_once_each_and_so_far_ahead_at_most() -> None:
    claimed = START + 2 * PAGES_AHEAD_BYTES
    steps = all_steps(claimed, START)
    assert steps[0] == claimed + LEAD_BYTES
    assert {after - before for before, after in pairwise(steps)} == {PAGES_STEP_BYTES}
    end = steps[-1] + PAGES_STEP_BYTES
    assert claimed + PAGES_AHEAD_BYTES - PAGES_STEP_BYTES < end <= claimed + PAGES_AHEAD_BYTES
    assert all_steps(claimed, end) == []
    assert all_steps(claimed + PAGES_STEP_BYTES, end) == [end]


def test_a_log_that_overtakes_is_met_again_ahead_of_its_end() -> None:
    done, claimed = START + PAGES_STEP_BYTES, START + 3 * PAGES_AHEAD_BYTES
    assert next_pages(PLACE, claimed, done) == claimed + LEAD_BYTES


def test_nothing_is_asked_for_behind_the_segments_end() -> None:
    claimed = SEGMENT_BYTES - 3 * PAGES_STEP_BYTES
    assert max(all_steps(claimed, START)) + PAGES_STEP_BYTES <= SEGMENT_BYTES
    assert all_steps(SEGMENT_BYTES, START) == []


def test_pages_come_ahead_of_a_growing_log_and_no_byte_of_it_changes(
    ahead: PagePrefetch, asked: Asked, tmp_path: Path
) -> None:
    path = make_file(tmp_path / "segment")
    ahead.begin(path, SEGMENT_BYTES, 0)
    threads = threading.active_count()
    claim(ahead, PAGES_STEP_BYTES - 1)
    assert threading.active_count() == threads, "a thread for a log that hardly grows"
    claim(ahead, 2 * PAGES_AHEAD_BYTES)
    until(
        lambda: bool(asked.parts) and asked.parts[-1][2] > 3 * PAGES_AHEAD_BYTES - PAGES_STEP_BYTES
    )
    ahead.close()
    assert min(start for _, start, _ in asked.parts) >= 2 * PAGES_AHEAD_BYTES
    assert path.stat().st_size == SEGMENT_BYTES
    assert path.read_bytes() == bytes(SEGMENT_BYTES)


def test_pages_come_in_pieces_behind_everybody_else(
    ahead: PagePrefetch, asked: Asked, tmp_path: Path
) -> None:
    ahead.begin(make_file(tmp_path / "segment"), SEGMENT_BYTES, 0)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    claim(ahead, 2 * PAGES_STEP_BYTES)
    until(lambda: len(asked.parts) >= PAGES_STEP_BYTES // PIECE_BYTES)
    assert {end - start for _, start, end in asked.parts} == {PIECE_BYTES}
    assert all(before[2] == after[1] for before, after in pairwise(asked.parts))
    assert asked.nice == min(19, own + NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_after_a_roll_pages_of_the_new_segment_come(
    ahead: PagePrefetch, asked: Asked, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        ahead.begin(make_file(tmp_path / name), SEGMENT_BYTES, 0)
        claim(ahead, 2 * PAGES_STEP_BYTES)
        until(lambda name=name: name in [part[0] for part in asked.parts])  # type: ignore[misc]
    begun = [part[0] for part in asked.parts].index("new")
    claim(ahead, 4 * PAGES_STEP_BYTES)
    until(lambda: len(asked.parts) > begun + 1)
    assert {part[0] for part in asked.parts[begun:]} == {"new"}


def test_without_the_file_there_are_no_pages_and_appends_go_on(
    ahead: PagePrefetch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead.begin(tmp_path / "missing", SEGMENT_BYTES, 0)
    claim(ahead, PAGES_STEP_BYTES)
    until(lambda: "no pages ahead" in caplog.text)
    claim(ahead, 3 * PAGES_STEP_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_log_rolls_and_closes_with_pages_ahead(tmp_path: Path) -> None:
    check_that_it_rolls(tmp_path, 8 * PAGES_STEP_BYTES, PagePrefetch(), 4)
