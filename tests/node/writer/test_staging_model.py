"""Any sequence of stages, publications, kills and stops leaves in the log what a list says."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import node.writer.staging.publisher
from node.store.staging_files import StageSummary
from tests.crash.publications import Row, StagingClient, lines_of, log_records, stage_rows
from tests.crash.scene import Scene

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), st.integers(1, 9)),
        st.tuples(st.sampled_from(["publish", "twice", "unstage", "kill", "stop"]), st.just(0)),
        st.tuples(st.just("begin"), st.integers(0, 12)),
        st.tuples(st.just("others"), st.integers(1, 3)),
    ),
    max_size=14,
)


class Model:
    """A node and, beside it, a list of what must be in its log."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.client = StagingClient(scene.start())
        self.batch = 0
        self.stages = 0
        self.parts: list[StageSummary] = []
        self.rows: list[bytes] = []
        self.begun = False
        self.expected: list[bytes] = []

    def stage(self, count: int) -> None:
        """A new stage of the batch; a batch that is being published takes no more."""
        self.stages += 1
        name = f"s{self.stages}"
        rows = [Row(f"{name}-{i}".encode().ljust(50, b"."), 0) for i in range(count)]
        part = stage_rows(self.client, ("q", self.batch), name, rows, per_frame=4)
        assert (part is None) == self.begun
        if part is not None:
            self.parts.append(part)
            self.rows += [row.body for row in rows]

    def publish(self, _count: int) -> None:
        self.client.publish("q", self.batch, self.parts)
        self.expected += self.rows
        self._next()

    def twice(self, _count: int) -> None:
        parts, batch = self.parts, self.batch
        self.publish(0)
        assert self.client.publish("q", batch, parts)["already"]

    def _next(self) -> None:
        self.batch += 1
        self.parts, self.rows, self.begun = [], [], False

    def begin(self, turns: int) -> None:
        """Asks, and does not wait for the answer."""
        fields = {"query": "q", "batch": self.batch, "stages": len(self.parts)}
        self.client.send("publish", lines_of(self.parts), **fields)
        self.client.life.writer.step(self.client.life.now)
        self.begun = True
        for _ in range(turns):
            self.client.turn()

    def unstage(self, _count: int) -> None:
        """Changes nothing of a batch whose publication was asked for."""
        self.client.ask("unstage", query="q", batch=self.batch)
        if not self.begun:
            self.parts, self.rows = [], []

    def kill(self, _count: int) -> None:
        """A request that was not journaled yet is forgotten: its sender repeats it."""
        self.scene.crash(self.client.life)
        self._start()

    def stop(self, _count: int) -> None:
        self.client.life.stop_in_order(self.scene.producer, workers_are_done=True)
        self.client.life.end()
        self._start()

    def _start(self) -> None:
        self.client = StagingClient(self.scene.start())
        if self.begun:
            self.publish(0)

    def others(self, count: int) -> None:
        self.client.life.turn(self.scene.producer, count, 0.1)

    def stored(self) -> list[bytes]:
        data = bytes(self.scene.truth.data[: self.client.life.store.log.end])
        records = log_records(data, self.scene.truth.segment_bytes)
        return [record.body for record in records if record.topic == "staged"]


@pytest.fixture(autouse=True, scope="module")
def _small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.writer.staging.publisher, "PUBLISH_BYTES_MAX", 450)
        patch.setattr(node.writer.staging.publisher, "CHECKPOINT_BYTES", 900)
        yield


@given(steps=STEPS)
@settings(deadline=None)
def test_the_log_holds_each_published_row_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), 2_048)
        with scene.on_disk():
            model = Model(scene)
            for name, number in steps:
                if model.begun and name not in ("stage", "others", "unstage", "kill", "stop"):
                    name = "publish"
                getattr(model, name)(number)
            if model.begun:
                model.publish(0)
            assert model.stored() == model.expected
            model.client.life.end()
