"""Batches written to a real node, by the objects that Spark calls: each row once always."""

import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from keelog.client.send.staging import StageClient, StageWriter
from keelog.pipeline import sink
from keelog.pipeline.errors import BadMode, BadOption, UnknownColumn, UnknownOption
from keelog.pipeline.sink import KeelogStreamWriter, KeelogWriter, TaskCommit
from keelog.pipeline.source import IndexSource, KeelogSource
from node.store.staging_files import StagedBatch, journal_path, list_stages
from protocol.errors import ClientClosed, MqError, NotConnected, RefusedError
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

ROWS = 2_000
KINDS: dict[str, type[DataType]] = {
    "binary": BinaryType, "string": StringType, "int": IntegerType, "long": LongType,
}  # fmt: skip
SCHEMA = "body binary, topic string, queueId int"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("sink")
    settings = ("mapped_file_size_commit_log=67108864", "max_index_num=100000")
    with RunningNode(folder / "store", settings, readers=1) as made:
        yield made


def schema_of(ddl: str) -> StructType:
    """As StructType.fromDDL, which needs a session."""
    schema = StructType()
    for field in ddl.split(", "):
        name, kind = field.split(" ")
        schema.add(name, KINDS[kind]())
    return schema


class Task:
    """What Spark tells a task; in the place of its TaskContext."""

    def __init__(self, partition: int, attempt: int, query: str = "", batch: int = 0) -> None:
        self._numbers = partition, attempt
        self._local = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}

    def partitionId(self) -> int:  # noqa: N802 - Spark's
        return self._numbers[0]

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's
        return self._numbers[1]

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's
        return self._local.get(name)


class Engine:
    """Runs a writer as Spark does: tasks, then the commit."""

    def __init__(self, patch: pytest.MonkeyPatch, node: RunningNode, topic: str) -> None:
        self.node = node
        self.topic = topic
        self._patch = patch
        self._attempts = 0
        self.source = KeelogSource({"node": node.endpoint, "timeoutMs": "30000"})

    def writer(self) -> KeelogWriter:
        made = self.source.writer(schema=schema_of(SCHEMA), overwrite=False)
        assert isinstance(made, KeelogWriter)
        return made

    def stream_writer(self) -> KeelogStreamWriter:
        made = self.source.streamWriter(schema=schema_of(SCHEMA), overwrite=False)
        assert isinstance(made, KeelogStreamWriter)
        return made

    def task(
        self, writer: Any, partition: int, rows: Sequence[str], query: str = "", batch: int = 0
    ) -> TaskCommit:
        """One attempt of a task."""
        self._attempts += 1
        context = Task(partition, self._attempts, query, batch)
        with self._patch.context() as patch:
            patch.setattr(TaskContext, "get", lambda: context)
            staged = writer.write(iter(batches_of(rows, self.topic)))
        assert isinstance(staged, TaskCommit)
        return staged

    def batch(self, query: str, batch: int, rows: list[list[str]]) -> list[TaskCommit]:
        """The tasks of a micro-batch, each by a writer of its own as in Spark's workers."""
        return [
            self.task(self.stream_writer(), partition, part, query, batch)
            for partition, part in enumerate(rows)
        ]

    def stored(self) -> list[str]:
        """The bodies in the topic, in the order of the log."""
        self.node.wait_dispatched()
        found = []
        for offsets in self.node.client.offsets(self.topic):
            at = offsets.min_offset
            while at < offsets.max_offset:
                pulled = self.node.client.pull(
                    self.topic, offsets.queue_id, at, max_messages=10_000, max_bytes=1 << 24
                )
                found += [
                    (message.physical_offset, message.body.decode()) for message in pulled.messages
                ]
                at = pulled.next_begin_offset
        return [body for _, body in sorted(found)]


def batches_of(rows: Sequence[str], topic: str) -> list[pa.RecordBatch]:
    """Arrow batches of some rows each, and an empty one, which Spark may send."""
    made = []
    for start in range(0, len(rows), 300):
        part = [row.encode() for row in rows[start : start + 300]]
        made.append(
            pa.record_batch(
                [
                    pa.array(part),
                    pa.array([topic] * len(part)),
                    pa.array([0] * len(part), pa.int32()),
                ],
                ["body", "topic", "queueId"],
            )
        )
    empty = pa.record_batch([pa.array([], kind) for kind in (pa.binary(), pa.string(), pa.int32())],
                            ["body", "topic", "queueId"])  # fmt: skip
    return [*made, empty]


def rows_of(name: str, parts: int = 2, count: int = ROWS) -> list[list[str]]:
    return [[f"{name}-{part}-{i:05d}" for i in range(count // parts)] for part in range(parts)]


@pytest.fixture
def engine(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Engine:
    topic = f"t{zlib.crc32(request.node.name.encode())}"
    return Engine(monkeypatch, node, topic)


def test_a_batch_is_visible_when_it_is_committed_and_not_before(engine: Engine) -> None:
    writer, rows = engine.writer(), rows_of("a")
    staged = [engine.task(writer, number, part) for number, part in enumerate(rows)]
    assert engine.topic not in {found.topic for found in engine.node.client.topics()}
    writer.commit(list(staged))
    assert engine.stored() == [*rows[0], *rows[1]]


def test_a_task_that_died_after_staging_leaves_nothing_of_its_first_try(engine: Engine) -> None:
    writer, (first, second) = engine.writer(), rows_of("a")
    engine.task(writer, 0, first)
    engine.task(writer, 0, first[:100])
    staged = [engine.task(writer, 0, first), engine.task(writer, 1, second)]
    writer.commit(list(staged))
    assert engine.stored() == [*first, *second]


def test_a_micro_batch_whose_commit_died_before_it_published_is_replayed_once(
    engine: Engine,
) -> None:
    rows = rows_of("a")
    engine.batch("before", 0, rows)
    again = engine.batch("before", 0, rows)
    engine.stream_writer().commit(list(again), 0)
    assert engine.stored() == [*rows[0], *rows[1]]


def test_a_micro_batch_whose_commit_died_after_it_published_is_not_published_again(
    engine: Engine,
) -> None:
    rows = rows_of("a")
    staged = engine.batch("after", 7, rows)
    engine.stream_writer().commit(list(staged), 7)
    engine.stream_writer().abort(list(staged), 7)
    again = engine.batch("after", 7, [part[::-1] for part in rows])
    assert [message.part for message in again] == [None, None]
    engine.stream_writer().commit(list(again), 7)
    assert engine.stored() == [*rows[0], *rows[1]]


def test_a_last_commit_entry_that_was_deleted_replays_nothing_and_the_next_batch_follows(
    engine: Engine,
) -> None:
    for batch in (0, 1, 1, 1, 2):
        rows = [[f"b{batch}-{row}" for row in part] for part in rows_of("x", count=20)]
        engine.stream_writer().commit(list(engine.batch("gone", batch, rows)), batch)
    counts = Counter(engine.stored())
    assert len(counts) == 60
    assert set(counts.values()) == {1}


def test_an_aborted_batch_leaves_nothing(engine: Engine) -> None:
    writer, rows = engine.writer(), rows_of("a")
    staged = engine.task(writer, 0, rows[0])
    query = staged.query
    writer.abort([staged, None])
    assert not list_stages(engine.node.root, StagedBatch(query, 0))
    with pytest.raises(RefusedError, match=r"\[KEELOG_NODE_REFUSED\].*NotFound: stage 0-"):
        writer.commit([staged])
    assert engine.topic not in {found.topic for found in engine.node.client.topics()}


def test_a_micro_batch_without_rows_is_recorded_too(engine: Engine) -> None:
    staged = engine.batch("empty", 0, [[]])
    engine.stream_writer().commit(list(staged), 0)
    engine.stream_writer().commit(list(staged), 0)
    later = engine.batch("empty", 1, [["x"]])
    engine.stream_writer().commit(list(later), 1)
    assert engine.stored() == ["x"]


def test_a_publication_whose_answer_was_lost_is_asked_for_again(engine: Engine) -> None:
    rows = rows_of("a")
    parts = [message.part for message in engine.batch("lost", 0, rows)]
    wanted = [part for part in parts if part is not None]
    answers = []
    for _ in range(3):
        with StageClient(engine.node.endpoint, 30.0) as client:
            answers.append(client.publish("lost", 0, wanted).already)
    assert answers == [False, True, True]
    assert engine.stored() == [*rows[0], *rows[1]]


def test_a_frame_whose_answer_was_lost_is_sent_again(engine: Engine) -> None:
    """The connection goes while frames are under way: the writer is killed and started again."""
    rows = [f"a-{i:05d}-{'x' * 2000}" for i in range(ROWS)]
    writer, killed = engine.writer(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of(rows, engine.topic)):
            if number == 3:
                engine.node.kill("writer")
                killed.set()
            yield batch

    staged = writer.write(slowly())
    assert killed.is_set()
    writer.commit([staged])
    engine.node.wait_all_run()
    assert engine.stored() == rows


@pytest.mark.faults
def test_a_writer_killed_in_mid_publication_goes_on_and_nothing_is_twice_or_missing(
    engine: Engine,
) -> None:
    """Others send meanwhile, and the driver asks until it has its answer."""
    rows = [[f"{part}-{i:05d}-{'x' * 4_000}" for i in range(4_000)] for part in range(2)]
    staged = engine.batch("killed", 3, rows)
    stop, others = threading.Event(), engine.topic + "others"
    sent: list[int] = []

    def send() -> None:
        while not stop.is_set():
            # A send whose outcome a kill left unknown is not the matter here.
            with suppress(MqError):
                sent.append(engine.node.client.send(others, b"x", timeout=60.0).queue_offset)

    thread = threading.Thread(target=send)
    commit = threading.Thread(target=engine.stream_writer().commit, args=(list(staged), 3))
    thread.start()
    commit.start()
    journal = journal_path(engine.node.root, StagedBatch("killed", 3))
    for _ in range(2):
        before = engine.node.log_state().appended
        wait_until(
            lambda before=before: (
                not commit.is_alive()  # type: ignore[misc]
                or (journal.exists() and engine.node.log_state().appended > before + (4 << 20))
            ),
            "the publication does not begin",
        )
        killed = [engine.node.kill("writer")]
        wait_until(
            lambda killed=killed: engine.node.pids().get("writer") != killed,  # type: ignore[misc]
            "the supervisor does not see the death",
        )
        engine.node.wait_all_run()
    commit.join(120)
    stop.set()
    thread.join(60)
    assert not commit.is_alive()
    assert engine.stored() == [*rows[0], *rows[1]]
    assert sent


def test_errors_of_options_modes_and_columns_have_conditions(node: RunningNode) -> None:
    def make(options: dict[str, str], ddl: str = "body string", overwrite: bool = False) -> None:
        good = {"node": node.endpoint, "topic": "t"}
        merged = {key: value for key, value in {**good, **options}.items() if value}
        KeelogSource(merged).writer(schema=schema_of(ddl), overwrite=overwrite)

    make({"checkpointLocation": "/x", "queryName": "q"}, "Value string, queueid long, TAGS string")
    cases: list[tuple[type[MqError], str, dict[str, str], str, bool]] = [
        (BadMode, "KEELOG_BAD_MODE", {}, "body string", True),
        (UnknownOption, "takes no option 'subscribe'", {"subscribe": "t"}, "body string", False),
        (BadOption, "which node to write to", {"node": ""}, "body string", False),
        (BadOption, "which is not an address", {"node": "localhost"}, "body string", False),
        (BadOption, "timeoutMs is 'x'", {"timeoutMs": "x"}, "body string", False),
        (BadOption, "has characters other than", {"topic": "a b"}, "body string", False),
        (UnknownColumn, "which topic", {"topic": ""}, "body string", False),
        (UnknownColumn, "no column 'offset'.*body, topic", {}, "body string, offset long", False),
        (UnknownColumn, "there is no column body", {}, "tags string", False),
        (UnknownColumn, "column queueId is string", {}, "body string, queueId string", False),
        (UnknownColumn, "column body is there twice", {}, "body string, value string", False),
    ]
    for kind, text, options, ddl, overwrite in cases:
        with pytest.raises(kind, match=text):
            make(options, ddl, overwrite)
    with pytest.raises(BadMode, match="keelog_index can only be read"):
        IndexSource({"node": node.endpoint}).writer(schema_of("body string"), False)


def test_a_node_that_is_not_there_is_named_within_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = KeelogSource({"node": "tcp://127.0.0.1:9", "topic": "t", "timeoutMs": "300"})
    writer = source.writer(schema=schema_of("body binary"), overwrite=False)
    batch = pa.record_batch([pa.array([b"x"])], ["body"])
    monkeypatch.setattr(TaskContext, "get", lambda: Task(0, 0))
    with pytest.raises(NotConnected, match=r"\[KEELOG_NODE_UNREACHABLE\] node tcp://127.0.0.1:9"):
        writer.write(iter([batch]))
    writer.abort([])


def test_a_stream_without_ids_of_query_and_batch_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    with pytest.raises(BadMode, match="KEELOG_BAD_MODE"):
        engine.stream_writer().write(iter([]))


def test_no_more_frames_are_under_way_than_the_window_has(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    put = StageWriter.put

    def watched(self: StageWriter, records: bytes, count: int) -> None:
        nonlocal most
        put(self, records, count)
        most = max(most, len(self._under_way))

    monkeypatch.setattr(StageWriter, "put", watched)
    monkeypatch.setattr(sink, "FRAME_BYTES", 1_000)
    writer = engine.writer()
    writer.commit([engine.task(writer, 0, rows_of("a", 1)[0])])
    assert 1 < most <= 8
    assert len(engine.stored()) == ROWS


def test_a_closed_client_says_so(node: RunningNode) -> None:
    client = StageClient(node.endpoint, 5.0)
    client.close()
    with pytest.raises(ClientClosed):
        client.publish("q", 0, [])
