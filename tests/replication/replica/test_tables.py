"""What a replica takes over of its master's tables, and from when on it counts."""

from pathlib import Path
from unittest.mock import Mock

from keelog.replication.replica.master_link import MasterFacts
from keelog.replication.replica.tables import (
    DELAYS,
    OFFSETS,
    PROGRESS,
    TIMER_CHECK,
    TIMERS,
    TOPICS,
    MasterTables,
    TablesJob,
)
from node.runtime.run_files import FollowState, write_follow_state
from node.runtime.state_page import run_dir
from protocol.derived.file_layouts import TIMER_CHECK_BYTES, TimerCheck
from protocol.names import DELAY_OFFSETS_FILE, TIMER_CHECK_FILE, TIMER_LOG_DIR

THEIRS = TimerCheck(read_ms=5_000, flushed=520, queue_offset=10)


def a_round(end: int, check: TimerCheck = THEIRS, delay_offset: int = 7) -> TablesJob:
    """What a master says whose log ends at `end` after its other replies."""
    job = TablesJob("", PROGRESS, 0)
    job.tables = {
        OFFSETS: {"offsetTable": {"t@g": {"0": 3}}},
        DELAYS: {"offsetTable": {"1": delay_offset} if delay_offset else {}},
        TIMERS: {TIMER_CHECK: check.file()[:TIMER_CHECK_BYTES]},
    }
    job.facts = MasterFacts(0, end)
    return job


class Taken:
    """Tables of the store `root`, and the rounds that they are given."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "config").mkdir(exist_ok=True)
        self.offsets = Mock()
        self.tables = MasterTables(root, Mock(), self.offsets, 0.0)
        self.tables.close()

    def turn(self, job: TablesJob | None, flushed: int) -> None:
        self.tables._thread = Mock(collect=lambda: job)
        self.tables.turn(0.0, "", flushed)

    def check(self) -> TimerCheck | None:
        path = self.root / TIMER_CHECK_FILE
        return TimerCheck.parse(path.read_bytes()) if path.exists() else None


def test_progress_counts_once_the_log_is_here_up_to_the_masters_end(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    taken.turn(a_round(1_000), 999)
    # A later round ends further on, and does not replace the one that counts next.
    taken.turn(a_round(2_000, THEIRS._replace(read_ms=9_000)), 999)
    assert taken.check() is None
    assert not (tmp_path / DELAY_OFFSETS_FILE).exists()
    assert (taken.offsets.adopt.call_count, taken.tables.progress_ms) == (0, 0)
    taken.turn(None, 1_000)
    assert taken.check() == THEIRS
    assert b'"1": 7' in (tmp_path / DELAY_OFFSETS_FILE).read_bytes()
    taken.offsets.adopt.assert_called_once_with({"t@g": {"0": 3}})
    assert taken.tables.progress_ms > 0


def test_a_master_that_lost_its_end_is_asked_anew_how_far_it_is(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    taken.turn(a_round(5_000), 900)
    taken.turn(a_round(900, THEIRS._replace(read_ms=4_000)), 900)
    assert taken.check() == THEIRS._replace(read_ms=4_000)


def test_an_old_masters_own_progress_gives_way_and_that_of_nobody_does_not(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    own = TimerCheck(read_ms=1_000, flushed=5_200, queue_offset=3, delivered_ms=1_500)
    (tmp_path / TIMER_CHECK_FILE).write_bytes(own.file())
    (tmp_path / DELAY_OFFSETS_FILE).write_bytes(b'{"offsetTable":{"1":4}}')
    (tmp_path / TIMER_LOG_DIR).mkdir()
    (tmp_path / TIMER_LOG_DIR / "0").write_bytes(b"units of its own time as master")
    # The new master has delivered nothing yet, so it has no progress.
    taken.turn(a_round(100, TimerCheck(), delay_offset=0), 100)
    assert taken.check() == own
    assert b'"1":4' in (tmp_path / DELAY_OFFSETS_FILE).read_bytes()
    taken.turn(a_round(100), 100)
    assert taken.check() == THEIRS
    assert not (tmp_path / TIMER_LOG_DIR).exists()


def test_the_first_round_after_a_start_does_not_forget_which_topics_were_known(
    tmp_path: Path,
) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    write_follow_state(tmp_path, FollowState(topics_end=500))
    taken = Taken(tmp_path)
    for known_end, known in ((0, 500), (900, 900)):
        job = a_round(1_000)
        job.known_end = known_end
        job.tables[TOPICS] = {"topicConfigTable": {}}
        taken.turn(job, 0)
        assert taken.tables.topics_end == known
