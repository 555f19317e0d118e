"""What progress vouches for: held against the epochs, whatever number of workers wrote it."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.checkpoints import (
    EpochLine,
    WorkerCheckpoint,
    list_progress,
    own_dir,
    save_epochs,
    save_progress,
)
from protocol.ids import Queue
from workers.progress import (
    load_unfinished,
    retire_other_counts,
    save_unfinished,
    vouched_for_shard,
    vouched_offset,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (own_dir(tmp_path) / "run").mkdir(parents=True)
    save_epochs(tmp_path, [EpochLine(1, 0), EpochLine(2, 500), EpochLine(3, 400)])
    return tmp_path


@pytest.mark.parametrize(
    ("progress", "vouched"),
    [
        (WorkerCheckpoint(1, 300), 300),
        (WorkerCheckpoint(1, 700), 500),
        (WorkerCheckpoint(2, 450), 400),
        (WorkerCheckpoint(3, 900), 900),
        (WorkerCheckpoint(7, 10), 0),
    ],
)
def test_progress_counts_up_to_where_its_epoch_ended(
    root: Path, progress: WorkerCheckpoint, vouched: int
) -> None:
    save_progress(root, "index", progress)
    assert vouched_offset(root, "index") == vouched


def test_without_progress_nothing_is_vouched_for(root: Path) -> None:
    assert vouched_offset(root, "index") is None
    assert vouched_for_shard(root, 0, 2) is None


def save_queues(root: Path, total: int, *offsets: int | None) -> None:
    for number, offset in enumerate(offsets):
        if offset is not None:
            save_progress(root, f"queue-{number}-of-{total}", WorkerCheckpoint(3, offset))


def test_each_shard_has_its_own_progress(root: Path) -> None:
    save_queues(root, 2, 10, 20)
    assert (vouched_for_shard(root, 0, 2), vouched_for_shard(root, 1, 2)) == (10, 20)


def test_another_number_starts_with_the_least_of_a_whole_set(root: Path) -> None:
    save_queues(root, 2, 30, 20)
    save_queues(root, 3, None, 40, None)
    assert vouched_for_shard(root, 1, 3) == 20
    assert vouched_for_shard(root, 0, 2) == 20


def test_half_a_set_of_another_number_vouches_for_nothing(root: Path) -> None:
    save_queues(root, 2, 30, None)
    assert vouched_for_shard(root, 0, 3) == 0


def test_the_old_number_is_forgotten_when_all_of_the_new_have_saved(root: Path) -> None:
    save_queues(root, 2, 30, 20)
    save_queues(root, 3, 25, None, 25)
    assert not retire_other_counts(root, 3)
    save_queues(root, 3, 25, 25, 25)
    assert retire_other_counts(root, 3)
    assert set(list_progress(root)) == {f"queue-{number}-of-3" for number in range(3)}


@given(st.sets(st.builds(Queue, st.text("ab%-_", min_size=1), st.integers(0, 9)), max_size=4))
def test_the_note_of_unfinished_queues_comes_back_as_written(queues: set[Queue]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (own_dir(root) / "run").mkdir(parents=True)
        save_unfinished(root, "queue-0-of-2", queues)
        assert load_unfinished(root) == queues
        save_unfinished(root, "queue-0-of-2", [])
        assert load_unfinished(root) == set()
