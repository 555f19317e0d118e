"""`keelog produce`: arguments, lines, files or JSON objects become messages, with receipts.

Rows of CSV become the objects that it sends: the header names their fields.
"""

import base64
import csv
import json
import os
import select
import stat
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast

import click
import msgspec

import keelog
from keelog.cli.contexts import complete_topics, connect
from keelog.cli.failures import OK, Partial, doing, needing_pyarrow
from keelog.cli.messages.selectors import duration, time_ahead
from keelog.cli.options import command, format_option, node_option, progress_option
from keelog.cli.output import Output, say
from keelog.cli.shapes import MESSAGE, receipt_shape
from keelog.pipeline.errors import few
from keelog.text import CommandProgress, counted, duration_text
from protocol.errors import BadRequest, IllegalMessage, MqError
from protocol.names import is_reserved_topic
from protocol.record import codec
from protocol.record.properties import KEYS, properties_to_send, split_keys

_READ_BYTES = 256 * 1024
_LINGER_MS = 5
"""How long a batch waits for more lines once stdin has paused."""
TOPIC_FROM_OBJECT = "-"
LINE_BYTES_MAX = 16 * 1024 * 1024
"""Room for the largest body in base64, and its properties."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
Row = Callable[[], dict[str, Any]]
KEY = "key"
"""A column with one key, beside those that `keelog consume --format csv` prints."""
_NUMBERS = {name for name, kind in MESSAGE.items() if str(kind).startswith("integer")}
_PARTS = {"keys", "properties"}
BYTE_ORDER_MARK = "\ufeff"
"""With which spreadsheets begin what they save as UTF-8."""


class Defaults(NamedTuple):
    """Values for messages that do not have their own."""

    topic: str
    queue_id: int | None
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    key_separator: bytes = b""
    """What ends the key at the start of a line."""
    is_any_topic: bool = False
    """Objects of other topics are sent to `topic`, too."""
    delays: Mapping[str, Any] = {}
    """When readers get the messages: `delay_level`, `delay` or `deliver_at`."""


@command("produce")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("bodies", nargs=-1, metavar="[MESSAGE]...")
@click.option(
    "--file", "files", multiple=True, metavar="F", type=click.Path(dir_okay=False, allow_dash=True),
    help="The whole file is one message; - is stdin. May be repeated.",
)  # fmt: skip
@click.option("--queue", type=click.IntRange(0), metavar="N", help="Default: the node chooses.")
@click.option("--tags", metavar="T")
@click.option("--key", "keys", multiple=True, metavar="K")
@click.option("-p", "pairs", multiple=True, metavar="NAME=VALUE", help="A property.")
@click.option(
    "-K", "--key-separator", metavar="SEP",
    help="Each line is KEY, SEP, body: with -K : the line o-17:paid has the key o-17.",
)  # fmt: skip
@click.option("--jsonl", "objects", is_flag=True, help="A JSON object a line, as consume prints.")
@click.option("--csv", "is_csv", is_flag=True, help="CSV whose header names the fields: body, key.")
@click.option(
    "--parquet", metavar="PATH", type=click.Path(path_type=Path),
    help="A file or folder that an export wrote, in place of stdin.",
)  # fmt: skip
@click.option("--any-topic", is_flag=True, help="With --jsonl: takes objects of other topics too.")
@click.option("--quiet", is_flag=True, help="No receipts; one line on stderr at the end.")
@click.option(
    "--batch", type=click.IntRange(1), default=1000, show_default=True, metavar="N",
    help="At most N messages go together.",
)  # fmt: skip
@click.option(
    "--delay-level", type=click.IntRange(0), default=0, metavar="N",
    help="Readers get the messages after this level of RocketMQ's delays: 1 is 1 s, 3 is 10 s.",
)  # fmt: skip
@click.option(
    "--delay",
    type=duration,
    metavar="TIME",
    help="Readers get the messages after it: 90s, 10m, 2h.",
)
@click.option(
    "--deliver-at", type=time_ahead, metavar="TIME",
    help="Readers get the messages at this time: +15m, 2026-11-20T10:00, or ms since 1970.",
)  # fmt: skip
@click.option("--sync", is_flag=True, help="Each receipt waits until the message is on disk.")
@click.option("--timeout", default=30.0, show_default=True, metavar="SECONDS")
@node_option
@progress_option
@format_option
def produce(
    topic: str, bodies: tuple[str, ...], objects: bool, batch: int, output: Output, **options: Any
) -> int:
    """Sends each MESSAGE, or stdin, a message a line, and prints a receipt for each.

    With --jsonl each line is an object with `body` or `body_b64`; its topic, queue_id, tags, keys,
    properties, flag, born_timestamp, born_host and reconsume_times count when given. TOPIC `-`
    takes the object's topic. Another topic than TOPIC is an error, without --any-topic. With --csv
    the columns are those of `consume --format csv`, some or all of them, or `key`; --parquet takes
    what `keelog export --parquet` wrote. Printed and exported messages go without what the node
    set; those of system topics and open transactions are left out.

    Example: keelog produce orders hello

    Example: echo hello | keelog produce orders --tags paid --key o-17

    Example: keelog produce pictures --file picture.png --quiet

    Example: keelog produce orders 'pay by now' --delay-level 5

    Example: keelog produce orders 'pay by now' --delay 90s

    Example: keelog store dump ./store --jsonl | keelog produce - --jsonl

    Example: keelog produce - --parquet ./orders --quiet
    """
    kinds = [objects, options["is_csv"], options["parquet"] is not None]
    if sum(kinds) > 1:
        raise click.UsageError("--jsonl, --csv and --parquet exclude each other")
    objects = any(kinds)
    _check_source(topic, bodies, objects, options)
    defaults = _defaults(topic, options)
    progress: CommandProgress = options["progress"]
    if output.is_terminal and not options["quiet"]:
        progress.silence()  # the receipts themselves show how far it is
    batches, advance = _source(bodies, batch, options)
    with (
        doing(f"cannot send to {topic}"),
        progress.shown(),
        connect(options["node"]) as client,
        client.producer(
            acks="flushed" if options["sync"] else "appended", timeout=options["timeout"]
        ) as producer,
    ):
        run = _ProduceRun(batches, output.flush, advance)
        receipts = run.receipts(producer, objects, defaults)
        if options["quiet"]:
            deque(receipts, maxlen=0)
        else:
            output.rows(map(receipt_shape, receipts), live=output.format == "table")
        unit = "line on stdin" if options["parquet"] is None else f"message in {options['parquet']}"
        return run.end(options["quiet"], unit)


def _defaults(topic: str, options: Mapping[str, Any]) -> Defaults:
    separator, properties = options["key_separator"], {}
    for pair in options["pairs"]:
        name, _, value = pair.partition("=")
        if not name or not value:
            raise BadRequest(f"-p {pair!r} is no property", "write -p name=value")
        properties[name] = value
    return Defaults(
        "" if topic == TOPIC_FROM_OBJECT else topic,
        options["queue"],
        options["tags"],
        options["keys"],
        properties,
        separator.encode() if separator else b"",
        options["any_topic"],
        {name: options[name] for name in ("delay_level", "delay", "deliver_at")},
    )


def _check_source(
    topic: str, bodies: tuple[str, ...], objects: bool, options: Mapping[str, Any]
) -> None:
    """Raises UsageError for options that contradict each other."""
    files, separator = options["files"], options["key_separator"]
    if files.count("-") > 1:
        raise click.UsageError("--file - reads stdin, which there is once")
    if bodies and files:
        raise click.UsageError("MESSAGE and --file exclude each other")
    if objects and (bodies or files or separator is not None):
        raise click.UsageError(
            "--jsonl, --csv and --parquet exclude MESSAGE, --file and -K: leave these out"
        )
    if separator is not None and (not separator or bodies or files):
        raise click.UsageError("-K SEP is for lines of stdin")
    if [options["delay"], options["deliver_at"], options["delay_level"] or None].count(None) < 2:
        raise click.UsageError("--delay-level, --delay and --deliver-at exclude each other")
    if options["any_topic"] and not objects:
        raise click.UsageError("--any-topic needs --jsonl, --csv or --parquet")
    if topic == TOPIC_FROM_OBJECT and not objects:
        raise click.UsageError(
            "TOPIC - needs --jsonl, --csv or --parquet: a plain line names no topic"
        )


def _source(
    bodies: tuple[str, ...], batch: int, options: Mapping[str, Any]
) -> tuple[Iterator[list[Any]], Callable[[], None]]:
    """The messages, many together, and what shows how much of stdin was read.

    Parquet shows its files itself.
    """
    if options["parquet"] is not None:
        with needing_pyarrow():
            from keelog.cli.messages.parquet_rows import parquet_rows
        shown = options["progress"].meter("sent", "files")
        return parquet_rows(options["parquet"], batch, shown), lambda: None
    if bodies or options["files"]:
        return given_batches(bodies, options["files"], batch), lambda: None
    descriptor = sys.stdin.fileno()
    lines = read_batches(descriptor, batch)
    advance = input_meter(options["progress"], descriptor)
    return csv_rows(lines, batch) if options["is_csv"] else lines, advance


class _LeftOut(Exception):
    """A message that was printed but cannot be sent; its text says what it is, for the count."""


@dataclass(slots=True, eq=False)
class _ProduceRun:
    """One run: what was stored, and the error that ended it."""

    batches: Iterator[list[Any]]
    flush: Callable[[], None]
    advance: Callable[[], None]
    began: float = field(default_factory=monotonic)
    stored: int = 0
    reached: int = 0
    """So many messages were read, and sent unless they failed or were left out."""
    failed: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    error: MqError | None = None

    def receipts(
        self, producer: keelog.Producer, objects: bool, defaults: Defaults
    ) -> Iterator[keelog.Receipt]:
        """Sends batch by batch and yields the receipts in order, up to the first failure."""
        is_plain = not objects and not defaults.key_separator
        options = _options(defaults) if is_plain else {}
        while self.error is None:
            try:
                lines = next(self.batches, None)
            except MqError as error:
                self.error = error
                return
            if lines is None:
                return
            if is_plain:
                messages: dict[int, Any] = dict(enumerate(lines, self.reached + 1))
                self.reached += len(lines)
            else:
                messages = self._messages(lines, objects, defaults)
            for receipt in self._send(producer, messages, defaults.topic, options):
                self.stored += 1
                yield receipt
            self.flush()
            self.advance()

    def _messages(
        self, lines: Sequence[Any], objects: bool, defaults: Defaults
    ) -> dict[int, keelog.OutgoingMessage]:
        """The messages of lines by their numbers, up to the first that is none."""
        messages: dict[int, keelog.OutgoingMessage] = {}
        for line in lines:
            number = self.reached + 1
            try:
                messages[number] = message_of(line, number, objects, defaults)
            except _LeftOut as left_out:
                self.left_out[str(left_out)] += 1
            except MqError as error:
                self.error = error
                break
            self.reached = number
        return messages

    def _send(
        self,
        producer: keelog.Producer,
        messages: Mapping[int, Any],
        topic: str,
        options: keelog.MessageOptions,
    ) -> list[keelog.Receipt]:
        if not messages:
            return []
        numbers = list(messages)
        try:
            return producer.send_many(topic, list(messages.values()), **options)
        except keelog.SendManyError as error:
            self.failed = [numbers[failure.index] for failure in error.failed]
            self.error = error.failed[0].error
            return error.succeeded
        except MqError as error:
            self.failed = numbers
            self.error = error
            return []

    def end(self, is_quiet: bool, unit: str) -> int:
        """0; raises the error, as a partial success when something was stored before."""
        for what, count in self.left_out.items():
            say(f"{counted(count, 'message')} left out: {what}")
        if self.error is None:
            if not self.stored and not self.left_out:
                say(f"nothing sent: there was no {unit}")
            elif is_quiet:
                took = duration_text(monotonic() - self.began)
                say(f"{counted(self.stored, 'message')} stored in {took}")
            return OK
        if self.stored:
            # Those that failed among others, and all after them.
            failed, after = few(self.failed), f"what comes after message {self.reached}"
            again = f"message {failed} again, and {after}" if failed else f"{after} again"
            hint = f"send {again}"
            if isinstance(self.error, keelog.OutcomeUnknownError) and self.error.unique_key:
                hint = f"{self.error.hint}; if it is not there, {hint}"
            where = f"message {self.failed[0]}: " if self.failed else ""
            stored = counted(self.stored, "message")
            reason = f"{stored} stored, then: {where}{self.error.reason}"
            raise Partial(reason, hint)
        raise self.error


def given_batches(bodies: Sequence[str], files: Sequence[str], batch: int) -> Iterator[list[bytes]]:
    """The messages of arguments, or of whole files. Raises OSError, IllegalMessage."""
    for start in range(0, len(bodies), batch):
        # An argument that is not UTF-8 keeps its bytes.
        yield [os.fsencode(body) for body in bodies[start : start + batch]]
    for name in files:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            body = file.read(LINE_BYTES_MAX + 1)
        if len(body) > LINE_BYTES_MAX:
            raise IllegalMessage(
                f"{name} has more than {LINE_BYTES_MAX} bytes", "send it in several messages"
            )
        yield [body]


def input_meter(progress: CommandProgress, descriptor: int) -> Callable[[], None]:
    """Shows how much of a file has been read. A pipe has no known end, so it shows nothing."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        return lambda: None
    advance = progress.meter("sent")
    return lambda: advance(os.lseek(descriptor, 0, os.SEEK_CUR), state.st_size)


def read_batches(descriptor: int, batch: int) -> Iterator[list[bytes]]:
    """The lines of a descriptor, without their line ends, as many together as are there.

    What comes slowly is given out at once: a batch waits 5 ms for more. Raises IllegalMessage for
    a line without an end.
    """
    waiting = select.poll()  # not select: it takes no descriptor above 1,023
    waiting.register(descriptor, select.POLLIN)
    rest = bytearray()  # not bytes: a line of many reads would be copied with each of them
    lines: list[bytes] = []
    size = 0
    while True:
        if lines and (size >= BATCH_BYTES_MAX or not waiting.poll(_LINGER_MS)):
            yield lines
            lines, size = [], 0
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        size += len(data)
        first, *others = data.split(b"\n")
        rest += first
        if others:
            lines += [bytes(rest), *others[:-1]]
            rest = bytearray(others[-1])
        if len(rest) > LINE_BYTES_MAX:
            raise IllegalMessage(
                f"a line has more than {LINE_BYTES_MAX} bytes", "end each message with a newline"
            )
        while len(lines) >= batch:
            yield lines[:batch]
            lines = lines[batch:]
    if rest:
        lines.append(bytes(rest))
    for start in range(0, len(lines), batch):
        yield lines[start : start + batch]


def _options(defaults: Defaults) -> keelog.MessageOptions:
    """What lines that are bodies have in common: such messages are encoded many at a time."""
    given = {name: getattr(defaults, name) for name in ("tags", "keys", "properties", "queue_id")}
    given |= defaults.delays
    chosen = {name: value for name, value in given.items() if value or name == "queue_id"}
    return cast(keelog.MessageOptions, chosen)


def message_of(line: Any, number: int, objects: bool, defaults: Defaults) -> keelog.OutgoingMessage:
    """The message of a line, or of a row of CSV or Parquet. Raises IllegalMessage, naming the line,
    for a bad object."""
    if not objects:
        keys = list(defaults.keys)
        if defaults.key_separator:
            key, found, line = line.partition(defaults.key_separator)
            if not found:
                separator = defaults.key_separator.decode()
                raise IllegalMessage(
                    f"line {number}: it has no {separator!r} after its key", "write KEY, SEP, body"
                )
            try:
                keys += [key.decode()] if key else []
            except UnicodeDecodeError:
                reason = f"line {number}: its key is not UTF-8"
                raise IllegalMessage(reason, "keys are text") from None
        return keelog.OutgoingMessage(
            line,
            tags=defaults.tags,
            keys=keys,
            properties=defaults.properties,
            queue_id=defaults.queue_id,
            **defaults.delays,
        )
    try:
        if callable(line):
            return _from_object(line(), defaults)
        return _from_usual(line, defaults) or _from_object(json.loads(line), defaults)
    except (ValueError, TypeError, RecursionError) as error:
        rows = "rows as keelog consume --format csv prints, or keelog export --parquet writes them"
        hint = (
            rows if callable(line) else "one JSON object a line, as keelog consume --jsonl prints"
        )
        raise IllegalMessage(f"line {number}: {error}", hint) from None
    except MqError as error:
        raise IllegalMessage(f"line {number}: {error.reason}", error.hint) from None


class _UsualObject(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most objects say, and no more."""

    body: str
    topic: str | None = None
    tags: str | None = None
    keys: list[str] | str | None = None
    queue_id: int | None = None


_usual_object = msgspec.json.Decoder(_UsualObject).decode


def _from_usual(line: bytes, defaults: Defaults) -> keelog.OutgoingMessage | None:
    """As `_from_object`, at a fifth of the cost; None for other objects, be it for their error."""
    try:
        fields = _usual_object(line)
    except msgspec.MsgspecError:
        return None
    said, keys = fields.topic, fields.keys
    topic = defaults.topic or said
    is_other = said and said != topic and not defaults.is_any_topic
    if is_other or not topic or defaults.properties:
        return None
    return keelog.OutgoingMessage(
        fields.body.encode(),
        topic=topic,
        tags=fields.tags or defaults.tags,
        keys=defaults.keys if keys is None else split_keys(keys) if type(keys) is str else keys,
        queue_id=defaults.queue_id if fields.queue_id is None else fields.queue_id,
        **defaults.delays,
    )


def _from_object(fields: Any, defaults: Defaults) -> keelog.OutgoingMessage:
    if not isinstance(fields, dict):
        raise TypeError("it is no JSON object")
    if fields.get("damage") is not None:
        raise _LeftOut("damaged places, which hold none")
    said = _take(fields, "topic", str)
    topic = defaults.topic or said
    if not topic:
        raise ValueError("it names no topic")
    if said and said != topic and not defaults.is_any_topic:
        raise IllegalMessage(
            f"it is of topic {said[:80]!a}, not of {topic}",
            "keelog produce - --jsonl  takes each object's topic, --any-topic sends all to TOPIC",
        )
    sys_flag = _take(fields, "sys_flag", int, 0)
    properties = _properties(fields)
    if "queue_offset" in fields:
        # The node's own, or what no reader ever got: wherever it would go, it is not a message yet.
        if is_reserved_topic(said or topic):
            raise _LeftOut(f"of topic {said or topic}, which is the system's own")
        if sys_flag & codec.TRANSACTION_MASK in (
            codec.TRANSACTION_PREPARED,
            codec.TRANSACTION_ROLLBACK,
        ):
            raise _LeftOut("parts of transactions that were not committed")
        properties = properties_to_send(properties, topic)
    properties = {**defaults.properties, **properties}
    keys = _keys(fields)
    if keys is not None and keys == split_keys(properties.get(KEYS, "")):
        keys = []  # KEYS as it was stored says the same, to the byte
    return keelog.OutgoingMessage(
        _body(fields),
        topic=topic,
        tags=_take(fields, "tags", str) or defaults.tags,
        keys=defaults.keys if keys is None else keys,
        properties=properties,
        queue_id=_take(fields, "queue_id", int, defaults.queue_id),
        flag=_take(fields, "flag", int, 0),
        sys_flag=sys_flag & codec.SENDERS_BITS,
        born_timestamp=_take(fields, "born_timestamp", int),
        born_host=_take(fields, "born_host", str) or None,
        reconsume_times=_take(fields, "reconsume_times", int, 0),
        **defaults.delays,
    )


def _take(fields: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _body(fields: Mapping[str, Any]) -> bytes:
    if isinstance(fields.get("body"), bytes):
        return bytes(fields["body"])
    text, encoded = _take(fields, "body", str), _take(fields, "body_b64", str)
    if (text is None) == (encoded is None):
        raise ValueError("it needs either body or body_b64")
    return text.encode() if encoded is None else base64.b64decode(encoded, validate=True)


def _keys(fields: Mapping[str, Any]) -> list[str] | None:
    keys = fields.get("keys")
    if keys is None:
        return None
    if isinstance(keys, str):
        return split_keys(keys)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise TypeError("keys is no list of strings")
    return keys


def _properties(fields: Mapping[str, Any]) -> dict[str, str]:
    properties = _take(fields, "properties", dict, {})
    for name, value in properties.items():
        if not isinstance(value, str):
            raise TypeError(f"property {name} is no text, and only text can be sent")
    return dict(properties)


def csv_rows(batches: Iterable[list[bytes]], count_max: int) -> Iterator[list[Row]]:
    """The rows of a text whose lines come in batches, `count_max` together. A row is called for its
    fields. Raises IllegalMessage for a header with a column that no message has, and for broken
    CSV."""
    csv.field_size_limit(LINE_BYTES_MAX)
    # Bytes that are not UTF-8 become half surrogate pairs, which are refused with the row's number.
    lines = (line.decode(errors="surrogateescape") + "\n" for batch in batches for line in batch)
    head = next(lines, "").removeprefix(BYTE_ORDER_MARK)
    reader = csv.DictReader(chain([head] if head else [], lines), strict=True)
    try:
        unknown = sorted({*(reader.fieldnames or ())} - {*MESSAGE, KEY})
        if unknown:
            raise IllegalMessage(
                f"the header names the column {unknown[0][:80]!a}, which no message has",
                "body, key, tags, properties (a JSON object), …: keelog consume --format help",
            )
        while rows := list(islice(reader, count_max)):
            yield [partial(object_of, row) for row in rows]
    except csv.Error as error:
        raise IllegalMessage(
            f"line {reader.line_num} is not CSV: {error}", 'quote each cell that has a comma or "'
        ) from None


def object_of(row: dict[str, Any]) -> dict[str, Any]:
    """The object of a row; an empty cell is an absent field, but for an empty body. Raises
    ValueError for a row with other cells than the header, and for cells of a wrong kind."""
    if None in row or None in row.values():
        raise ValueError("it has not as many cells as the header")
    fields: dict[str, Any] = {name: cell for name, cell in row.items() if cell}
    for name in _NUMBERS & fields.keys():
        fields[name] = int(fields[name])
    for name in _PARTS & fields.keys():
        if fields[name][0] in "[{":
            fields[name] = json.loads(fields[name])
    if KEY in fields:
        fields["keys"] = [fields.pop(KEY)]
    if "body_b64" not in fields:
        fields.setdefault("body", "")
    return fields
