"""`keelog topic` and `keelog group`: topics and consumer groups of a node."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

import keelog
from keelog.cli.contexts import complete_topics, connect
from keelog.cli.failures import BadValue, doing
from keelog.cli.messages.reading import offset_of
from keelog.cli.messages.selectors import parse_place
from keelog.cli.options import CliGroup, node_options
from keelog.cli.output import Output, say
from keelog.client.options import PurgeOptions
from keelog.text import duration_text, size_text, time_text
from protocol.errors import BadRequest, NotFound, UnknownTopic
from protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_reserved_topic, is_system_group

_AFTER_ALL = 2**63 - 1


@click.group("topic", cls=CliGroup)
def topic() -> None:
    """Lists, describes, makes, removes and purges topics.

    Example: keelog topic ls
    """


@topic.command("ls")
@node_options
def ls(node: str, output: Output) -> None:
    """Lists the topics: how many messages and bytes each has, and since when.

    The system's topics come last. `bytes` is what the records take in the log: exact for queues of
    up to 4,096 messages, else computed from the sizes of as many. A table has no settings of
    topics.

    Example: keelog topic ls --json
    """
    with doing(f"cannot list the topics of {node}"), connect(node) as client:
        found = sorted(client.topics(), key=_order)
        rows = [{**asdict(info), **_held(client.offsets(info.topic, sizes=True))} for info in found]
    if output.format == "table":
        names = ("topic", "queues", "messages", "size", "oldest")
        for row in rows:
            row["size"] = size_text(row["bytes"])
            row["oldest"] = "" if row["oldest_ms"] is None else time_text(row["oldest_ms"])
        rows = [{name: row[name] for name in names} for row in rows]
    output.rows(rows)


def _order(info: keelog.TopicInfo) -> tuple[bool, str]:
    """Those last that people do not look for: the system's own, and those of groups."""
    of_group = info.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return is_reserved_topic(info.topic) or of_group, info.topic


def _held(queues: Sequence[keelog.QueueOffsets]) -> dict[str, Any]:
    """What the queues of a topic hold together; None for what an older node does not say."""
    sizes = [queue.bytes for queue in queues if queue.bytes is not None]
    times = [queue.oldest_ms for queue in queues if queue.oldest_ms is not None]
    return {
        "messages": sum(queue.max_offset - queue.min_offset for queue in queues),
        "bytes": sum(sizes) if len(sizes) == len(queues) else None,
        "oldest_ms": min(times, default=None),
    }


@topic.command("describe")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@node_options
def describe(name: str, node: str, output: Output) -> None:
    """Shows the queues of a topic with their first and next offset.

    Example: keelog topic describe orders
    """
    with doing(f"cannot describe topic {name}"), connect(node) as client:
        info = next((one for one in client.topics() if one.topic == name), None)
        if info is None:
            raise UnknownTopic(f"there is no topic {name}")
        found = client.offsets(name, sizes=True)
    of_queue = ("queue_id", "min_offset", "max_offset", "bytes", "oldest_ms")
    queues = [{"topic": name} | {one: getattr(queue, one) for one in of_queue} for queue in found]
    settings = ("perm", "read_queues", "write_queues", "retention_hours")
    document = {"topic": name} | {one: getattr(info, one) for one in settings} | {"queues": queues}
    output.document(document, table=queues)
    late = ", ".join(str(queue.queue_id) for queue in found if queue.is_behind)
    if late:
        say(f"queues {late} may end later: their worker is behind the log")
        say("see it with: keelog status")


@topic.command("create")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--queues",
    type=click.IntRange(1),
    metavar="N",
    help="How many.  [default: as it was; 8 of a new topic]",
)
@click.option(
    "--perm",
    type=click.IntRange(0, 7),
    help="2 write, 4 read.  [default: as it was; 6 of a new topic]",
)
@click.option(
    "--retention",
    type=click.IntRange(0),
    metavar="HOURS",
    help="How long its messages are kept; 0: as the node keeps all others.  [default: as it was]",
)
@node_options
def create(
    name: str,
    queues: int | None,
    perm: int | None,
    retention: int | None,
    node: str,
    output: Output,
) -> None:
    """Makes a topic, or changes what is named of one that is there.

    With fewer queues, consumers of groups read nothing more of the others: stderr says how many
    messages that are.

    Example: keelog topic create orders --queues 4 --retention 24
    """
    with doing(f"cannot create topic {name}"), connect(node) as client:
        made = client.create_topic(
            name, queues, perm=perm, retention_hours=retention, exist_ok=True
        )
        if not made.created and queues is not None:
            _say_unread(client, name, queues)
    output.document(asdict(made))


def _say_unread(client: keelog.Client, name: str, queues: int) -> None:
    """Says what the queues hold that consumers of groups do not read any more."""
    gone = [queue for queue in client.offsets(name) if queue.queue_id >= queues]
    messages = sum(queue.max_offset - queue.min_offset for queue in gone)
    if not messages:
        return
    say(f"queues from {queues} on have {messages} messages, which no consumer of a group reads now")
    for group in client.groups():
        unread = sum(
            queue.lag for queue in group.queues if queue.topic == name and queue.queue_id >= queues
        )
        if unread:
            say(f"group {group.group} has not read {unread} of them")
    say(f"see them with: keelog consume {name}; or give the queues back with --queues")


yes_option = click.option("--yes", is_flag=True, help="Does not ask.")


def confirm(command: str, what: str, yes: bool) -> None:
    """Asks on a terminal whether `what` may go. Raises BadRequest elsewhere, and Abort for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest("stdin is not a terminal, so nobody can confirm it", f"{command} --yes")
    click.confirm(f"{command}: {what} cannot be brought back. Go on?", abort=True, err=True)


@topic.command("rm")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@yes_option
@node_options
def remove(name: str, yes: bool, node: str, output: Output) -> None:
    """Removes a topic with all its messages; asks first, on a terminal.

    Nobody can read them any more. The log keeps their bytes until retention deletes them.

    Example: keelog topic rm orders --yes
    """
    with doing(f"cannot remove topic {name}"):
        confirm(f"keelog topic rm {name}", "these messages", yes)
        with connect(node) as client:
            found = client.delete_topic(name)
            if not found:
                raise UnknownTopic(f"there is no topic {name}")
    output.document(asdict(found))


@topic.command("purge")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "--before",
    required=True,
    metavar="OFFSET|TIME",
    help="The first that stays: 123, 2026-11-20T10:00 or -15m; or end.",
)
@click.option("--queue", type=click.IntRange(0), metavar="N", help="Only this queue.")
@yes_option
@node_options
def purge(name: str, before: str, queue: int | None, yes: bool, node: str, output: Output) -> None:
    """Removes the older messages of a topic; asks first, on a terminal.

    The offsets of the others stay as they are.

    Example: keelog topic purge orders --before -1d --yes
    """
    place = parse_place(before, datetime.now().astimezone())
    if place.kind not in ("offset", "time", "end"):
        raise BadValue(f"cannot purge to {before!r}", "write end, 123, 2026-11-20T10:00 or -15m")
    options: PurgeOptions = {"queue_id": queue}
    if place.kind == "time":
        options["before_time"] = place.value
    else:
        options["before_offset"] = _AFTER_ALL if place.kind == "end" else place.value
    with doing(f"cannot purge topic {name}"):
        confirm(f"keelog topic purge {name} --before {before}", "these messages", yes)
        with connect(node) as client:
            found = client.purge_topic(name, **options)
    queues = [begin._asdict() for begin in found.queues]
    document = {"topic": name, "queues": queues, "left_in_log_bytes": found.left_in_log_bytes}
    output.document(document, table=[{"topic": name, **row} for row in queues])


@click.group("group", cls=CliGroup)
def group() -> None:
    """Lists, describes, resets and removes consumer groups.

    Example: keelog group ls
    """


@group.command("ls")
@click.option("--all", "shows_all", is_flag=True, help="Also the groups of the system.")
@node_options
def ls_groups(shows_all: bool, node: str, output: Output) -> None:
    """Lists the groups and cursors, with their members and lag.

    Example: keelog group ls
    """
    with doing(f"cannot list the groups of {node}"), connect(node) as client:
        found = [one for one in client.groups() if shows_all or not is_system_group(one.group)]
    names = ("group", "members", "lag", "lag_ms")
    rows = ((one.group, len(one.members), one.lag, one.lag_ms) for one in found)
    output.rows([dict(zip(names, row, strict=True)) for row in rows])


@group.command("describe")
@click.argument("name", metavar="GROUP")
@node_options
def describe_group(name: str, node: str, output: Output) -> None:
    """Shows the members of a group, and how far it has come in each queue.

    A lag has a number of messages and the age of the oldest of them.

    Example: keelog group describe billing
    """
    with doing(f"cannot describe group {name}"), connect(node) as client:
        known = client.groups(name)
        if not known:
            raise NotFound(f"group {name} is not known", "see the groups with: keelog group ls")
        found = known[0]
    queues = [asdict(queue) for queue in found.queues]
    members = [asdict(member) for member in found.members]
    output.document(
        {"group": name, "members": members, "queues": queues},
        table=map(_readable, found.queues) if output.format == "table" else queues,
        title="\n".join(map(_member_text, found.members)) or "no members",
    )


@group.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("--topic", required=True, metavar="TOPIC", help="Where it goes on elsewhere.")
@click.option(
    "--to", required=True, metavar="PLACE", help="start, end, 123, 2026-11-20T10:00 or -15m."
)
@click.option("--queue", type=click.IntRange(0), metavar="N", help="Only this queue.")
@node_options
def reset(name: str, topic: str, to: str, queue: int | None, node: str, output: Output) -> None:
    """Moves a group to another place of a topic. It must have no members.

    Example: keelog group reset billing --topic orders --to -1h
    """
    place = parse_place(to, datetime.now().astimezone())
    if place.kind not in ("start", "end", "offset", "time"):
        raise BadValue(f"cannot reset to {to!r}", "write start, end, 123 or -15m")
    with doing(f"cannot reset group {name}"), connect(node) as client:
        _check_idle(client, name)
        places: dict[int, int] = {}
        for one in client.offsets(topic):
            if queue not in (None, one.queue_id):
                continue
            places[one.queue_id] = offset_of(client, topic, one, place)
        if not places:
            raise NotFound(f"topic {topic} has no queue {queue}", f"keelog topic describe {topic}")
        client.commit_cursor(topic, name, places)
    rows = [{"topic": topic, "queue_id": n, "committed": at} for n, at in sorted(places.items())]
    output.document({"group": name, "queues": rows}, table=rows)


@group.command("rm")
@click.argument("name", metavar="GROUP")
@yes_option
@node_options
def remove_group(name: str, yes: bool, node: str, output: Output) -> None:
    """Forgets how far a group, or cursor, has come; asks first, on a terminal.

    It must have no members. When it comes back, it begins as a new one.

    Example: keelog group rm billing --yes
    """
    with doing(f"cannot remove group {name}"):
        confirm(f"keelog group rm {name}", "its places", yes)
        with connect(node) as client:
            _check_idle(client, name)
            if not client.delete_group(name):
                raise NotFound(f"group {name} has no place in any topic", "keelog group ls")
    output.document({"group": name, "deleted": True})


def _readable(queue: keelog.GroupQueue) -> dict[str, object]:
    """A queue for people: with ages instead of times."""
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "committed": queue.committed,
        "max": queue.max,
        "lag": queue.lag,
        "oldest": duration_text(queue.lag_ms / 1000) if queue.lag and queue.lag_ms else "",
        "last_commit": _ago(queue.committed_ms),
        "client_id": queue.client_id,
    }


def _member_text(member: keelog.GroupMemberInfo) -> str:
    beat = _ago(member.beat_ms) or "at an unknown time"
    return f"member {member.client_id} at {member.address}, last heart-beat {beat}"


def _ago(ms: int | None) -> str:
    return "" if ms is None else f"{duration_text(time.time() - ms / 1000)} ago"


def _check_idle(client: keelog.Client, name: str) -> None:
    found = client.groups(name)
    if found and found[0].members:
        raise BadRequest(
            f"group {name} has {len(found[0].members)} members, which would commit over it",
            "stop them first: keelog group describe shows who they are",
        )
