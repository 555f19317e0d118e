"""`keelog msg` and `keelog dead`: single messages of a node, dead letters of consumer groups.

A dead letter goes to the group's retry topic, which its members read beside their own topics: no
other group gets the message again. The topic of dead letters keeps it, as a log does. One that
was sent back already has its unique key in the retry topic, later in the log.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

import click

import keelog
from keelog.cli import shapes
from keelog.cli.contexts import complete_topics, connect
from keelog.cli.failures import OK, Partial, doing
from keelog.cli.messages.reading import wait_until_dispatched
from keelog.cli.messages.selectors import TIME_MS_MAX, TIMES, time
from keelog.cli.options import CliGroup, node_options, options
from keelog.cli.output import Output, say
from keelog.cli.shapes import Bodies, DamagedPlaces
from protocol.errors import MqError, NotFound, UnknownTopic
from protocol.names import DLQ_PREFIX, RETRY_PREFIX
from protocol.record.codec import SENDERS_BITS
from protocol.record.properties import RETRY_TOPIC, properties_to_send

SENT_AT_ONCE = 32
"""Dead letters that are read, and then sent together; each may have some MiB."""
_OWN_COLUMNS = ("origin_topic", "sent_back")
_TABLE = ("msg_id", "origin_topic", "keys", "store_timestamp", "sent_back", "body")
choice_options = options(
    click.option(
        "--id", "ids", multiple=True, metavar="ID",
        help="This one, by message id or unique key; may be repeated.",
    ),
    click.option("--since", type=time, metavar="TIME", help=f"Dead from then on: {TIMES}."),
    click.option("--until", type=time, metavar="TIME", help="Dead by then."),
)  # fmt: skip


@click.group("dead", cls=CliGroup)
def dead() -> None:
    """Shows the dead letters of consumer groups, and sends them back to their group.

    Example: keelog dead ls
    """


@dead.command("ls")
@click.argument("group", metavar="[GROUP]", required=False)
@choice_options
@shapes.body_options
@node_options
def ls(group: str | None, node: str, output: Output, **chosen: Any) -> int:
    """Counts the dead letters of each group, or shows those of GROUP.

    Example: keelog dead ls

    Example: keelog dead ls billing --since -1d
    """
    bodies = Bodies(chosen.pop("raw_body"), chosen.pop("no_body"))
    if group is None:
        with doing("cannot list dead letters"), connect(node) as client:
            output.rows(list(_counts(client)), ("group", "dead"))
        return OK
    with doing(f"cannot show the dead letters of {group}"), connect(node) as client:
        letters = DeadLetters(client, group, **chosen)
        rows = (
            bodies.shape(message.record)
            | {
                "origin_topic": message.properties.get(RETRY_TOPIC, ""),
                "sent_back": letters.is_sent_back(message),
            }
            for message in letters.read()
        )
        columns = _TABLE if output.format == "table" else (*shapes.MESSAGE_COLUMNS, *_OWN_COLUMNS)
        if not output.rows(rows, columns):
            raise letters.nothing()
        return letters.damage.end() or bodies.end()


@dead.command("resend")
@click.argument("group", metavar="GROUP")
@choice_options
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@click.option("--again", is_flag=True, help="Also those that were sent back before.")
@click.option("--apply", "applies", is_flag=True, help="Sends; else it counts what it would send.")
@node_options
def resend(group: str, node: str, output: Output, **chosen: Any) -> int:
    """Sends dead letters back to GROUP alone, as messages that nobody tried yet.

    Which ones: --id, --since, --until, or --all. They go to the group's retry topic, with their
    keys, properties and unique keys, and stay in the topic of dead letters. Those sent back
    before are passed over, as far as the index of keys still has it, so that a command that failed
    may be repeated.

    Example: keelog dead resend billing --all

    Example: keelog dead resend billing --since -1d --apply
    """
    is_all, again, applies = (chosen.pop(name) for name in ("is_all", "again", "applies"))
    ids, since, until = chosen["ids"], chosen["since"], chosen["until"]
    if is_all == bool(ids or since or until not in (None, TIME_MS_MAX)):
        raise click.UsageError("say which: --all, or --id, --since, --until")
    with doing(f"cannot send dead letters back to {group}"), connect(node) as client:
        letters = DeadLetters(client, group, **chosen)
        found: Iterable[keelog.Message] = letters.read()
        if letters.ids:
            found = list(found)
            for missing in sorted(letters.ids - letters.ids_found):
                hint = f"keelog dead ls {group}"
                raise NotFound(f"no dead letter of {group} has the id {missing}", hint)
        waiting = (one for one in found if again or not letters.is_sent_back(one))
        sent = _send(client, letters, waiting) if applies else sum(1 for _ in waiting)
        if not letters.found:
            raise letters.nothing()
        answer = {
            "group": group, "topic": letters.retry_topic, "found": letters.found,
            "sent_back_before": letters.found - sent, "sent": sent, "applied": applies,
        }  # fmt: skip
        does = "sent to" if applies else "would go to"
        output.document(answer, title=f"{sent} of {letters.found} {does} {letters.retry_topic}")
        if sent and not applies:
            say("nothing was sent: the same command with --apply sends")
        return letters.damage.end()


def _counts(client: keelog.Client) -> Iterator[dict[str, Any]]:
    for topic in sorted(one.topic for one in client.topics() if one.topic.startswith(DLQ_PREFIX)):
        ends = client.offsets(topic)
        count = sum(queue.max_offset - queue.min_offset for queue in ends)
        if count:
            yield {"group": topic.removeprefix(DLQ_PREFIX), "dead": count}


def _send(client: keelog.Client, letters: "DeadLetters", waiting: Iterator[keelog.Message]) -> int:
    """Sends them in the order in which they died; how many there were. Raises Partial."""
    sent = 0
    with client.producer() as producer:
        while messages := list(islice(waiting, SENT_AT_ONCE)):
            if not sent:
                try:
                    client.offsets(letters.retry_topic)
                except UnknownTopic:  # no member of the group made it; as a broker makes it
                    client.create_topic(letters.retry_topic, 1)
            outgoing = [_as_new(message, letters.retry_topic) for message in messages]
            try:
                sent += len(producer.send_many(letters.retry_topic, outgoing))
            except MqError as error:
                succeeded = error.succeeded if isinstance(error, keelog.SendManyError) else []
                sent += len(succeeded)
                if not sent:
                    raise
                hint = "the same command again: what was sent is passed over"
                raise Partial(f"{sent} sent, then: {error.reason}", hint) from None
    return sent


def _as_new(message: keelog.Message, retry_topic: str) -> keelog.OutgoingMessage:
    """The message as its producer sent it, for one group, which did not try it yet."""
    return keelog.OutgoingMessage(
        message.raw_body,
        properties=properties_to_send(message.properties, retry_topic),
        queue_id=0,
        flag=message.flag,
        sys_flag=message.sys_flag & SENDERS_BITS,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
    )


class DeadLetters:
    """The chosen dead letters of a group, in the order in which they died: by message id or unique
    key, and stored in [`since`, `until`]."""

    def __init__(
        self,
        client: keelog.Client,
        group: str,
        ids: Collection[str],
        since: int | None,
        until: int | None,
    ) -> None:
        self.group = group
        self.ids = frozenset(ids)
        self.retry_topic = f"{RETRY_PREFIX}{group}"
        self.found = 0
        self._client = client
        self._since, self._until = since or 0, TIME_MS_MAX if until is None else until
        self.damage = DamagedPlaces(fails=False)
        self.ids_found: set[str] = set()

    def read(self) -> Iterator[keelog.Message]:
        """All that are there now. Damaged ones are named on stderr."""
        topic = f"{DLQ_PREFIX}{self.group}"
        # Those sent back just now must be in the index.
        wait_until_dispatched(self._client, ("queue", "index"))
        try:
            found = self._client.tail(
                topic,
                "earliest",
                until_end=True,
                on_damage=lambda e: self.damage.meet(e, f"topic {topic}"),
            )  # fmt: skip
            for message in found:
                is_named = not self.ids.isdisjoint((message.msg_id, message.unique_key))
                is_then = self._since <= message.store_timestamp <= self._until
                if is_then and (is_named or not self.ids):
                    self.found += 1
                    self.ids_found |= {message.msg_id, message.unique_key}
                    yield message
        except UnknownTopic:
            return

    def is_sent_back(self, message: keelog.Message) -> bool:
        """Whether the retry topic has it later in the log, as far as the index of keys says. A
        damaged copy is none: nobody gets it."""
        if not message.unique_key:
            return False
        try:
            found = self._client.find(
                self.retry_topic, message.unique_key, since=message.store_timestamp, unique=True,
                on_damage=self.damage.pass_over,
            )  # fmt: skip
            return any(one.physical_offset > message.physical_offset for one in found)
        except UnknownTopic:
            return False

    def nothing(self) -> NotFound:
        """The error where there is none."""
        return NotFound(f"group {self.group} has no such dead letter", "keelog dead ls")


@click.group("msg", cls=CliGroup)
def msg() -> None:
    """Finds single messages through a node.

    Example: keelog msg find --topic orders --key o-17
    """


@msg.command("get")
@click.argument("msg_id", metavar="[ID]", required=False)
@click.option("--physical-offset", type=int, help="Log offset, instead of ID.")
@click.option(
    "--topic", shell_complete=complete_topics, help="With --unique-key, or --queue and --offset."
)
@click.option("--unique-key")
@click.option("--queue", "queue_id", type=int)
@click.option("--offset", "queue_offset", type=int)
@shapes.body_options
@node_options
def get(msg_id: str | None, output: Output, **options: Any) -> int:
    """Prints one message: by its id, log offset, unique key, or place in its queue.

    Example: keelog msg get 7F000001000026A60000000000000000

    Example: keelog msg get --topic orders --queue 0 --offset 17
    """
    node = options.pop("node")
    bodies = Bodies(options.pop("raw_body"), options.pop("no_body"))
    if msg_id is None and all(value is None for value in options.values()):
        raise click.UsageError("name a message: its ID, or options that say which")
    with doing("cannot get the message"), connect(node) as client:
        message = client.get(msg_id, **options)
        output.document(bodies.shape(message.record))
    return bodies.end()


@msg.command("find")
@click.option("--topic", required=True, shell_complete=complete_topics)
@click.option("--key", required=True)
@click.option("--since", type=time, metavar="TIME", help=f"Earliest store time: {TIMES}.")
@click.option("--until", type=time, metavar="TIME", help="Latest store time.")
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, metavar="N")
@click.option("--unique", is_flag=True, help="Looks at UNIQ_KEY only.")
@shapes.on_damage_option
@shapes.body_options
@node_options
def find(topic: str, key: str, output: Output, **options: Any) -> int:
    """Prints the messages with a key, newest first.

    stderr names each damaged message that may have the key; the exit code is 5 then.

    Example: keelog msg find --topic orders --key o-17

    Example: keelog msg find --topic orders --key o-17 --since -2h --limit 1
    """
    node = options.pop("node")
    bodies = Bodies(options.pop("raw_body"), options.pop("no_body"))
    damage = DamagedPlaces(fails=options.pop("on_damage") == "fail")
    columns = shapes.MESSAGE_TABLE if output.format == "table" else shapes.MESSAGE_COLUMNS
    with doing(f"cannot find messages of {topic} with key {key}"), connect(node) as client:
        found = client.find(topic, key, on_damage=damage.pass_over, **options)
        rows = (bodies.shape(message.record) for message in found)
        if not output.rows(rows, columns) and not damage.places:
            raise NotFound(
                f"no message of {topic} has the key {key!r}",
                f"keelog consume {topic} -e -f '%o %k\\n'  shows the keys that there are",
            )
    return damage.end() or bodies.end()
