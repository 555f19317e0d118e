"""The small JSON files of `keelog/run`: what is written is read, all else counts as no file."""

import json
from pathlib import Path

import pytest

from node.runtime import run_files
from node.runtime.run_files import (
    ElectedState,
    FollowerEnd,
    FollowerRow,
    FollowersState,
    FollowState,
    OtherMaster,
    SyncState,
    TimerState,
)
from node.runtime.state_page import run_dir
from node.runtime.store_paths import RUN_FILE_BYTES_MAX, IrregularFile

ROW = FollowerRow("192.0.2.7:1", 5, 90, 80, 10, 0.5, True, 1000, 2)
STATES = (
    ("following", "follow_state", FollowState("waiting", metadata={"topics": "away"}, lag_ms=7)),
    ("other_master", "other_master", OtherMaster("192.0.2.7:10911", True)),
    ("elected", "elected", ElectedState("leads", in_sync=(1, 3), why="")),
    ("sync-state", "sync_state", SyncState(4, frozenset({3, 1}))),
    ("followers", "followers", FollowersState(1, 80, (ROW,), (FollowerEnd("x", 1, 2, "gone"),), 3)),
    ("timers", "timer_state", TimerState(1, 2, 3, 4)),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("name", "what", "state"), STATES)
def test_what_is_written_is_read_and_all_else_counts_as_no_file(
    root: Path, name: str, what: str, state: object
) -> None:
    read, write = getattr(run_files, f"read_{what}"), getattr(run_files, f"write_{what}")
    usual = read(root)
    write(root, state)
    assert read(root) == state != usual
    path = run_dir(root) / name
    fields = json.loads(path.read_bytes())
    path.write_text(json.dumps({**fields, "of a later version": 1}))
    assert read(root) == state
    for other in (b"", b"{", b"[1]", b"null", json.dumps({field: [] for field in fields}).encode()):
        path.write_bytes(other)
        assert read(root) == usual


@pytest.mark.parametrize(("name", "what", "state"), STATES)
def test_a_folder_in_the_place_of_a_file_is_named_whether_it_is_read_or_written(
    root: Path, name: str, what: str, state: object
) -> None:
    path = run_dir(root) / name
    path.mkdir()
    for verb, more in (("read", ()), ("write", (state,))):
        with pytest.raises(IrregularFile) as caught:
            getattr(run_files, f"{verb}_{what}")(root, *more)
        assert caught.value.where == str(path)
        assert caught.value.found == "is no file, but a folder"


def test_a_file_without_end_is_named(root: Path) -> None:
    (run_dir(root) / "timers").write_bytes(bytes(RUN_FILE_BYTES_MAX + 1))
    with pytest.raises(IrregularFile, match="timers"):
        run_files.read_timer_state(root)
