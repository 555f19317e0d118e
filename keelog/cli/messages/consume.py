"""`keelog consume`: the messages of a topic on stdout, in order within each queue.

With `--group` it reads as a member of a consumer group, until it is ended.

The format strings of `-f` have one letter for each part of a message: %t topic, %q queue, %o
offset, %k keys, %v value (or %s), %V its size, %d store time in ms, %h properties, %g tags, %x
physical offset, %% a percent sign; after a letter {hex}, {base64} or {json}. \\n, \\t, \\r, \\0,
\\\\ and \\xHH are the usual bytes.
"""

import base64
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import click

import keelog
from keelog.cli import shapes
from keelog.cli.contexts import complete_topics, connect, credentials_for
from keelog.cli.failures import BadValue, doing, ending_in_order
from keelog.cli.messages import reading
from keelog.cli.messages.selectors import parse_range
from keelog.cli.options import command, node_option, output_options, progress_option
from keelog.cli.output import Output, say
from keelog.client.client import commit
from keelog.client.subscription import Cursor
from keelog.text import CommandProgress
from protocol.errors import BusyError
from protocol.human_text import printable
from protocol.record.codec import Record

_PART = re.compile(
    r"%(?P<letter>[a-zA-Z%])(?:\{(?P<how>[a-z0-9]*)\})?|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)"
    r"|(?P<text>[^%\\]+)|(?P<bad>.)",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
Value = bytes | str | int | list[str] | dict[str, Any]
_Letters = dict[str, Callable[[Record], Value]]
_LETTERS: _Letters = {
    "t": lambda record: record.topic,
    "q": lambda record: record.head.queue_id,
    "o": lambda record: record.head.queue_offset,
    "k": lambda record: record.keys,
    "d": lambda record: record.head.store_timestamp,
    "h": shapes.properties_shape,
    "g": lambda record: record.tags,
    "x": lambda record: record.head.physical_offset,
}
_HOWS: dict[str, Callable[[Value], bytes]] = {
    "": lambda value: _plain(value),
    "hex": lambda value: _plain(value).hex().encode(),
    "base64": lambda value: base64.b64encode(_plain(value)),
    "json": lambda value: _json(value),
}
Formatter = Callable[[Record], bytes]
_NOT_IN_A_GROUP = {
    "cursor": "--cursor",
    "at_end": "--until-end",
    "queues": "--queue",
    "is_merged": "--merge",
}


@command("consume")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-o", "--from", "where", default="start", show_default=True, metavar="FROM[:TO]",
    help="start, end, 123, +5, -10 (the last ten of each queue), 2026-11-20T10:00, -15m.",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(0), metavar="COUNT", help="Ends after COUNT messages."
)
@click.option(
    "-e", "--until-end", "at_end", is_flag=True, help="Ends at the end of the log as it is now."
)
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, metavar="N")
@click.option("--tags", metavar="'A || B'")
@click.option("-f", "--template", "text", metavar="FORMAT", help=r"As '%t %q %o %k %v\n'.")
@click.option("--merge", "is_merged", is_flag=True, help="All queues together, by store time.")
@click.option(
    "--cursor", metavar="NAME",
    help="Goes on where NAME stopped; the node keeps the place. FROM is for a new name.",
)  # fmt: skip
@click.option(
    "--group", metavar="G",
    help="As a member of the consumer group G, which commits what was printed. FROM (start, end or"
    " a time) is for a new group.",
)  # fmt: skip
@click.option("--access-key", metavar="USER", help="With --group: as whom it logs in.")
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Its first line is the password of USER; the file is for you alone.",
)  # fmt: skip
@shapes.on_damage_option
@shapes.body_options
@node_option
@progress_option
@output_options
def consume(
    topic: str, output: Output, node: str, progress: CommandProgress, **options: Any
) -> int:
    """Prints the messages of a topic, in order within each queue, and waits for more.

    Up to an end, with -e or TO, it prints queue after queue, and else as messages come. --merge
    prints all by store time; while it waits for more it looks ahead for 0.1 s.

    It waits for a topic that is not there, and for a node that was stopped, and says so. stderr
    names each damaged message; the exit code is 5 then.

    FORMAT has a letter for each part: %t topic, %q queue, %o offset, %k keys, %v value, %V its
    size, %d store time, %h properties, %g tags, %x physical offset; after it {hex}, {base64} or
    {json}. Bytes go out as they are, so a message can command your terminal; tables, JSON and CSV
    escape control characters.

    Example: keelog consume orders --from -10 --until-end

    Example: keelog consume orders -e -f '%o %k %v\\n'

    Example: keelog consume orders -e --cursor billing --count 100

    Example: keelog consume orders --group billing --tags 'paid || sent' --count 100

    Example: keelog consume orders --group billing --access-key billing --secret-file me.pw
    """
    # In UTC here; a time without a zone is local time all the same.
    first, last = parse_range(options["where"], datetime.now(UTC))
    wanted = reading.ConsumeChoice(topic, options["queues"], options["tags"], first, last)
    fails = options["on_damage"] == "fail"
    bodies = shapes.Bodies(options["raw_body"], options["no_body"], fails)
    render = None if options["text"] is None else compile_format(options["text"], bodies.body)
    finite = options["at_end"] or last is not None
    group: str | None = options["group"]
    if group is not None:
        check_group_options(options, wanted)
    if output.is_terminal or not finite:
        progress.silence()  # the messages themselves show how far it is, or there is no end
    login = options["access_key"], options["secret_file"]
    if group is None and any(login):
        raise click.UsageError("--access-key and --secret-file are for members of a --group")
    with doing(f"cannot read {topic}"), connect(node) as client, progress.shown():
        if group is not None:
            damage = shapes.DamagedPlaces(fails)
            user = credentials_for(node, *login)
            found = group_messages(client, wanted, group, options["count"], damage, user)
            with closing(found) as messages:
                _print(messages, render, output, finite, bodies)
            return damage.end() or bodies.end()
        run = _ConsumeRun(client, wanted, output, options)
        with closing(run.messages(finite, progress)) as messages:
            _print(messages, render, output, finite, bodies)
        return run.end(finite) or bodies.end()


def _print(
    messages: Iterator[keelog.Message],
    render: Formatter | None,
    output: Output,
    finite: bool,
    bodies: shapes.Bodies,
) -> None:
    if render is not None:
        for message in messages:
            output.raw(render(message.record))
            if not finite:
                output.flush()
        output.flush()
        return
    rows = (bodies.shape(message.record) for message in messages)
    columns = shapes.MESSAGE_TABLE if output.format == "table" else shapes.MESSAGE_COLUMNS
    output.rows(rows, columns, live=not finite)


class _ConsumeRun:
    """One run: what it met on its way, and the cursor's place."""

    def __init__(
        self,
        client: keelog.Client,
        wanted: reading.ConsumeChoice,
        output: Output,
        options: Mapping[str, Any],
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._output = output
        self._count_max: int | None = options["count"]
        self._is_merged: bool = options["is_merged"]
        self._damage = shapes.DamagedPlaces(fails=options["on_damage"] == "fail")
        self._count = 0
        name: str | None = options["cursor"]
        self._cursor = None if name is None else Cursor(wanted.topic, name)
        self._known = {} if name is None else client.cursor(wanted.topic, name)

    def messages(
        self, finite: bool, progress: CommandProgress
    ) -> Generator[keelog.Message, None, None]:
        """The messages to print. The next one is asked for when one was printed."""
        if self._count_max == 0:
            return
        if finite:
            yield from self._bounded(progress)
        else:
            yield from self._endless()

    def _bounded(self, progress: CommandProgress) -> Iterator[keelog.Message]:
        starts: dict[int, int] = {}
        if self._cursor is not None:
            queues = reading.queues_of(self._client, self._wanted)
            starts = reading.starts_of(self._client, self._wanted, self._known)
            self._cursor.begin(self._known, starts, queues[0].generation if queues else None)
        reader = reading.BoundedReader(
            self._client, self._wanted, self._damage, starts, self._is_merged
        )
        found = reader.read_to_end(progress.meter("read", "messages"))
        # A table shows its rows later than it takes them.
        yield from self._noted(found, may_commit=self._output.format != "table")
        if self._cursor is not None:
            for queue_id, offset in reader.finished.items():
                self._cursor.read_to(queue_id, offset)

    def _endless(self) -> Iterator[keelog.Message]:
        cursor = self._cursor
        name = None if cursor is None else cursor.name
        follower = reading.TopicPrinter(self._client, self._wanted, self._damage, self._known, name)
        found = follower.messages(self._is_merged)
        try:
            for message in self._noted(found, may_commit=self._is_merged):
                if cursor is not None and not self._count and follower.places is not None:
                    cursor.begin(self._known, follower.places, follower.known_at)
                yield message
        finally:
            found.close()
            if cursor is not None and self._count:
                with suppress(BusyError):  # it is away: what was printed comes again
                    self._commit(cursor)

    def _noted(
        self, messages: Iterator[keelog.Message], may_commit: bool
    ) -> Iterator[keelog.Message]:
        """Notes each message that was printed, up to the count."""
        cursor = self._cursor
        for message in messages:
            yield message
            self._count += 1
            if cursor is not None:
                cursor.read_to(message.queue_id, message.queue_offset + 1, message.physical_offset)
                if may_commit and cursor.is_due(monotonic()):
                    self._commit(cursor)
            if self._count == self._count_max:
                return

    def _commit(self, cursor: Cursor) -> None:
        self._output.flush()
        commit(self._client, cursor)

    def end(self, finite: bool) -> int:
        """Commits the rest; the exit code."""
        if self._cursor is not None and finite:
            self._commit(self._cursor)
        if finite and not self._count and self._count_max != 0 and not self._damage.places:
            say(f"no message: topic {self._wanted.topic} has none there")
        return self._damage.end()


def check_group_options(options: Mapping[str, Any], wanted: reading.ConsumeChoice) -> None:
    """Raises UsageError for options that have no meaning for a member of a group."""
    for name, option in _NOT_IN_A_GROUP.items():
        if options[name]:
            raise click.UsageError(f"--group and {option} exclude each other")
    if wanted.last is not None or wanted.first.kind not in ("start", "end", "time"):
        raise click.UsageError("with --group, --from is start, end or a time, without TO")


def group_messages(
    client: keelog.Client,
    wanted: reading.ConsumeChoice,
    group: str,
    count_max: int | None,
    damage: shapes.DamagedPlaces,
    credentials: keelog.Credentials | None = None,
) -> Generator[keelog.Message, None, None]:
    """The messages to print. One is committed after the next one was asked for."""
    if count_max == 0:
        return

    def meet(error: keelog.MessageDamaged) -> None:
        damage.meet(error, f"topic {wanted.topic}")

    start: Literal["latest", "earliest"] | datetime
    start = "earliest" if wanted.first.kind == "start" else "latest"
    if wanted.first.kind == "time":
        start = datetime.fromtimestamp(wanted.first.value / 1000, UTC)
    member = client.consumer(
        group, wanted.topic, tags=wanted.tags, start=start,
        on_damage="fail" if damage.fails else meet, credentials=credentials,
    )  # fmt: skip
    with ending_in_order(), member:
        for count, message in enumerate(member, 1):
            yield message
            message.ack()
            if count == count_max:
                return


def compile_format(text: str, body: Formatter = attrgetter("body")) -> Formatter:
    """A function from a message to its bytes; `body` gives a message's body. Raises BadParameter
    for what is not known."""
    letters = _LETTERS | {"v": body, "s": body, "V": lambda record: len(body(record))}
    parts = [_part(match, letters) for match in _PART.finditer(text)]

    def render(record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return render


def _part(match: re.Match[str], letters: _Letters) -> bytes | Formatter:
    if match["text"] is not None:
        return match["text"].encode()
    if match["hex"] is not None:
        return bytes.fromhex(match["hex"])
    if match["escape"] is not None and match["escape"] in _ESCAPES:
        return _ESCAPES[match["escape"]]
    letter, how = match["letter"], match["how"] or ""
    if letter == "%":
        return b"%" + (f"{{{match['how']}}}".encode() if match["how"] is not None else b"")
    take, write = letters.get(letter or ""), _HOWS.get(how)
    if take is None or write is None:
        raise BadValue(
            f"{match[0]!r} is not known",
            f"letters are {' '.join(letters)}, modifiers {{hex}} {{base64}} {{json}}",
        )
    return lambda record: write(take(record))


def _plain(value: Value) -> bytes:
    match value:
        case bytes():
            return value
        case list():
            return " ".join(value).encode()
        case dict():
            pairs = (
                f"{name}={one if isinstance(one, str) else one['b64']}"
                for name, one in value.items()
            )
            return ",".join(pairs).encode()
        case _:
            return str(value).encode()


def _json(value: Value) -> bytes:
    shown = shapes.text_or_b64(value) if isinstance(value, bytes) else value
    return printable(json.dumps(shown, ensure_ascii=False)).encode()
