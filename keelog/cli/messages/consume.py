"""`keelog consume`: the messages of a topic on stdout, in order within each queue."""

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

import keelog
from client.subscription import BEHIND_ANY
from keelog.cli.completion import complete_topics
from keelog.cli.failures import OK, doing
from keelog.cli.messages.message_format import compile_format
from keelog.cli.messages.selectors import StartPoint, parse_range
from keelog.cli.options import command, node_option, output_options, progress_option
from keelog.cli.output import Output
from keelog.cli.shapes import MESSAGE_COLUMNS, MESSAGE_TABLE, message_shape
from keelog.progress import Advance, CommandProgress
from protocol.errors import NotFound

_CATCH_UP_S = 5.0
_PAUSE_S = 0.01
_PULL_MESSAGES = 1024
_PULL_BYTES = 1024 * 1024
_STILL_PULLS_MAX = 3


class ConsumeChoice(NamedTuple):
    """Which messages of a topic."""

    topic: str
    queues: tuple[int, ...]
    tags: str | None
    first: StartPoint
    last: StartPoint | None


@command("consume")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-o", "where", default="start", show_default=True, metavar="FROM[:TO]",
    help="start, end, 123, +5, -10 (the last ten of each queue), @2026-11-20T10:00, @-15m.",
)  # fmt: skip
@click.option("-n", "count", type=click.IntRange(0), metavar="COUNT", help="Ends after so many.")
@click.option("-e", "at_end", is_flag=True, help="Ends at the end of the log as it is now.")
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, metavar="N")
@click.option("--tags", metavar="'A || B'")
@click.option("-f", "text", metavar="FORMAT", help=r"As '%t %q %o %k %v\n'.")
@click.option("--raw-body", is_flag=True, help="Every body as body_b64.")
@click.option("--no-body", is_flag=True, help="Leaves bodies out.")
@node_option
@progress_option
@output_options
def consume(
    topic: str, output: Output, node: str, progress: CommandProgress, **options: Any
) -> int:
    """Prints the messages of a topic, in order within each queue, and waits for more.

    FORMAT has a letter for each part: %t topic, %q queue, %o offset, %k keys, %v value, %V its
    size, %d store time, %h properties, %g tags, %x physical offset; after it {hex}, {base64} or
    {json}. Bytes go out as they are, so a message can command your terminal; tables, JSON and CSV
    escape control characters.

    Example: keelog consume orders -o -10 -e

    Example: keelog consume orders -e -f '%o %k %v\\n'
    """
    # In UTC here; a time without a zone is local time all the same.
    first, last = parse_range(options["where"], datetime.now(UTC))
    wanted = ConsumeChoice(topic, options["queues"], options["tags"], first, last)
    render = None if options["text"] is None else compile_format(options["text"])
    finite = options["at_end"] or last is not None
    if output.is_terminal or not finite:
        progress.silence()  # the messages themselves show how far it is, or there is no end
    with doing(f"cannot read {topic}"), keelog.connect(node) as client, progress.shown():
        advance = progress.meter("read", "messages")
        messages = read_to_end(client, wanted, advance) if finite else follow(client, wanted)
        messages = itertools.islice(messages, options["count"])
        if render is not None:
            for message in messages:
                output.raw(render(message.record))
                if not finite:
                    output.flush()
            output.flush()
            return OK
        shapes = (
            message_shape(message.record, options["raw_body"], options["no_body"])
            for message in messages
        )
        columns = MESSAGE_TABLE if output.format == "table" else MESSAGE_COLUMNS
        output.rows(shapes, columns, live=not finite)
    return OK


def read_to_end(
    client: keelog.Client, wanted: ConsumeChoice, advance: Advance = lambda _done, _total: None
) -> Iterator[keelog.Message]:
    """From the first place to the last one, queue by queue; without a last one to the end of the
    log as it is now. `advance` gets how many offsets are done, and how many there are."""
    to_the_end = wanted.last is None or wanted.last.kind != "offset"
    is_short = to_the_end and not wait_until_dispatched(client)
    spans = {queue.queue_id: span_of(client, wanted, queue) for queue in _queues(client, wanted)}
    total = sum(map(len, spans.values()))
    before = 0
    for queue_id, span in spans.items():
        for message in _read(client, wanted, queue_id, span):
            advance(before + message.queue_offset - span.start, total)
            yield message
        before += len(span)
    if is_short:
        # The node knows which queues have more than their worker has placed.
        for queue_id, span in spans.items():
            known = client.pull(wanted.topic, queue_id, BEHIND_ANY, max_messages=1)
            yield from _read(client, wanted, queue_id, range(span.stop, known.max_offset))


def span_of(client: keelog.Client, wanted: ConsumeChoice, queue: keelog.QueueOffsets) -> range:
    """The wanted offsets of a queue; none when they end before they start."""
    start = offset_of(client, wanted, queue, wanted.first)
    end = queue.max_offset
    if wanted.last is not None:
        end = min(end, offset_of(client, wanted, queue, wanted.last))
    return range(start, max(start, end))


def wait_until_dispatched(client: keelog.Client) -> bool:
    """Waits, for some seconds at most, until the queues hold all that the log held at the call.

    Returns False when they do not by then, or when a queue worker stopped before damage.
    """
    deadline = time.monotonic() + _CATCH_UP_S
    end = client.status().log.readable
    while time.monotonic() < deadline:
        workers = [one for one in client.status().processes if one.role == "queue"]
        if any(worker.state == "damaged" for worker in workers):
            return False
        if all(worker.offset is not None and worker.offset >= end for worker in workers):
            return True
        time.sleep(_PAUSE_S)
    return False


def _read(
    client: keelog.Client, wanted: ConsumeChoice, queue_id: int, span: range
) -> Iterator[keelog.Message]:
    offset, end = span.start, span.stop
    still = 0
    while offset < end:
        result = client.pull(
            wanted.topic, queue_id, offset, tags=wanted.tags,
            max_messages=_PULL_MESSAGES, max_bytes=_PULL_BYTES,
        )  # fmt: skip
        yield from (message for message in result.messages if message.queue_offset < end)
        # An offset that does not move (a file is just being removed) is tried again, not for ever.
        still = 0 if result.next_begin_offset > offset else still + 1
        if still >= _STILL_PULLS_MAX:
            return
        if still:
            time.sleep(_PAUSE_S)
        offset = max(offset, result.next_begin_offset)


def follow(client: keelog.Client, wanted: ConsumeChoice) -> Iterator[keelog.Message]:
    """From the first place on, without an end."""
    first = wanted.first
    starts: dict[str, Any] = {
        "start": "earliest",
        "end": "latest",
        "offset": first.value,
        "from_start": "earliest",
        "from_end": -first.value if first.value else "latest",
        "time": datetime.fromtimestamp(first.value / 1000, UTC) if first.kind == "time" else None,
    }
    skipped: dict[int, int] = {}
    if first.kind == "from_start":
        queues = _queues(client, wanted)
        skipped = {queue.queue_id: queue.min_offset + first.value for queue in queues}
    chosen = wanted.queues or None
    for message in client.tail(wanted.topic, starts[first.kind], queues=chosen, tags=wanted.tags):
        if message.queue_offset >= skipped.get(message.queue_id, 0):
            yield message


def _queues(client: keelog.Client, wanted: ConsumeChoice) -> list[keelog.QueueOffsets]:
    found = client.offsets(wanted.topic)
    missing = set(wanted.queues) - {queue.queue_id for queue in found}
    if missing:
        raise NotFound(
            f"topic {wanted.topic} has no queue {min(missing)}",
            f"keelog topic describe {wanted.topic}",
        )
    return [queue for queue in found if not wanted.queues or queue.queue_id in wanted.queues]


def offset_of(
    client: keelog.Client, wanted: ConsumeChoice, queue: keelog.QueueOffsets, place: StartPoint
) -> int:
    """The offset in a queue that a place means, within the queue's bounds."""
    match place.kind:
        case "start":
            offset = queue.min_offset
        case "end":
            offset = queue.max_offset
        case "offset":
            offset = place.value
        case "from_start":
            offset = queue.min_offset + place.value
        case "from_end":
            offset = queue.max_offset - place.value
        case "time":
            offset = client.seek(wanted.topic, queue.queue_id, place.value)
    return min(max(offset, queue.min_offset), queue.max_offset)
