"""`keelog store get`, `find` and `seek`: single results out of a store directory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from keelog.cli import failures
from keelog.cli.bodies import Bodies, body_options
from keelog.cli.damaged_places import DamagedPlaces, on_damage_option
from keelog.cli.failures import doing
from keelog.cli.messages.selectors import TIME, TIMES
from keelog.cli.options import SIZE, command, output_options, settings_options
from keelog.cli.output import Output
from keelog.cli.shapes import MESSAGE_COLUMNS, MESSAGE_TABLE, Shape, pull_shape
from keelog.cli.store.options import directory, opened
from node.runtime.settings import load_settings
from node.store.indexes import END_OF_TIME, MAX_MESSAGES_BATCH
from node.store.opening import StoppedStore
from node.store.query.filters import parse_tags
from node.store.query.look_up import Boundary, offset_by_time
from node.store.query.pull import IN_MEMORY, PullRequest, PullStatus, TransferLimits, get_message
from protocol.errors import NotFound


@command()
@directory
@click.option("--topic", required=True)
@click.option("--queue", type=int, required=True, help="The queue's id.")
@click.option("--offset", type=int, required=True, help="Queue offset to begin at.")
@click.option("--count", type=int, default=32, show_default=True, help="maxMsgNums of the pull.")
@click.option("--tags", help="Subscription: 'A || B', or * for all; compared by hash.")
@click.option("--max-messages", type=click.IntRange(1), help="More than the usual 32 messages.")
@click.option("--max-bytes", type=SIZE, metavar="SIZE", help="More than the usual 256KiB.")
@body_options
@settings_options
@output_options
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
        max_messages or IN_MEMORY.count_max,
        options["max_bytes"] or IN_MEMORY.bytes_max,
    )
    request = PullRequest(
        options["count"],
        limits=limits,
        tags=parse_tags(options["tags"]),
    )
    with opened(path, pairs) as store, doing("cannot read the messages"):
        queue = store.queue(options["topic"], options["queue"])
        result = get_message(store.log, queue, offset, request)
        bodies = Bodies(options["raw_body"], options["no_body"])
        places = result.physical_offsets.tolist()
        shapes = (bodies.shape(store.log.record_at(place)) for place in places)
        document = pull_shape(result, shapes)
    title = f"{result.status.value}, next {result.next_begin_offset}"
    output.document(document, _table(document["messages"]), title)
    return bodies.end() if result.status is PullStatus.FOUND else failures.NOT_FOUND


def _table(messages: list[Shape]) -> list[Shape]:
    return [{name: message.get(name) for name in MESSAGE_TABLE} for message in messages]


@command()
@directory
@click.option("--topic", required=True)
@click.option("--key", required=True, help="One of KEYS, a UNIQ_KEY, or T#TAGS.")
@click.option(
    "--since", type=TIME, default=0, metavar="TIME", help=f"Earliest store time: {TIMES}."
)
@click.option("--until", type=TIME, default=END_OF_TIME, metavar="TIME", help="Latest store time.")
@click.option("--limit", type=click.IntRange(1), default=MAX_MESSAGES_BATCH, show_default=True)
@click.option("--unique", is_flag=True, help="Looks at UNIQ_KEY only.")
@click.option("--candidates", is_flag=True, help="Log offsets as a broker's index answers them.")
@on_damage_option
@body_options
@settings_options
@output_options
def find(path: Path, output: Output, pairs: tuple[str, ...], **options: Any) -> int:
    """Messages by key, newest first. Ends with 3 when there is none.

    stderr names each damaged message that may have the key; the exit code is 5 then.

    Example: keelog store find ./store --topic orders --key order-17
    """
    # Imported here: it brings modules of the client, which the other commands do without.
    from keelog.store import open_store

    damage = DamagedPlaces(fails=options["on_damage"] == "fail")
    bodies = Bodies(options["raw_body"], options["no_body"])
    with doing(f"cannot open the store {path}"):
        opened_store = open_store(path, load_settings(pairs))
    with opened_store as store, doing(f"cannot find messages with key {options['key']}"):
        if options["candidates"]:
            count = output.rows(_candidates(store, options), ["physical_offset"])
        else:
            columns = MESSAGE_COLUMNS if output.format == "csv" else MESSAGE_TABLE
            names = ("topic", "key", "since", "until", "limit", "unique")
            found = store.find(
                **{name: options[name] for name in names}, on_damage=damage.pass_over
            )
            shapes = (bodies.shape(message.record) for message in found)
            count = output.rows(shapes, columns)
    if not count and not damage.places:
        raise NotFound(
            f"no message of {options['topic']} has the key {options['key']!r}",
            f"keelog store dump {path} --topic {options['topic']}  shows the keys that there are",
        )
    return damage.end() or bodies.end()


def _candidates(store: StoppedStore, asked: Mapping[str, Any]) -> Iterator[Shape]:
    """Yields what RocketMQ's queryOffset returns; the limit replaces its maxMsgsNumBatch, too."""
    limit = asked["limit"]
    for offset in store.index.query(
        asked["topic"], asked["key"], limit, asked["since"], asked["until"], cap=limit
    ):
        yield {"physical_offset": offset}


@command()
@directory
@click.option("--topic", required=True)
@click.option("--queue", type=int, required=True, help="The queue's id.")
@click.option(
    "--time", "timestamp", type=TIME, required=True, metavar="TIME", help=f"Store time: {TIMES}."
)
@click.option(
    "--boundary",
    type=click.Choice([boundary.value for boundary in Boundary]),
    default=Boundary.LOWER.value,
    show_default=True,
    help="lower: the first at or after the time; upper: the last at or before it.",
)
@settings_options
@output_options
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
