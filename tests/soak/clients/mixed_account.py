"""What became of each message of a mixed load: pure, from rows; faults are sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from keelog.bench.queue_checks import Ints
from tests.soak.clients.mixed_programs import (
    AT_ONCE,
    GROUPS,
    KINDS,
    MIXED_GIVEN,
    MIXED_TOLD,
    GroupRule,
    is_wanted,
)
from tests.soak.clients.programs import CONSUMED, HANDED_BACK, numbered
from tests.soak.load import ACKNOWLEDGED

MIXED_STORED = ("kind", "number", "physical_offset")
"""A record of the topic itself, or of a group's dead letters."""
_EXAMPLES = 3


class MixedRows(NamedTuple):
    """All that was written down: by the producer, by each group, and in the store at the end."""

    told: Ints
    given: Mapping[str, Ints]
    stored: Ints
    dead: Mapping[str, Ints]


@dataclass(slots=True)
class KindAccount:
    """The messages of one kind."""

    kind: str
    acknowledged: int = 0
    unknown: int = 0
    rolled_back: int = 0
    """Of the acknowledged ones."""
    lost: int = 0
    rolled_back_seen: int = 0
    stored_again: int = 0
    """Records beside the first: sent again by the client, or delivered again."""


@dataclass(slots=True)
class GroupAccount:
    """What one group was given."""

    group: str
    consumed: int = 0
    """Messages, each counted once."""
    unconsumed: int = 0
    """Acknowledged, and neither consumed nor a dead letter where it should be one."""
    failed: int = 0
    """Messages that failed at least once."""
    dead: int = 0
    dead_wrongly: int = 0
    """Dead letters that the rule of the group does not make."""
    rolled_back_seen: int = 0
    given_again: int = 0
    """The same record once more: its offset was not committed in time."""
    copies_given: int = 0
    """Another record of a message that was consumed already."""


@dataclass(slots=True)
class MixedAccount:
    """The whole of it."""

    kinds: list[KindAccount] = field(default_factory=list)
    groups: list[GroupAccount] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def acknowledged_of(told: Ints) -> Ints:
    """Kind and number of what was acknowledged."""
    good = told[told[:, MIXED_TOLD.index("outcome")] == ACKNOWLEDGED]
    return np.asarray(good[:, :2])


def account(rows: MixedRows) -> MixedAccount:
    """Counts, and a fault for each thing that must not be."""
    found = MixedAccount()
    found.kinds = [_of_kind(kind, rows, found.faults) for kind in range(len(KINDS))]
    found.groups = [_of_group(rule, rows, found.faults) for rule in GROUPS]
    return found


def _of_kind(kind: int, rows: MixedRows, faults: list[str]) -> KindAccount:
    told, stored = (part[part[:, 0] == kind] for part in (rows.told, rows.stored))
    acknowledged = acknowledged_of(told)
    wanted = is_wanted(acknowledged)
    lost = _missing(acknowledged[wanted], stored)
    seen = stored[~is_wanted(stored)]
    found = KindAccount(
        KINDS[kind],
        acknowledged=len(acknowledged),
        unknown=len(told) - len(acknowledged),
        rolled_back=int((~wanted).sum()),
        lost=len(lost),
        rolled_back_seen=len(_distinct(seen)),
        stored_again=len(stored) - len(_distinct(stored)),
    )
    _say(faults, lost, f"acknowledged as {KINDS[kind]}, and not in the topic")
    _say(faults, seen, "rolled back, and in the topic")
    if kind in AT_ONCE:
        good = told[told[:, MIXED_TOLD.index("outcome")] == ACKNOWLEDGED]
        places = good[:, [0, 1, MIXED_TOLD.index("physical_offset")]]
        _say(faults, _rows_missing(places, stored), "not at the place that was told")
    nobody = stored[~np.isin(numbered(stored), numbered(told[:, :2]))]
    _say(faults, nobody, f"of {KINDS[kind]} in the topic, and sent by nobody")
    return found


def _of_group(rule: GroupRule, rows: MixedRows, faults: list[str]) -> GroupAccount:
    given, name = rows.given[rule.name], rule.name
    outcome = given[:, MIXED_GIVEN.index("outcome")]
    consumed, failed = given[outcome == CONSUMED], given[outcome == HANDED_BACK]
    dead = rows.dead[name]
    must = _must_be_consumed(rule, rows.told)
    unconsumed = np.concatenate(
        [_missing(must, consumed), _missing(_must_be_dead(rule, rows.told), dead)]
    )
    wrongly = dead if not rule.gives_up else dead[~rule.fails(dead[:, 1])]
    seen = given[~is_wanted(given)]
    records = np.unique(given[:, [0, 1, MIXED_GIVEN.index("physical_offset")]], axis=0)
    of_consumed = np.unique(consumed[:, [0, 1, MIXED_GIVEN.index("physical_offset")]], axis=0)
    _say(faults, unconsumed, f"acknowledged, and neither consumed nor a dead letter of {name}")
    _say(faults, wrongly, f"a dead letter of {name} without need")
    _say(faults, seen, f"rolled back, and given to {name}")
    _say(faults, _missing(given, rows.told), f"given to {name}, and sent by nobody")
    return GroupAccount(
        name,
        consumed=len(_distinct(consumed)),
        unconsumed=len(unconsumed),
        failed=len(_distinct(failed)),
        dead=len(_distinct(dead)),
        dead_wrongly=len(_distinct(wrongly)),
        rolled_back_seen=len(_distinct(seen)),
        given_again=len(given) - len(records),
        copies_given=len(of_consumed) - len(_distinct(consumed)),
    )


def unfinished(told: Ints, given: Mapping[str, Ints]) -> str:
    """What is still to be consumed, or to be tried for the last time; empty when nothing is."""
    left = []
    for rule in GROUPS:
        rows = given[rule.name]
        outcome, times = (rows[:, MIXED_GIVEN.index(name)] for name in ("outcome", "times"))
        missing = len(_missing(_must_be_consumed(rule, told), rows[outcome == CONSUMED]))
        last = rows[times >= rule.reconsume_max]
        missing += len(_missing(_must_be_dead(rule, told), last))
        left += [f"{missing} of {rule.name}"] if missing else []
    return ", ".join(left)


def _must_be_consumed(rule: GroupRule, told: Ints) -> Ints:
    wanted = acknowledged_of(told)
    wanted = wanted[is_wanted(wanted)]
    return wanted[~rule.fails(wanted[:, 1])] if rule.gives_up else wanted


def _must_be_dead(rule: GroupRule, told: Ints) -> Ints:
    wanted = acknowledged_of(told)
    wanted = wanted[is_wanted(wanted)]
    return wanted[rule.fails(wanted[:, 1])] if rule.gives_up else wanted[:0]


def _distinct(rows: Ints) -> Ints:
    return np.unique(numbered(rows))


def _missing(wanted: Ints, found: Ints) -> Ints:
    """Kind and number of what is wanted and not found."""
    return np.asarray(wanted[~np.isin(numbered(wanted), numbered(found))][:, :2])


def _rows_missing(wanted: Ints, found: Ints) -> Ints:
    """The rows of `wanted` that `found` does not have, both without doubles in one another."""
    known = set(map(tuple, found.tolist()))
    return np.array([one for one in wanted.tolist() if tuple(one) not in known], np.int64).reshape(
        -1, wanted.shape[1]
    )


def _say(faults: list[str], rows: Ints, what: str) -> None:
    if len(rows):
        faults.append(f"{len(rows)} {what}: {rows[:_EXAMPLES].tolist()}")


def table(title: str, rows: Sequence[KindAccount] | Sequence[GroupAccount]) -> str:
    """Counts as a table for people, a line for each kind or group."""
    names = list(type(rows[0]).__dataclass_fields__)
    cells = [[title, *(name.replace("_", " ") for name in names[1:])]]
    cells += [[_shown(getattr(row, name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
