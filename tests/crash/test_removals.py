"""A crash before each single call of a topic's removal: the topic is whole then, or gone."""

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import node.writer.removal
from node.serving.request_server import Received
from node.store.checkpoints import load_removed
from node.store.config.topics_file import TopicsFile
from node.store.opening import StoppedStore
from node.writer.store import open_writer_store
from protocol.ids import Queue
from protocol.wire.frames import VERSION, pack
from tests.crash.histories import STORE
from tests.crash.images import Chooser, Everything, Image, images
from tests.crash.scene import Scene
from tests.crash.sim_disk import NEVER, Stopped, in_place_of_os
from tests.crash.slate import Slate
from tests.crash.writer_life import HOST, InlineThread, WriterLife, tiny_settings

TOPIC = "orders"
RECENT_IMAGES = 8


class Seen(NamedTuple):
    """A store: what it has of the topic, and the queues of others."""

    is_in_table: bool
    tails: dict[Queue, int]
    others: dict[Queue, int]


class Story:
    """Appends, then the removal; `stop_at` counts the calls from the start of the store."""

    def __init__(self, folder: Path, stop_at: int) -> None:
        self.scene = Scene(folder)
        self.scene.sim.stop_at = stop_at
        self.whole: Seen | None = None
        self.began_at = self.ended_at = 0
        self.is_answered = False
        self.life: WriterLife | None = None

    def tell(self) -> None:
        try:
            with self.scene.on_disk():
                self.life = self.scene.start()
                self.scene.append(self.life, 12)
                self.scene.append(self.life, 4, flush=False)
                self.whole = seen(self.life.store.root, self.life.store.placement.tails)
                self.began_at = self.scene.sim.calls
                self._remove(self.life)
                self.ended_at = self.scene.sim.calls
        except Stopped:
            pass
        self.scene.crash(self.life)

    def _remove(self, life: WriterLife) -> None:
        header = {"v": VERSION, "op": "delete_topic", "id": 1 << 40, "topic": TOPIC}
        life.server.requests.append(Received(b"peer", pack(header), None))
        for _ in range(4):
            life.now += 0.1
            life.writer.step(life.now)
        (answer,) = [one for one in life.server.answers if one["id"] == 1 << 40]
        assert answer["ok"] and answer["deleted"] and answer["left_in_log_bytes"] > 0
        assert life.store.log.end == life.writer.flushing.flushed
        self.is_answered = True


def seen(root: Path, tails: dict[Queue, int]) -> Seen:
    return Seen(
        TOPIC in TopicsFile(root).topics,
        {queue: end for queue, end in tails.items() if queue.topic == TOPIC},
        {queue: end for queue, end in tails.items() if queue.topic != TOPIC},
    )


def check(story: Story, slate: Slate, image: Image) -> bool:
    """Opens an image as a reader and as a writer do; answers whether the topic is gone."""
    root = slate.root / STORE
    slate.lay_out(image.tree)
    whole = story.whole
    assert whole is not None
    with StoppedStore(root, story.scene.settings) as resting:
        shown = {queue for queue in resting.queues() if queue.topic == TOPIC}
        scanned = resting.removed.horizon(TOPIC) > 0
    with story.scene.on_disk(), in_place_of_os(slate):
        store = open_writer_store(root, story.scene.settings, HOST, alone=True)
        found = seen(root, store.placement.tails)
        store.page.close()
        store.lock.release()
    is_gone = not found.tails
    assert is_gone == scanned, image.name
    assert is_gone == (not shown), image.name
    assert found.is_in_table == (not is_gone), image.name
    if is_gone:
        assert found.others == whole.others, image.name
    else:
        # What was appended and not flushed may be lost: the topic is whole up to there.
        assert all(end <= whole.tails[queue] for queue, end in found.tails.items()), image.name
    return is_gone


def test_a_crash_before_any_call_of_a_removal_leaves_the_topic_whole_or_gone(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.writer.removal, "Thread", InlineThread)
    first = Story(fast_folder / "first", NEVER)
    first.tell()
    assert first.is_answered and first.whole is not None and first.whole.tails
    outcomes: set[bool] = set()
    for stop_at in range(first.began_at + 1, first.ended_at + 2):
        story = Story(fast_folder / str(stop_at), stop_at)
        story.tell()
        slate = Slate(fast_folder / str(stop_at) / "look")
        choosers = (Chooser(), Everything(), Everything(names=False))
        found = [Image(f"{stop_at}", story.scene.image(chooser)) for chooser in choosers]
        for image in [*found, *images(story.scene.sim, str(stop_at), RECENT_IMAGES)]:
            is_gone = check(story, slate, image)
            outcomes.add(is_gone)
            assert is_gone or not story.is_answered, "an answered removal is durable"
    assert outcomes == {True, False}


def test_an_entry_of_the_note_goes_when_log_and_snapshot_are_past_it(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older snapshot of the queues' ends still counts the removed records."""
    scene = Scene(fast_folder)
    with scene.on_disk():
        life = scene.start()
        store = life.store
        scene.append(life, 12)
        store.remove_topic(TOPIC)
        horizon = store.removed.horizon(TOPIC)
        assert horizon == store.log.end
        while store.log.end < horizon + 2 * store.log.segment_bytes:
            scene.append(life, 5)
        old = [one for one in store.retention.segments() if one.start < horizon]
        monkeypatch.setattr(store.retention, "turn", lambda _now, _spared: old)
        monkeypatch.setattr(store.retention, "delete", lambda _segments: None)
        store._tails_at = horizon
        store.retain(1.0)
        assert store.min_offset > horizon
        assert load_removed(store.root).horizon(TOPIC) == horizon
        store._tails_at = store.log.end
        store.retain(2.0)
        assert load_removed(store.root).topics == {}
        assert load_removed(store.root).number == store.removed.number == 2
        assert store.page.read().removals == 2
        scene.crash(life)


@pytest.mark.parametrize("mode", ["sync", "async", "pool"])
def test_the_whole_log_is_flushed_before_the_note_names_its_end(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(node.writer.removal, "Thread", InlineThread)
    story = Story(fast_folder, NEVER)
    story.scene.settings = replace(
        tiny_settings(random.Random(1), mode), mapped_file_size_commit_log=1024
    )
    story.tell()
    assert story.is_answered
    assert story.life is not None
    end = story.life.store.log.end
    assert story.life.writer.flushing.flushed == end
    slate = Slate(fast_folder / "look")
    assert check(story, slate, Image("nothing unsynced", story.scene.image(Chooser())))
    assert load_removed(slate.root / STORE).horizon(TOPIC) == end
