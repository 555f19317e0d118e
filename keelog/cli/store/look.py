"""`keelog store get`, `find`, `seek` and `dump`: print what is in a store directory.

The first three print single results; `dump` prints everything in a store, in file order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from keelog.cli import failures, shapes
from keelog.cli.failures import doing
from keelog.cli.messages.selectors import TIMES, time
from keelog.cli.options import command, one_of, size, store_options, walk_options
from keelog.cli.output import Output, say
from keelog.cli.store.options import directory, opened
from keelog.text import Advance, CommandProgress
from node.runtime.settings import load_settings
from node.store.indexes import END_OF_TIME, MAX_MESSAGES_BATCH
from node.store.log.reader import Damage, columns_past_damage
from node.store.opening import StoppedStore
from node.store.query.filters import parse_tags
from node.store.query.look_up import Boundary, offset_by_time
from node.store.query.pull import IN_MEMORY, PullRequest, PullStatus, TransferLimits, get_message
from protocol.derived.file_layouts import IndexEntry, QueueUnit
from protocol.errors import BadRequest, NotFound
from protocol.record.codec import Record
from protocol.record.columns import RecordColumns

_STEP_UNITS = 4096
_END = 2**63 - 1
_ROWS = {"messages": "message", "queues": "queue unit", "index": "index entry"}


@command()
@directory
@click.option("--topic", required=True)
@click.option("--queue", type=int, required=True, help="The queue's id.")
@click.option("--offset", type=int, required=True, help="Queue offset to begin at.")
@click.option("--count", type=int, default=32, show_default=True, help="maxMsgNums of the pull.")
@click.option("--tags", help="Subscription: 'A || B', or * for all; compared by hash.")
@click.option("--max-messages", type=click.IntRange(1), help="More than the usual 32 messages.")
@click.option("--max-bytes", type=size, metavar="SIZE", help="More than the usual 256KiB.")
@shapes.body_options
@store_options
def get(
    path: Path,
    offset: int,
    max_messages: int | None,
    output: Output,
    pairs: tuple[str, ...],
    **options: Any,
) -> int:
    """One pull, as a broker answers it: status, offsets and messages.

    Ends with 3 when no message is found.

    Example: keelog store get ./store --topic orders --queue 0 --offset 100 --count 10
    """
    limits = TransferLimits(
        max_messages or IN_MEMORY.count_max, options["max_bytes"] or IN_MEMORY.bytes_max
    )
    request = PullRequest(options["count"], limits=limits, tags=parse_tags(options["tags"]))
    with opened(path, pairs) as store, doing("cannot read the messages"):
        queue = store.queue(options["topic"], options["queue"])
        result = get_message(store.log, queue, offset, request)
        bodies = shapes.Bodies(options["raw_body"], options["no_body"])
        places = result.physical_offsets.tolist()
        rows = (bodies.shape(store.log.record_at(place)) for place in places)
        document = shapes.pull_shape(result, rows)
    title = f"{result.status.value}, next {result.next_begin_offset}"
    table = [{name: one.get(name) for name in shapes.MESSAGE_TABLE} for one in document["messages"]]
    output.document(document, table, title)
    return bodies.end() if result.status is PullStatus.FOUND else failures.NOT_FOUND


@command()
@directory
@click.option("--topic", required=True)
@click.option("--key", required=True, help="One of KEYS, a UNIQ_KEY, or T#TAGS.")
@click.option(
    "--since", type=time, default=0, metavar="TIME", help=f"Earliest store time: {TIMES}."
)
@click.option("--until", type=time, default=END_OF_TIME, metavar="TIME", help="Latest store time.")
@click.option("--limit", type=click.IntRange(1), default=MAX_MESSAGES_BATCH, show_default=True)
@click.option("--unique", is_flag=True, help="Looks at UNIQ_KEY only.")
@click.option("--candidates", is_flag=True, help="Log offsets as a broker's index answers them.")
@shapes.on_damage_option
@shapes.body_options
@store_options
def find(path: Path, output: Output, pairs: tuple[str, ...], **options: Any) -> int:
    """Messages by key, newest first. Ends with 3 when there is none.

    stderr names each damaged message that may have the key; the exit code is 5 then.

    Example: keelog store find ./store --topic orders --key order-17
    """
    # Imported here: it brings modules of the client, which the other commands do without.
    from keelog.store import open_store

    damage = shapes.DamagedPlaces(fails=options["on_damage"] == "fail")
    bodies = shapes.Bodies(options["raw_body"], options["no_body"])
    with doing(f"cannot open the store {path}"):
        opened_store = open_store(path, load_settings(pairs))
    with opened_store as store, doing(f"cannot find messages with key {options['key']}"):
        if options["candidates"]:
            topic, key, limit = options["topic"], options["key"], options["limit"]
            # As RocketMQ's queryOffset; the limit replaces its maxMsgsNumBatch, too.
            offsets = store.index.query(
                topic, key, limit, options["since"], options["until"], cap=limit
            )
            count = output.rows(({"physical_offset": one} for one in offsets), ["physical_offset"])
        else:
            columns = shapes.MESSAGE_COLUMNS if output.format == "csv" else shapes.MESSAGE_TABLE
            names = ("topic", "key", "since", "until", "limit", "unique")
            found = store.find(
                **{name: options[name] for name in names}, on_damage=damage.pass_over
            )
            rows = (bodies.shape(message.record) for message in found)
            count = output.rows(rows, columns)
    if not count and not damage.places:
        raise NotFound(
            f"no message of {options['topic']} has the key {options['key']!r}",
            f"keelog store dump {path} --topic {options['topic']}  shows the keys that there are",
        )
    return damage.end() or bodies.end()


@command()
@directory
@click.option("--topic", required=True)
@click.option("--queue", type=int, required=True, help="The queue's id.")
@click.option(
    "--time", "timestamp", type=time, required=True, metavar="TIME", help=f"Store time: {TIMES}."
)
@one_of(
    "--boundary",
    [boundary.value for boundary in Boundary],
    "lower: the first at or after the time; upper: the last at or before it.",
)
@store_options
def seek(
    path: Path,
    timestamp: int,
    boundary: str,
    output: Output,
    pairs: tuple[str, ...],
    **options: Any,
) -> None:
    """The queue offset at a store time.

    Example: keelog store seek ./store --topic orders --queue 0 --time 1795248083173
    """
    with opened(path, pairs) as store, doing("cannot look for the time"):
        queue = store.queue(options["topic"], options["queue"])
        offset = offset_by_time(store.log, queue, timestamp, Boundary(boundary))
    output.document({"offset": offset})


@dataclass(frozen=True)
class DumpSelection:
    """Which rows are wanted; log offsets from `start` up to `stop`."""

    topic: str | None
    start: int
    stop: int
    limit: int | None
    raw: bool

    @property
    def is_narrow(self) -> bool:
        """Whether it leaves out rows for what they are."""
        return self.topic is not None or self.start > 0 or self.stop < _END


@command()
@directory
@one_of("--what", ["messages", "queues", "index"], "Messages, ConsumeQueue units or index entries.")
@click.option("--headers", is_flag=True, help="With --what index: one row a file.")
@click.option(
    "--raw", is_flag=True, help="Adds each record as stored, in base64. Shows removed ones too."
)
@click.option("--topic", help="Only this topic.")
@click.option("--from", "start", type=int, default=0, metavar="PHY", help="First log offset.")
@click.option("--to", "stop", type=int, default=_END, metavar="PHY", help="Log offset to end.")
@click.option("--limit", type=click.IntRange(0), help="At most so many rows.")
@shapes.body_options
@walk_options
def dump(
    path: Path, what: str, headers: bool, output: Output, pairs: tuple[str, ...], **selected: Any
) -> int:
    """Prints every message, unit or index entry, as it is after recovery.

    Messages and index entries come in the order of their files, whatever their queue. stderr names
    a torn tail, and damage before it: that is skipped where the next record can be proved, and the
    exit code is 5. It is 3 where nothing is what --topic, --from and --to ask for.

    Example: keelog store dump ./store --topic orders --limit 10

    Example: keelog store dump ./store --what index --headers
    """
    progress: CommandProgress = selected.pop("progress")
    bodies = shapes.Bodies(selected.pop("raw_body"), selected.pop("no_body"))
    selection = DumpSelection(**selected)
    if what == "index" and selection.topic is not None:
        raise BadRequest("index entries do not name a topic", "leave --topic out")
    if output.is_terminal:
        progress.silence()  # the rows themselves show how far it is
    with opened(path, pairs) as store, progress.shown():
        talk = _Talk(progress, bodies)
        if what == "messages":
            columns = shapes.MESSAGE_COLUMNS if output.format == "csv" else shapes.MESSAGE_TABLE
            count = output.rows(islice(_messages(store, selection, talk), selection.limit), columns)
            talk.tail(store)
        elif what == "queues":
            advance = progress.meter("dumped", "queues")
            count = output.rows(islice(_units(store, selection, advance), selection.limit))
        else:
            store.index_folder.check_readable()
            advance = progress.meter("dumped", "index files")
            rows = (
                (shapes.index_header_shape(one.name, one.header) for one in store.index.files())
                if headers
                else _entries(store, selection, advance)
            )
            count = output.rows(islice(rows, selection.limit))
        if talk.damaged:
            return failures.DAMAGED
        if not count and selection.is_narrow:
            raise _nothing(path, what, selection, store.has_topic(selection.topic or ""))
        if not count and selection.limit != 0:
            say(f"the store has no {_ROWS[what]}")
        return bodies.end()


def _nothing(path: Path, what: str, selection: DumpSelection, has_topic: bool) -> NotFound:
    text, hint = f"the store has no such {_ROWS[what]}", f"keelog store info {path}"
    if selection.topic is not None and not has_topic:
        text, hint = f"the store has no topic {selection.topic}", f"{hint}, or without --topic"
    error = NotFound(text, hint)
    error.add_note("nothing to print")
    return error


class _Talk:
    """The lines on stderr beside the rows."""

    def __init__(self, progress: CommandProgress, bodies: shapes.Bodies) -> None:
        self.bodies = bodies
        self.damaged = False
        self._progress = progress
        self.advance = progress.meter("dumped")

    def damage(self, where: str, offset: int, why: str, then: str) -> None:
        self.damaged = True
        self._progress.clear()
        say(f"damage: {where}, offset {offset}: {why}; {then}")

    def tail(self, store: StoppedStore) -> None:
        stop = store.tail.stop
        floor = store.condition.floor
        if store.log.end < floor:
            why = f"the log ends here, everything below {floor} was durable"
            folder = str(store.log.segments.folder)
            self.damage(folder, store.log.end, why, "no record follows")
        elif stop is not None and stop.kind != "end":
            self._progress.clear()
            say(f"torn tail: the log ends at offset {stop.position}: {stop.why}")


def _messages(store: StoppedStore, selection: DumpSelection, talk: _Talk) -> Iterator[shapes.Shape]:
    log = store.log
    first = _first_record(store, selection.start)
    end = min(selection.stop, log.end)
    for item in columns_past_damage(log, first, selection.stop):
        if isinstance(item, Damage):
            then = f"skipped to {item.resumed_at}"
            talk.damage(item.where, item.torn.position, item.torn.why, then)
            continue
        shown = item if selection.raw else store.removed.visible(item)
        for row in _wanted_rows(shown, selection):
            yield talk.bodies.shape(shown.record(row), selection.raw)
        if len(item):
            talk.advance(int(item.physical_offset[-1]) - first, end - first)
    if log.stopped is not None:
        where = str(log.segment_at(log.stopped.position).path)
        talk.damage(where, log.stopped.position, log.stopped.why, "no record follows")


def _first_record(store: StoppedStore, start: int) -> int:
    """Returns where to begin, so that no record from `start` on is missed."""
    log = store.log
    if start <= log.min_offset or start >= log.end:
        return max(start, log.min_offset)
    if isinstance(log.peek(start), Record):
        return start
    return max(log.segment_at(start).start, log.min_offset)


def _wanted_rows(columns: RecordColumns, selection: DumpSelection) -> list[int]:
    wanted = columns.physical_offset >= selection.start
    if selection.topic is None:
        return np.flatnonzero(wanted).tolist()
    topic = selection.topic.encode()
    wanted &= columns.topic_length == len(topic)
    starts, lengths = columns.topic_start, columns.topic_length
    rows: list[int] = np.flatnonzero(wanted).tolist()
    return [row for row in rows if columns.piece(starts, lengths, row) == topic]


def _units(
    store: StoppedStore, selection: DumpSelection, advance: Advance
) -> Iterator[shapes.Shape]:
    queues = list(store.queues())
    for number, queue in enumerate(queues):
        advance(number, len(queues))
        reader = store.queue(*queue)
        if reader is None or selection.topic not in (None, queue.topic):
            continue
        for start in range(reader.min_offset, reader.max_offset, _STEP_UNITS):
            units = reader.units(start, min(_STEP_UNITS, reader.max_offset - start))
            offsets = units["physical_offset"]
            wanted = (offsets >= selection.start) & (offsets < selection.stop)
            for row in np.flatnonzero(wanted).tolist():
                yield shapes.unit_shape(queue, start + row, QueueUnit(*units[row].tolist()))


def _entries(
    store: StoppedStore, selection: DumpSelection, advance: Advance
) -> Iterator[shapes.Shape]:
    files = store.index.files()
    for number, file in enumerate(files):
        advance(number, len(files))
        entries = file.entries()
        slots = entries["key_hash"] % file.geometry.slot_count
        offsets = entries["physical_offset"]
        wanted = (offsets >= selection.start) & (offsets < selection.stop)
        for row in np.flatnonzero(wanted).tolist():
            entry = IndexEntry(*entries[row].tolist())
            yield shapes.entry_shape(file.name, int(slots[row]), row + 1, entry)
