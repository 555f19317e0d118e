"""`keelog group`: lists, describes, resets and removes consumer groups."""

import time
from dataclasses import asdict
from datetime import datetime

import click

import keelog
from keelog.cli.failures import OK, BadValue, doing
from keelog.cli.messages.selectors import parse_place
from keelog.cli.node.topic import confirm, yes_option
from keelog.cli.options import CliGroup, node_option, output_options
from keelog.cli.output import Output
from keelog.text import duration_text
from protocol.errors import BadRequest, NotFound
from protocol.names import is_system_group


@click.group("group", cls=CliGroup)
def group() -> None:
    """Lists, describes, resets and removes consumer groups.

    Example: keelog group ls
    """


@group.command("ls")
@click.option("--all", "shows_all", is_flag=True, help="Also the groups of the system.")
@node_option
@output_options
def ls(shows_all: bool, node: str, output: Output) -> int:
    """Lists the groups and cursors, with their members and lag.

    Example: keelog group ls
    """
    with doing(f"cannot list the groups of {node}"), keelog.connect(node) as client:
        found = [one for one in client.groups() if shows_all or not is_system_group(one.group)]
    output.rows(
        [
            {
                "group": one.group,
                "members": len(one.members),
                "lag": one.lag,
                "lag_ms": one.lag_ms,
            }
            for one in found
        ]
    )
    return OK


@group.command("describe")
@click.argument("name", metavar="GROUP")
@node_option
@output_options
def describe(name: str, node: str, output: Output) -> int:
    """Shows the members of a group, and how far it has come in each queue.

    A lag has a number of messages and the age of the oldest of them.

    Example: keelog group describe billing
    """
    with doing(f"cannot describe group {name}"), keelog.connect(node) as client:
        known = client.groups(name)
        if not known:
            raise NotFound(f"group {name} is not known", "see the groups with: keelog group ls")
        found = known[0]
    queues = [asdict(queue) for queue in found.queues]
    members = [asdict(member) for member in found.members]
    is_read = output.format == "table"
    output.document(
        {"group": name, "members": members, "queues": queues},
        table=map(_readable, found.queues) if is_read else queues,
        title="\n".join(map(_member_text, found.members)) or "no members",
    )
    return OK


@group.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("--topic", required=True, metavar="TOPIC", help="Where it goes on elsewhere.")
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="start, end, 123, 2026-11-20T10:00 or -15m.",
)
@click.option("--queue", type=click.IntRange(0), metavar="N", help="Only this queue.")
@node_option
@output_options
def reset(name: str, topic: str, to: str, queue: int | None, node: str, output: Output) -> int:
    """Moves a group to another place of a topic. It must have no members.

    Example: keelog group reset billing --topic orders --to -1h
    """
    place = parse_place(to, datetime.now().astimezone())
    if place.kind not in ("start", "end", "offset", "time"):
        raise BadValue(f"cannot reset to {to!r}", "write start, end, 123 or -15m")
    with doing(f"cannot reset group {name}"), keelog.connect(node) as client:
        _check_idle(client, name)
        places: dict[int, int] = {}
        for one in client.offsets(topic):
            if queue not in (None, one.queue_id):
                continue
            if place.kind == "time":
                wanted = client.seek(topic, one.queue_id, place.value)
            else:
                wanted = {"start": one.min_offset, "end": one.max_offset}.get(
                    place.kind, place.value
                )
            places[one.queue_id] = max(one.min_offset, min(wanted, one.max_offset))
        if not places:
            raise NotFound(f"topic {topic} has no queue {queue}", f"keelog topic describe {topic}")
        client.commit_cursor(topic, name, places)
    rows = [{"topic": topic, "queue_id": n, "committed": at} for n, at in sorted(places.items())]
    output.document({"group": name, "queues": rows}, table=rows)
    return OK


@group.command("rm")
@click.argument("name", metavar="GROUP")
@yes_option
@node_option
@output_options
def remove(name: str, yes: bool, node: str, output: Output) -> int:
    """Forgets how far a group, or cursor, has come; asks first, on a terminal.

    It must have no members. When it comes back, it begins as a new one.

    Example: keelog group rm billing --yes
    """
    with doing(f"cannot remove group {name}"):
        confirm(f"keelog group rm {name}", "its places", yes)
        with keelog.connect(node) as client:
            _check_idle(client, name)
            if not client.delete_group(name):
                raise NotFound(f"group {name} has no place in any topic", "keelog group ls")
    output.document({"group": name, "deleted": True})
    return OK


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
