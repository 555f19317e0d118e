"""How much may be staged, and which batches go when the disk needs room: the disk is given."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import node.writer.staging.publisher
import node.writer.staging.stages
from node.runtime import disk
from node.runtime.settings import Settings, load_settings
from node.store.staging_files import StagedBatch, batch_dir, staged_bytes, staging_dir
from node.writer.log.retention import LOOK_EVERY_S, Clock
from node.writer.staging.stages import Idle, StagingRoom, first_to_go
from protocol.errors import BusyError, NotAllowed, ServiceNotAvailable
from tests.crash.publications import Refused, rows_of
from tests.crash.scene import Scene
from tests.node.writer.test_staging import Node

MANY_ROWS = rows_of(0, 1, 100, 60)[0]


class Disk:
    """A disk of which others leave `room` bytes below the ratio, and how often it was looked at."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.looks = 0
        self.now_s = 0.0

    def look(self) -> int:
        self.looks += 1
        return self.room

    def made(self, settings: Settings | None = None) -> StagingRoom:
        return StagingRoom(settings or Settings(), self.look, lambda: self.now_s)


def test_what_is_staged_could_be_published_below_the_ratio() -> None:
    room = Disk(1_000_000).made()
    room.check(0, 500_000)
    with pytest.raises(ServiceNotAvailable, match=r"^disk_full: 0 bytes are staged") as refused:
        room.check(0, 500_001)
    assert isinstance(refused.value, BusyError)
    assert refused.value.retriable
    assert "below 85 % of the disk" in refused.value.reason
    assert "free space, or publish or drop" in refused.value.hint


@given(
    room=st.integers(-1_000_000, 10_000_000),
    steps=st.lists(st.tuples(st.integers(1, 400_000), st.floats(0, 1.5)), max_size=60),
)
def test_no_stager_however_fast_brings_the_disk_to_the_ratio(
    room: int, steps: list[tuple[int, float]]
) -> None:
    place = Disk(room)
    staging, staged = place.made(), 0
    for size, pause_s in steps:
        place.now_s += pause_s
        try:
            staging.check(staged, size)
        except ServiceNotAvailable:
            continue
        staged += size
        place.room -= size
        staging.take(size)
        assert place.room >= staged, "its publication would go above the ratio"
    assert place.looks <= 2 + place.now_s / LOOK_EVERY_S, "the disk is looked at for each frame"


def test_staging_goes_on_when_the_disk_has_room_again(caplog: pytest.LogCaptureFixture) -> None:
    place = Disk(-1)
    room = place.made()
    for _ in range(3):
        with pytest.raises(ServiceNotAvailable):
            room.check(0, 1)
    place.room, place.now_s = 100_000, LOOK_EVERY_S
    room.check(0, 1)
    assert caplog.messages == ["no more is staged"]


def test_the_setting_bounds_it_where_the_disk_would_allow_more() -> None:
    room = Disk(10**9).made(load_settings(["staging_bytes_max=1000"]))
    room.check(0, 1000)
    with pytest.raises(NotAllowed, match="staging_bytes_max is 1000"):
        room.check(1, 1000)
    assert not room.missing, "no other batch goes for a setting"


@given(
    idle=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=30),
    wanted=st.integers(-10, 20_000),
)
def test_the_longest_untouched_go_first_and_no_more_than_needed(
    idle: list[tuple[int, int]], wanted: int
) -> None:
    batches = [Idle(touched, StagedBatch("q", n), size) for n, (touched, size) in enumerate(idle)]
    gone = first_to_go(batches, wanted)
    assert gone == [one.batch for one in sorted(batches)][: len(gone)]
    freed = [idle[batch.number][1] for batch in gone]
    assert sum(freed) >= wanted or len(gone) == len(batches)
    assert sum(freed[:-1]) < max(wanted, 1)


def test_one_turn_drops_no_more_batches_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.writer.staging.stages, "DROPPED_AT_ONCE_MAX", 2)
    assert len(first_to_go([Idle(0, StagedBatch("q", n), 1) for n in range(9)], 9)) == 2


# -- of a writer that is moved by hand --------------------------------------------------------


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Node]:
    scene = Scene(tmp_path, 64 * 1024)
    with scene.on_disk():
        made = Node(scene)
        yield made
        made.life.end()


def room_of(writer: Node) -> StagingRoom:
    return writer.life.writer.staging._staging.room


def leave(writer: Node, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """From now on the disk has so many bytes left, but for what is in the staging folder."""
    folder = staging_dir(writer.life.store.root)
    monkeypatch.setattr(room_of(writer), "look", lambda: room - staged_bytes(folder))
    monkeypatch.setattr(room_of(writer), "_monotonic_s", lambda: writer.life.now)


def age(writer: Node, query: str, minutes: float) -> Path:
    """Nobody has touched batch 0 of the query for so long."""
    clock: Clock = writer.life.store.retention.clock
    folder = batch_dir(writer.life.store.root, StagedBatch(query, 0))
    for path in (*folder.iterdir(), folder):
        os.utime(path, (clock.now_s() - minutes * 60,) * 2)
    return folder


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch, writer: Node) -> None:
    """The ages of files count."""
    clock = writer.life.store.retention.clock
    monkeypatch.setattr("node.writer.staging.publisher.now_ms", lambda: int(clock.now_s() * 1000))


def turns(writer: Node, count: int = 12) -> None:
    for _ in range(count):
        writer.turn()


@pytest.mark.usefixtures("real_time")
def test_a_refused_stage_takes_the_place_of_the_batch_abandoned_for_longest(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for query in ("oldest", "older", "live", "begun"):
        writer.staged(MANY_ROWS, place=(query, 0))
    folders = [age(writer, "oldest", 300), age(writer, "older", 200), age(writer, "live", 29)]
    folders.append(age(writer, "begun", 400))
    writer.life.writer.staging._staging.begun.add(StagedBatch("begun", 0))
    staged = staged_bytes(staging_dir(writer.life.store.root))
    leave(writer, monkeypatch, 2 * staged)
    writer.life.now += 2 * LOOK_EVERY_S
    with pytest.raises(Refused, match="ServiceNotAvailable: disk_full"):
        writer.staged(place=("new", 0))
    turns(writer)
    assert [folder.exists() for folder in folders] == [False, True, True, True]
    assert not list((staging_dir(writer.life.store.root) / ".trash").iterdir())
    writer.staged(place=("new", 0))


@pytest.mark.usefixtures("real_time")
def test_retention_waits_until_the_abandoned_have_gone_and_no_longer(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.staged(MANY_ROWS, place=("old", 0))
    writer.staged(MANY_ROWS, place=("live", 0))
    old, live = age(writer, "old", 31), age(writer, "live", 29)
    leave(writer, monkeypatch, 0)
    retention = writer.life.store.retention
    assert retention.make_room(writer.life.now), "nobody has looked yet"
    turns(writer, 1)
    assert retention.make_room(writer.life.now), "it has not gone yet"
    turns(writer)
    assert not old.exists()
    assert live.exists()
    assert not retention.make_room(writer.life.now), "nothing more is abandoned"
    writer.life.now += node.writer.staging.publisher.ABANDONED_EVERY_S
    assert retention.make_room(writer.life.now), "by now something may be"
    turns(writer)
    assert live.exists()


def test_what_a_killed_rebuild_left_goes_before_any_segment(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = writer.life.store.root / "rebuild.building" / "attempt" / "index"
    disk.make_dir(left)
    disk.write_synced(left / "20261123000000000", bytes(1000))
    leave(writer, monkeypatch, 0)
    assert writer.life.store.retention.make_room(writer.life.now)
    turns(writer, 3)
    assert not left.parent.parent.exists()


@pytest.mark.usefixtures("real_time")
def test_a_batch_that_cannot_be_moved_aside_ends_no_writer_and_holds_nothing_up(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.staged(place=("old", 0))
    folder = age(writer, "old", 31)
    leave(writer, monkeypatch, 0)

    def refuse(_old: Path, _new: Path) -> None:
        raise OSError(min(disk.DISK_FULL), "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("node.runtime.disk.rename", refuse)
        with pytest.raises(Refused, match="ServiceNotAvailable: disk_full: "):
            writer.ask("unstage", query="old", batch=0)
        assert writer.life.store.retention.make_room(writer.life.now)
        turns(writer, 3)
        assert not writer.life.store.retention.make_room(writer.life.now)
    assert folder.exists()
    assert writer.ask("unstage", query="old", batch=0)["dropped"] == 1


def test_what_was_published_or_dropped_counts_no_more(writer: Node) -> None:
    staging = writer.life.writer.staging._staging
    part = writer.staged()
    writer.staged(stage="failed-attempt")
    assert staging.bytes == staged_bytes(staging_dir(writer.life.store.root))
    writer.publish("q", 0, [part])
    assert staging.bytes == 0
    writer.staged(place=("q", 1))
    writer.ask("unstage", query="q", batch=1)
    assert staging.bytes == 0
    writer.staged(place=("q", 2))
    writer.ask("unstage", query="q", batch=2)
    writer.restart()
    assert writer.life.writer.staging._staging.bytes == 0, "trash is nobody's"


def test_a_stage_that_has_no_room_leaves_the_node_taking_appends(
    writer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(writer, monkeypatch, -1)
    with pytest.raises(Refused, match="disk_full"):
        writer.staged()
    assert not writer.life.writer.lacks_room
