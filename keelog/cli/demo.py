"""`keelog demo`: a node on a new directory, a broker's messages through it, everything compared.

The messages are from stores that a RocketMQ broker wrote. The last table is what a Spark job counts
in the store that the demo made. That job is a process of its own, `python -m keelog.cli.demo
STORE`: Spark's words stay apart.
"""

import importlib.util
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

import keelog
from keelog.bench.node_process import Node, await_workers
from keelog.bench.running import node_for
from keelog.bench.workload import Workload
from keelog.cli.failures import doing, ending_in_order
from keelog.cli.messages.reading import BoundedReader, ConsumeChoice
from keelog.cli.messages.selectors import StartPoint
from keelog.cli.node.state import show_status
from keelog.cli.options import command, output_options
from keelog.cli.output import Output, say
from keelog.pipeline.session import INSTALL
from node.store.opening import open_store
from node.store.verify.verify import verify as verify_store
from node.supervisor.child_process import environment
from protocol.errors import MqError, NotAStore, NotFound, PropertiesTooLarge, StoreDamaged
from protocol.ids import Queue
from protocol.names import DLQ_PREFIX, NOT_FOR_CLIENTS, RETRY_PREFIX, SYSTEM_PREFIX
from protocol.record.codec import BORN_HOST_V6, STORE_HOST_V6, Record, Torn
from protocol.record.encode import FORBIDDEN_SYS_FLAGS, encode_message
from protocol.record.properties import CRC32, UNIQUE_KEY, decode_raw_properties

STORES = Path(__file__).with_name("demo_stores")
"""Packed stores that RocketMQ wrote: tests/golden/README.md says what is in them."""
SOURCES = ("small-clean", "mixed-kinds")
SETTINGS = (
    "store.mapped_file_size_commit_log=2097152",
    "store.mapped_file_size_consume_queue=6000",
    "store.max_hash_slot_num=5000",
    "store.max_index_num=20000",
)
"""Small files, so that every kind of them rolls."""
SENT_SINGLY = 200
BATCH = 500
LOOK_UPS = 200
OF_RETRIES = (RETRY_PREFIX, DLQ_PREFIX)
_TIMEOUT_S = 30.0
_DELAYS = (b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
_HOST_FLAGS = BORN_HOST_V6 | STORE_HOST_V6
JOB_S_MAX = 300.0
_SAY_EVERY_S = 10.0
_CONF = {
    "spark.driver.memory": "512m",
    # A short job: what makes long ones fast costs it more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(slots=True)
class DemoSummary:
    """The counts of the demo."""

    sent: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    stored: int = 0
    dispatched: int = 0
    pulled_equal: int = 0
    found_by_key: int = 0
    found_by_time: int = 0
    looked_up: int = 0
    verified: dict[str, Any] = field(default_factory=dict)
    store: str = ""
    seconds: float = 0.0
    spark_topics: list[dict[str, Any]] = field(default_factory=list)


@command("demo")
@click.option(
    "--from", "sources", multiple=True, metavar="DIR", default=SOURCES,
    help="A broker's store directory; default: two stores that RocketMQ wrote.",
)  # fmt: skip
@click.option("--directory", type=click.Path(path_type=Path), help="Default: a new one in /tmp.")
@click.option(
    "--spark/--no-spark", default=None,
    help="Ends with a Spark job's figures of the store; default: for people, where Spark is.",
)  # fmt: skip
@output_options
def demo(
    sources: Sequence[str], directory: Path | None, spark: bool | None, output: Output
) -> None:
    """Sends a broker's messages through a new node, and compares what comes back.

    Starts a node, sends every message that a client may send, pulls all of them back, looks some
    up by key and by time, stops the node and verifies what it stored. A Spark job counts it by
    topic. The store is kept.

    Example: keelog demo

    Example: keelog demo --from /var/lib/rocketmq/store
    """
    started = time.monotonic()
    place = directory or Path(tempfile.mkdtemp(prefix="keelog-demo-"))
    store = place / "store"
    with doing("the demo failed"), ending_in_order():
        run = _DemoRun(sources, DemoSummary(store=str(store)))
        with node_for(Workload(directory=str(place), settings=SETTINGS)) as (endpoint, node):
            assert node is not None, "a node was started"
            _show_said(node)
            with keelog.connect(endpoint, timeout=_TIMEOUT_S) as client:
                run.send(client)
                run.wait_until_dispatched(client)
                run.compare(client)
                show_status(client, Output("table", sys.stderr.buffer))
            known = len(node.said().splitlines())
            code = node.stop()
            _show_said(node, known)
            if code:
                run.differences.append(f"the node ended with {code}")
        run.verify(store)
        summary = run.summary
        summary.seconds = round(time.monotonic() - started, 1)
        is_for_people = output.format == "table"
        if spark and not is_for_people:
            summary.spark_topics = spark_topics(summary.store)
        output.document(asdict(summary), table=_table(summary))
        if run.differences:
            raise MqError("; ".join(run.differences[:5]), f"keelog store verify {store}")
        if is_for_people and spark is not False:
            _show_spark(summary.store, bool(spark), output)
    program = sys.argv[0] if Path(sys.argv[0]).name == "keelog" else "keelog"
    say(
        f"\ngo on with:\n  {program} serve {store}\n"
        f"  echo hello | {program} produce orders --tags paid --key o-17\n"
        f"  {program} consume orders -o -3 -e\n  {program} bench send --duration 5s"
    )


def _show_spark(store: str, is_asked_for: bool, output: Output) -> None:
    """The last table, or the line that says how to get it."""
    if not is_asked_for and not is_spark_there():
        say("")
        say(f"Spark is not installed; with it the demo ends with a Spark job: {INSTALL}")
        return
    say("")
    rows = [row for row in spark_topics(store) if not row["topic"].startswith(OF_RETRIES)]
    # Imported here: it comes with the jobs.
    from keelog.pipeline.report import topic_rows

    shown = ("topic", "queues", "messages", "bytes", "per second", "median", "largest", "skew")
    table = [{name: row[name] for name in shown} for row in topic_rows(rows)]
    title = "what a Spark job counts in the store, topics of retries left out"
    output.document({}, table, f"\n{title}")


def _show_said(node: Node, known: int = 0) -> None:
    for line in node.said().splitlines()[known:]:
        say(f"  node: {line}")


class _DemoRun:
    """The messages on their way through the node, the counts, and what was not as it should be."""

    def __init__(self, sources: Sequence[str], summary: DemoSummary) -> None:
        self.summary = summary
        self.differences: list[str] = []
        self._receipts: list[keelog.Receipt] = []
        self._records: list[Record] = []
        """The messages to send, in log order."""
        with tempfile.TemporaryDirectory(prefix="keelog-demo-") as scratch:
            for name in sources:
                say(f"reading {name}, a store that a RocketMQ broker wrote")
                stop = self._read(find_store(name, Path(scratch)))
                if stop is not None:
                    say(f"its log ends at offset {stop.position}: {stop.why}")
        skipped = ", ".join(f"{count} {why}" for why, count in summary.left_out.items()) or "none"
        if not self._records:
            raise NotFound(
                f"no message to send in {', '.join(sources)}; left out: {skipped}",
                "keelog demo --from DIR with a store that has messages of ordinary topics",
            )
        say(f"{len(self._records)} messages to send; left out: {skipped}")

    def _read(self, path: Path) -> Torn | None:
        """Adds the messages of a store. Returns what ends its log, where that is not a proper end.

        Raises StoreDamaged for a log that breaks off before its first record, and what `open_store`
        raises.
        """
        left_out = self.summary.left_out
        with open_store(path) as store:
            is_empty = True
            for window in store.log.columns(store.log.min_offset):
                is_empty = is_empty and not len(window)
                for record in map(store.log.record_at, window.physical_offset.tolist()):
                    reason = why_not(record)
                    if reason:
                        left_out[reason] = left_out.get(reason, 0) + 1
                    else:
                        self._records.append(record)
            stop = store.log.stopped or store.tail.stop
            if stop is None or stop.kind == "end":
                return None
            if is_empty:
                raise StoreDamaged(
                    str(store.log.segments.folder),
                    stop.position,
                    f"no message can be read: {stop.why}",
                    f"keelog store verify {path} --deep",
                )
            return stop

    def _queues(self) -> dict[Queue, list[Record]]:
        """The messages of each queue, in order."""
        found: dict[Queue, list[Record]] = {}
        for record in self._records:
            found.setdefault(Queue(record.topic, record.head.queue_id), []).append(record)
        return found

    def send(self, client: keelog.Client) -> None:
        """Some one by one, the rest in batches."""
        queues: dict[str, int] = {}
        for topic, queue_id in self._queues():
            queues[topic] = max(queues.get(topic, 8), queue_id + 1)
        for topic, count in queues.items():
            client.create_topic(topic, count, exist_ok=True)
        messages = [outgoing(record) for record in self._records]
        began = time.monotonic()
        for message in messages[:SENT_SINGLY]:
            self._receipts.append(client.send(str(message.topic), message))
        with client.producer(timeout=_TIMEOUT_S) as producer:
            for start in range(SENT_SINGLY, len(messages), BATCH):
                self._receipts += producer.send_many("", messages[start : start + BATCH])
        took, summary = time.monotonic() - began, self.summary
        summary.sent = len(messages)
        summary.stored = sum(receipt.status == "PUT_OK" for receipt in self._receipts)
        say(f"sent {summary.sent} in {took:.1f} s, {summary.stored} stored")

    def wait_until_dispatched(self, client: keelog.Client) -> None:
        """Waits until queues and index have followed to the log's end."""
        await_workers(client)
        ends = (one for topic in client.topics() for one in client.offsets(topic.topic))
        self.summary.dispatched = sum(queue.max_offset - queue.min_offset for queue in ends)
        say(f"{self.summary.dispatched} dispatched to queues and index")

    def compare(self, client: keelog.Client) -> None:
        """Pulls every queue and holds it against what was sent; then some look-ups."""
        pulled: dict[Queue, list[Record]] = {}
        for queue, sent in self._queues().items():
            wanted = ConsumeChoice(queue.topic, (queue.queue_id,), None, StartPoint("start"), None)
            came = [message.record for message in BoundedReader(client, wanted).read_to_end()]
            pulled[queue] = came
            equal = sum(map(same, sent, came))
            self.summary.pulled_equal += equal
            if equal != len(sent) or len(came) != len(sent):
                self.differences.append(f"{queue}: {len(sent)} sent, {equal} came back equal")
        offsets = {record.physical_offset for records in pulled.values() for record in records}
        if offsets != {receipt.physical_offset for receipt in self._receipts}:
            self.differences.append("the receipts name other log offsets than the queues")
        say(f"{self.summary.pulled_equal} pulled back equal, field by field")
        self._look_up(client, pulled)

    def _look_up(self, client: keelog.Client, pulled: dict[Queue, list[Record]]) -> None:
        everything = [record for records in pulled.values() for record in records]
        chosen = random.Random(7).sample(everything, min(LOOK_UPS, len(everything)))
        by_key = by_time = 0
        for record in chosen:
            key, at = (record.keys or [record.unique_key])[-1], record.head.store_timestamp
            hits = client.find(record.topic, key, since=at, until=at)
            by_key += any(hit.physical_offset == record.physical_offset for hit in hits)
            queue = Queue(record.topic, record.head.queue_id)
            first = next(one for one in pulled[queue] if one.head.store_timestamp >= at)
            by_time += client.seek(*queue, at) == first.head.queue_offset
        summary = self.summary
        summary.found_by_key, summary.found_by_time = by_key, by_time
        summary.looked_up = len(chosen)
        counts = f"{by_key} were found by key and {by_time} by time"
        if not by_key == by_time == len(chosen):
            self.differences.append(f"of {len(chosen)} looked up, {counts}")
        say(f"{by_key} found by key and {by_time} by store time, of {len(chosen)} looked up")

    def verify(self, store: Path) -> None:
        """Checks what was stored, as `keelog store verify --deep` does."""
        say("verifying the store")
        report = verify_store(store, deep=True)
        if report.findings or not report.clean_shutdown:
            found = report.shape()["findings"][:3]
            self.differences.append(f"store verify: {found or 'no clean shutdown'}")
        self.summary.verified = {
            "ok": report.ok,
            "clean_shutdown": report.clean_shutdown,
            "records": report.records,
            "units": report.units,
            "entries": report.index_entries,
            "findings": len(report.findings),
        }


def _table(summary: DemoSummary) -> list[dict[str, Any]]:
    checked = summary.verified
    rows = {
        "sent": summary.sent,
        "left out": sum(summary.left_out.values()),
        "stored": summary.stored,
        "dispatched": summary.dispatched,
        "pulled equal": summary.pulled_equal,
        "found by key": f"{summary.found_by_key} of {summary.looked_up}",
        "found by time": f"{summary.found_by_time} of {summary.looked_up}",
        "verified records": checked.get("records"),
        "verified units": checked.get("units"),
        "verified entries": checked.get("entries"),
        "findings": checked.get("findings"),
        "store": summary.store,
        "took": f"{summary.seconds} s",
    }
    return [{"what": what, "count": count} for what, count in rows.items()]


def find_store(name: str, into: Path) -> Path:
    """The directory of a store: `name` itself, or the store of STORES of that name, unpacked.
    Raises NotAStore when there is neither."""
    if Path(name).is_dir():
        return Path(name)
    archive = STORES / f"{name}.tar.gz"
    if not archive.is_file():
        raise NotAStore(
            f"there is no directory {name} and no {archive}, a store that a broker wrote",
            "keelog demo --from DIR with a store of yours",
        )
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(into, filter="data")
        else:  # Debian 12's Python 3.11.2 is older than the filters; the archives are our own.
            packed.extractall(into)
    return into / name


def why_not(record: Record) -> str:
    """Why a client may not send this again; empty when it may."""
    if record.topic in NOT_FOR_CLIENTS or record.topic.lower().startswith(SYSTEM_PREFIX):
        return "of system topics"
    if record.head.sys_flag & FORBIDDEN_SYS_FLAGS:
        return "parts of transactions"
    pairs = decode_raw_properties(record.properties_raw)
    if any(name in pairs for name in _DELAYS):
        return "delayed"
    try:
        for name, value in pairs.items():
            name.decode(), value.decode()
    except UnicodeDecodeError:
        return "with properties that are no text"
    if any(b"\1" in value for value in pairs.values()):
        return "with malformed properties"
    try:
        encode_message(outgoing(record).draft(record.topic, "U" * 32, 0), crc=True)
    except PropertiesTooLarge:
        return "without room for the whole-record checksum"
    return ""


def outgoing(record: Record, without: Collection[str] = ()) -> keelog.OutgoingMessage:
    """The message as a client sends it again: all but its place, its checksum, and `without`."""
    left_out = {CRC32, *without}
    properties = {name: text for name, text in record.properties.items() if name not in left_out}
    return keelog.OutgoingMessage(
        record.raw_body,
        topic=record.topic,
        properties=properties,
        queue_id=record.head.queue_id,
        flag=record.head.flag,
        sys_flag=record.head.sys_flag & ~_HOST_FLAGS,
        born_timestamp=record.head.born_timestamp,
        born_host=str(record.born_host),
        reconsume_times=record.head.reconsume_times,
    )


def same(sent: Record, stored: Record) -> bool:
    """Whether all fields came back. A message without UNIQ_KEY got one from the client."""
    given = () if sent.unique_key else (UNIQUE_KEY,)
    return outgoing(sent, given) == outgoing(stored, given)


class SparkJobFailed(MqError):
    """The demo's Spark job did not end as it should."""


def is_spark_there() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow"))


def spark_topics(store: str) -> list[dict[str, Any]]:
    """The figures of each topic, by a Spark job on this machine. Raises SparkJobFailed.

    Says what it waits for, as starting Java and Spark takes longer than the job.
    """
    say("a Spark job counts the store by topic; Java and Spark start first, 10 to 30 s")
    command = [sys.executable, "-P", "-m", "keelog.cli.demo", store]
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as job:
        try:
            out, err = _wait(job, began)
        finally:
            job.kill()
    if job.returncode:
        lines = err.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise SparkJobFailed(
            f"the Spark job ended with {job.returncode}: {lines[-1]}",
            f"keelog spark stats {store}, or keelog demo --no-spark",
        )
    say(f"the Spark job took {time.monotonic() - began:.1f} s, Spark's start included")
    rows: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
    return rows


def _wait(job: subprocess.Popen[bytes], began: float) -> tuple[bytes, bytes]:
    while True:
        try:
            return job.communicate(timeout=_SAY_EVERY_S)
        except subprocess.TimeoutExpired:
            waited = time.monotonic() - began
            if waited > JOB_S_MAX:
                raise SparkJobFailed(
                    f"the Spark job does not end within {JOB_S_MAX:.0f} s", "keelog demo --no-spark"
                ) from None
            say(f"  {waited:.0f} s")


def main() -> int:
    """Prints the figures of the store that is named, as JSON in one line."""
    from keelog.pipeline.jobs.stats import COLUMNS, plain_rows, stats_by_topic
    from keelog.pipeline.session import run_job

    def demo(session: Any) -> list[dict[str, Any]]:
        messages = session.read.format("keelog").option("columns", COLUMNS).load(sys.argv[1])
        return plain_rows(stats_by_topic(messages))

    rows = run_job(demo, "local[2]", _CONF, lambda line: None)
    sys.stdout.write(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
