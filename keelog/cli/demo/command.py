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
from keelog.cli.failures import OK, doing, ending_in_order
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
def demo(sources: Sequence[str], directory: Path | None, spark: bool | None, output: Output) -> int:
    """Sends a broker's messages through a new node, and compares what comes back.

    Starts a node, sends every message that a client may send, pulls all of them back, looks some
    up by key and by time, stops the node and verifies what it stored. A Spark job counts it by
    topic. The store is kept.

    Example: keelog demo

    Example: keelog demo --from /var/lib/rocketmq/store
    """
    started = time.monotonic()
    place = directory or Path(tempfile.mkdtemp(prefix="keelog-demo-"))
    summary = DemoSummary(store=str(place / "store"))
    differences: list[str] = []
    with doing("the demo failed"), ending_in_order():
        found = _read(sources, summary)
        with node_for(Workload(directory=str(place), settings=SETTINGS)) as (endpoint, _, node):
            assert node is not None, "a node was started"
            _show_lines(_said(node))
            with keelog.connect(endpoint, timeout=_TIMEOUT_S) as client:
                stored = _send(client, found, summary)
                _wait_until_dispatched(client, summary)
                _compare(client, found, stored, summary, differences)
                show_status(client, Output("table", sys.stderr.buffer))
            before = len(_said(node))
            code = node.stop()
            _show_lines(_said(node)[before:])
            if code:
                differences.append(f"the node ended with {code}")
        summary.verified = _verify(place / "store", differences)
        summary.seconds = round(time.monotonic() - started, 1)
        is_for_people = output.format == "table"
        if spark and not is_for_people:
            summary.spark_topics = spark_topics(summary.store, say)
        output.document(asdict(summary), table=_table(summary))
        if differences:
            raise DemoFailed("; ".join(differences[:5]), f"keelog store verify {place / 'store'}")
        if is_for_people and spark is not False:
            _show_spark(summary.store, bool(spark), output)
    _show_lines(["", *_commands(place / "store")])
    return OK


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


def _show_lines(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)


def _said(node: Node) -> list[str]:
    return [f"  node: {line}" for line in node.said().splitlines()]


def _read(sources: Sequence[str], summary: DemoSummary) -> Input:
    found = Input()
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
    return found


def _send(client: keelog.Client, found: Input, summary: DemoSummary) -> list[keelog.Receipt]:
    """Some one by one, the rest in batches; the receipts in order."""
    queues: dict[str, int] = {}
    for topic, queue_id in found.queues:
        queues[topic] = max(queues.get(topic, 8), queue_id + 1)
    for topic, count in queues.items():
        client.create_topic(topic, count, exist_ok=True)
    messages = [outgoing(record) for record in found.records]
    began = time.monotonic()
    receipts = [client.send(str(message.topic), message) for message in messages[:SENT_SINGLY]]
    with client.producer(timeout=_TIMEOUT_S) as producer:
        for start in range(SENT_SINGLY, len(messages), BATCH):
            receipts += producer.send_many("", messages[start : start + BATCH])
    took = time.monotonic() - began
    summary.sent = len(messages)
    summary.stored = sum(receipt.status == "PUT_OK" for receipt in receipts)
    say(f"sent {summary.sent} in {took:.1f} s, {summary.stored} stored")
    return receipts


def _wait_until_dispatched(client: keelog.Client, summary: DemoSummary) -> None:
    """Waits until queues and index have followed to the log's end."""
    await_workers(client)
    summary.dispatched = sum(
        queue.max_offset - queue.min_offset
        for topic in client.topics()
        for queue in client.offsets(topic.topic)
    )
    say(f"{summary.dispatched} dispatched to queues and index")


def _compare(
    client: keelog.Client,
    found: Input,
    receipts: list[keelog.Receipt],
    summary: DemoSummary,
    differences: list[str],
) -> None:
    """Pulls every queue and holds it against what was sent; then some look-ups."""
    pulled: dict[Queue, list[Record]] = {}
    for queue, sent in found.queues.items():
        wanted = ConsumeChoice(queue.topic, (queue.queue_id,), None, StartPoint("start"), None)
        pulled[queue] = [message.record for message in BoundedReader(client, wanted).read_to_end()]
        equal = sum(map(same, sent, pulled[queue]))
        summary.pulled_equal += equal
        if equal != len(sent) or len(pulled[queue]) != len(sent):
            differences.append(f"{queue}: {len(sent)} sent, {equal} came back equal")
    offsets = {record.physical_offset for records in pulled.values() for record in records}
    if offsets != {receipt.physical_offset for receipt in receipts}:
        differences.append("the receipts name other log offsets than the queues")
    say(f"{summary.pulled_equal} pulled back equal, field by field")
    _look_up(client, pulled, summary, differences)


def _look_up(
    client: keelog.Client,
    pulled: dict[Queue, list[Record]],
    summary: DemoSummary,
    differences: list[str],
) -> None:
    everything = [record for records in pulled.values() for record in records]
    chosen = random.Random(7).sample(everything, min(LOOK_UPS, len(everything)))
    for record in chosen:
        key, at = (record.keys or [record.unique_key])[-1], record.head.store_timestamp
        hits = client.find(record.topic, key, since=at, until=at)
        summary.found_by_key += any(hit.physical_offset == record.physical_offset for hit in hits)
        queue = Queue(record.topic, record.head.queue_id)
        times = [one.head.store_timestamp for one in pulled[queue]]
        first = next(place for place, moment in enumerate(times) if moment >= at)
        expected = pulled[queue][first].head.queue_offset
        summary.found_by_time += client.seek(queue.topic, queue.queue_id, at) == expected
    summary.looked_up = len(chosen)
    if not summary.found_by_key == summary.found_by_time == len(chosen):
        differences.append(
            f"of {len(chosen)} looked up, {summary.found_by_key} were found by key and "
            f"{summary.found_by_time} by time"
        )
    say(
        f"{summary.found_by_key} found by key and {summary.found_by_time} by store time,"
        f" of {len(chosen)} looked up"
    )


def _verify(store: Path, differences: list[str]) -> dict[str, Any]:
    """Checks what was stored, as `keelog store verify --deep` does."""
    say("verifying the store")
    report = verify_store(store, deep=True)
    if report.findings or not report.clean_shutdown:
        found = report.shape()["findings"][:3]
        differences.append(f"store verify: {found or 'no clean shutdown'}")
    return {
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


def _commands(store: Path) -> list[str]:
    """Four lines to paste."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "keelog" else "keelog"
    return [
        "go on with:",
        f"  {program} serve {store}",
        f"  echo hello | {program} produce orders --tags paid --key o-17",
        f"  {program} consume orders -o -3 -e",
        f"  {program} bench send --duration 5s",
    ]
