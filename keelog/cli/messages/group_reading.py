"""`keelog consume --group`: as a member of a consumer group, until it is ended."""

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import click

import keelog
from keelog.cli.damaged_places import DamagedPlaces
from keelog.cli.interrupts import ending_in_order
from keelog.cli.messages.reading import ConsumeChoice
from keelog.cli.messages.selectors import StartPoint

_NOT_IN_A_GROUP = {
    "cursor": "--cursor",
    "at_end": "--until-end",
    "queues": "--queue",
    "is_merged": "--merge",
}


def check_group_options(options: Mapping[str, Any], wanted: ConsumeChoice) -> None:
    """Raises UsageError for options that have no meaning for a member of a group."""
    for name, option in _NOT_IN_A_GROUP.items():
        if options[name]:
            raise click.UsageError(f"--group and {option} exclude each other")
    if wanted.last is not None or wanted.first.kind not in ("start", "end", "time"):
        raise click.UsageError("with --group, --from is start, end or a time, without TO")


def group_messages(
    client: keelog.Client,
    wanted: ConsumeChoice,
    group: str,
    count_max: int | None,
    damage: DamagedPlaces,
) -> Generator[keelog.Message, None, None]:
    """The messages to print. One is committed after the next one was asked for."""
    if count_max == 0:
        return

    def meet(error: keelog.MessageDamaged) -> None:
        damage.meet(error, f"topic {wanted.topic}")

    member = client.consumer(
        group, wanted.topic, tags=wanted.tags, start=_start(wanted.first),
        on_damage="fail" if damage.fails else meet,
    )  # fmt: skip
    with ending_in_order(), member:
        for count, message in enumerate(member, 1):
            yield message
            message.ack()
            if count == count_max:
                return


def _start(first: StartPoint) -> Literal["latest", "earliest"] | datetime:
    """Where a new group begins."""
    if first.kind == "time":
        return datetime.fromtimestamp(first.value / 1000, UTC)
    return "earliest" if first.kind == "start" else "latest"
