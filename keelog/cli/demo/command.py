"""`keelog demo`: a node on a new directory, a broker's messages through it, everything compared."""

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

import keelog
from keelog.bench.node_process import Node, await_workers
from keelog.bench.running import node_for
from keelog.bench.workload import Workload
from keelog.cli.demo.spark import INSTALL, is_spark_there, spark_topics
from keelog.cli.demo.store import Input, find_store, outgoing, read_store, same
from keelog.cli.failures import doing, ending_in_order
from keelog.cli.messages.reading import BoundedReader, ConsumeChoice
from keelog.cli.messages.selectors import StartPoint
from keelog.cli.node.state import show_status
from keelog.cli.options import command, output_options
from keelog.cli.output import Output, say
from node.store.verify.verify import verify as verify_store
from protocol.errors import MqError, NotFound
from protocol.ids import Queue
from protocol.names import DLQ_PREFIX, RETRY_PREFIX
from protocol.record.codec import Record

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


class DemoFailed(MqError):
    """Something did not come back as it was sent."""


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
        with node_for(Workload(directory=str(place), settings=SETTINGS)) as (endpoint, _, node):
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
            summary.spark_topics = spark_topics(summary.store, say)
        output.document(asdict(summary), table=_table(summary))
        if run.differences:
            raise DemoFailed("; ".join(run.differences[:5]), f"keelog store verify {store}")
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
    rows = [row for row in spark_topics(store, say) if not row["topic"].startswith(OF_RETRIES)]
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
        found = self._found = Input()
        with tempfile.TemporaryDirectory(prefix="keelog-demo-") as scratch:
            for name in sources:
                say(f"reading {name}, a store that a RocketMQ broker wrote")
                stop = read_store(find_store(name, Path(scratch)), found)
                if stop is not None:
                    say(f"its log ends at offset {stop.position}: {stop.why}")
        summary.left_out = dict(found.left_out)
        skipped = ", ".join(f"{count} {why}" for why, count in found.left_out.items()) or "none"
        if not found.records:
            raise NotFound(
                f"no message to send in {', '.join(sources)}; left out: {skipped}",
                "keelog demo --from DIR with a store that has messages of ordinary topics",
            )
        say(f"{len(found.records)} messages to send; left out: {skipped}")

    def send(self, client: keelog.Client) -> None:
        """Some one by one, the rest in batches."""
        queues: dict[str, int] = {}
        for topic, queue_id in self._found.queues:
            queues[topic] = max(queues.get(topic, 8), queue_id + 1)
        for topic, count in queues.items():
            client.create_topic(topic, count, exist_ok=True)
        messages = [outgoing(record) for record in self._found.records]
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
        for queue, sent in self._found.queues.items():
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
