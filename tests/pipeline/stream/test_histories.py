"""Any history of a streaming query, with any deaths: each message of its source once."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline import stream_query as module
from protocol.record.encode import NewMessage
from tests.pipeline.stream.stream_engine import Engine
from tests.workers.living_log import LivingLog

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 12)),
        st.tuples(st.just("new topic"), st.integers(0, 3)),
        st.tuples(st.just("batch"), st.just(0)),
        st.tuples(st.just("dies before it is over"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("available now"), st.just(0)),
    ),
    max_size=14,
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.sampled_from(["1", "4", "30"]),
        "maxBytesPerTrigger": st.sampled_from(["1", "700", "5000"]),
        "minOffsetsPerTrigger": st.sampled_from(["1", "9"]),
    },
)


class Life:
    """A query, its source, and a sink that keeps each batch of a number once."""

    def __init__(self, root: Path, limits: dict[str, str], starting: str) -> None:
        self.store = LivingLog(root, segment_bytes=2048)
        self.store.grow(5)
        self.engine = Engine(
            path=str(root),
            columns="topic,queueId,queueOffset",
            startingOffsets=starting,
            maxTriggerDelay="0",
            **{"store.mapped_file_size_consume_queue": "200"},
            **limits,
        )
        self.sink: dict[int, list[tuple[str, int, int]]] = {}
        self.before = self.written() if starting == "latest" else Counter()

    def written(self) -> Counter[tuple[str, int, int]]:
        return Counter(
            (queue.topic, queue.queue_id, number)
            for queue, end in self.store.next_offset.items()
            for number in range(end)
        )

    def finish(self) -> None:
        """Writes the last planned batch, again if it was written before its commit was lost."""
        number = len(self.engine.log) - 1
        rows = [
            (row["topic"], row["queueId"], row["queueOffset"]) for row in self.engine.rows(number)
        ]
        assert self.sink.setdefault(number, rows) == rows, "a replay must have the same rows"

    def step(self, kind: str, number: int) -> None:
        if kind == "grow":
            self.store.grow(number)
        elif kind == "new topic":
            self.store.append(NewMessage(topic=f"new-{number}", queue_id=number, body=b"x"))
            self.store.publish()
        elif kind == "restart":
            self.restart()
        elif kind == "available now":
            self.restart()
            self.engine.reader.prepareForTriggerAvailableNow()
            self.run_out()
            self.restart()
        elif self.engine.plan():
            if kind == "batch":
                self.finish()
            else:
                self.restart()

    def restart(self) -> None:
        """As Spark does: the beginning is asked for again, the last batch is made again."""
        self.engine = self.engine.restarted()
        if self.engine.log:
            if len(self.engine.log) == 1:
                self.engine.log[0] = (self.engine.reader.initialOffset(), self.engine.log[0][1])
            self.finish()

    def run_out(self) -> None:
        while self.engine.plan():
            self.finish()
            assert len(self.sink) < 2000


@given(
    STEPS,
    LIMITS,
    st.sampled_from(["earliest", "latest"]),
    st.sampled_from(["batch", "dies before it is over"]),
)
def test_any_history_gives_each_message_once(
    steps: list[tuple[str, int]], limits: dict[str, str], starting: str, first: str
) -> None:
    seconds, module.LIST_S = module.LIST_S, 0.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder) / "store", limits, starting)
            life.engine.reader.initialOffset()
            life.store.grow(3)
            life.step(first, 0)
            for kind, number in steps:
                life.step(kind, number)
            life.run_out()
            found = Counter(row for rows in life.sink.values() for row in rows)
            assert found == life.written() - life.before
            life.engine.reader.stop()
            life.store.close()
    finally:
        module.LIST_S = seconds
