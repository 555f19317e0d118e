"""The account of a mixed load finds what it is for; no process is started."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from keelog.bench.queue_checks import Ints
from tests.soak.clients.mixed_account import MixedRows, account, unfinished
from tests.soak.clients.mixed_programs import GROUPS, KINDS, TRANSACTION, is_wanted
from tests.soak.load import ACKNOWLEDGED, UNKNOWN

COUNT = 40
"""Messages of each kind."""


def place_of(kind: int, number: int) -> int:
    return 1_000 * kind + number


def ints(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    return np.array(rows, np.int64).reshape(-1, width)


def messages() -> list[tuple[int, int]]:
    return [(kind, number) for kind in range(len(KINDS)) for number in range(COUNT)]


def is_seen(kind: int, number: int) -> bool:
    return bool(is_wanted(np.array([(kind, number)]))[0])


def good() -> MixedRows:
    """A run in which all went well, and nothing came twice."""
    seen = [one for one in messages() if is_seen(*one)]
    told = [(*one, ACKNOWLEDGED, place_of(*one), 0) for one in messages()]
    given = {}
    dead = {}
    for rule in GROUPS:
        rows = []
        for kind, number in seen:
            fails = rule.fails_every and number % rule.fails_every == rule.fails_every - 1
            tries = min(rule.fails_times, rule.reconsume_max + 1) if fails else 0
            rows += [(kind, number, 9_000 + n, n, 1, 0) for n in range(tries)]
            if not (fails and rule.gives_up):
                rows.append((kind, number, place_of(kind, number), tries, 0, 0))
        lost = [(*one, 50_000) for one in seen if rule.gives_up and one[1] % rule.fails_every == 19]
        given[rule.name], dead[rule.name] = ints(rows, 6), ints(lost, 3)
    return MixedRows(ints(told, 5), given, ints([(*one, place_of(*one)) for one in seen], 3), dead)


def without(rows: Ints, kind: int, number: int) -> Ints:
    return np.asarray(rows[~((rows[:, 0] == kind) & (rows[:, 1] == number))])


def also(rows: Ints, *row: int) -> Ints:
    return np.concatenate([rows, ints([row], rows.shape[1])])


def test_a_run_without_faults_has_none() -> None:
    rows = good()
    found = account(rows)
    assert found.faults == []
    assert not unfinished(rows.told, rows.given)
    assert sum(kind.acknowledged for kind in found.kinds) == len(KINDS) * COUNT
    # Two of each kind; those of the transactions are rolled back.
    assert [group.dead for group in found.groups] == [0, 0, 8]
    assert found.kinds[TRANSACTION].rolled_back == COUNT * 2 // 5


def test_a_message_that_is_not_stored_is_lost_unless_nobody_was_told() -> None:
    rows = good()
    stored = without(rows.stored, 0, 3)
    (fault,) = [one for one in account(rows._replace(stored=stored)).faults if "topic" in one]
    assert "acknowledged as single, and not in the topic: [[0, 3]]" in fault
    told = also(without(rows.told, 0, 3), 0, 3, UNKNOWN, -1, 0)
    assert account(rows._replace(told=told, stored=stored)).faults == []


def test_a_message_that_a_group_never_consumed_is_found() -> None:
    rows = good()
    given = {**rows.given, "steady": without(rows.given["steady"], 1, 5)}
    assert "1 of steady" in unfinished(rows.told, given)
    (fault,) = account(rows._replace(given=given)).faults
    assert "neither consumed nor a dead letter of steady: [[1, 5]]" in fault


def test_dead_letters_are_those_of_the_rule() -> None:
    rows = good()
    dead = {**rows.dead, "failing": without(rows.dead["failing"], 2, 19)}
    assert "dead letter of failing: [[2, 19]]" in account(rows._replace(dead=dead)).faults[0]
    dead = {**rows.dead, "steady": ints([(0, 1, 7)], 3)}
    assert "a dead letter of steady without need" in account(rows._replace(dead=dead)).faults[0]


@pytest.mark.parametrize("number", [2, 4])
def test_a_transaction_that_was_rolled_back_and_seen_is_found(number: int) -> None:
    rows = good()
    stored = also(rows.stored, TRANSACTION, number, 77)
    assert "rolled back, and in the topic" in account(rows._replace(stored=stored)).faults[0]
    given = {**rows.given, "steady": also(rows.given["steady"], TRANSACTION, number, 77, 0, 0, 0)}
    assert "rolled back, and given to steady" in account(rows._replace(given=given)).faults[0]


def test_repeats_are_counted_and_no_fault() -> None:
    rows = good()
    stored = also(rows.stored, 3, 7, 99_999)
    steady = also(rows.given["steady"], 3, 7, 99_999, 0, 0, 0)
    steady = also(steady, 3, 8, place_of(3, 8), 0, 0, 0)
    found = account(rows._replace(stored=stored, given={**rows.given, "steady": steady}))
    assert found.faults == []
    assert [kind.stored_again for kind in found.kinds] == [0, 0, 0, 1, 0]
    group = found.groups[0]
    assert (group.given_again, group.copies_given) == (1, 1)
    assert replace(group, given_again=0, copies_given=0) == account(rows).groups[0]


def test_a_place_that_was_told_wrongly_is_found() -> None:
    rows = good()
    told = also(without(rows.told, 0, 3), 0, 3, ACKNOWLEDGED, 5, 0)
    (fault,) = account(rows._replace(told=told)).faults
    assert "not at the place that was told: [[0, 3, 5]]" in fault
