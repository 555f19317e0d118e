"""The checks of `tests.soak.clients` find what they are for; no process is started."""

from pathlib import Path

import numpy as np
import pytest

from keelog.bench.queue_checks import Ints
from tests.soak.clients.check import (
    DELIVERED,
    HANDED_BACK,
    RETRIED,
    SENT,
    Kept,
    Repeats,
    check_committed,
    check_given,
    check_stored,
)
from tests.soak.clients.programs import CONSUMED, JavaLoad
from tests.soak.clients.programs import HANDED_BACK as GIVEN_BACK

COUNT = 10
LATE, FAILS = 3, 7
END = 100_000


def stored_at(number: int, kind: int) -> int:
    """The log offset of a record."""
    return 1_000 * number + 100 * kind


def kept(*without: int, again: tuple[int, ...] = ()) -> Kept:
    """What a store has of ten messages, one late and one that fails once; `without` and `again`
    are log offsets."""
    kinds = {number: [SENT] for number in range(COUNT)}
    kinds[LATE] += [DELIVERED]
    kinds[FAILS] += [HANDED_BACK, RETRIED]
    rows = []
    for number, all_of in kinds.items():
        for kind in all_of:
            place = stored_at(number, kind)
            rows += [(place, 0, 0, number, 0, number, kind)] if place not in without else []
            rows += [(place + 1, 0, 0, number, 0, number, kind)] if place in again else []
    table = np.array(rows, np.int64)
    return Kept(table[:, :-1], table[:, -1], END)


def load_in(folder: Path, given: list[tuple[int, ...]]) -> JavaLoad:
    """The files of a producer that was told of ten messages, and of a consumer."""
    load = JavaLoad(folder, "nowhere", ("a",), producers=1)
    told = [(0, n, 0, 0, 0, n, stored_at(n, SENT), 0, 1_000 + n) for n in range(COUNT)]
    (folder / "producer-0.rows").write_bytes(np.array(told, np.int64).tobytes())
    (folder / "one.rows").write_bytes(np.array(given, np.int64).tobytes())
    return load


def given() -> list[tuple[int, ...]]:
    """Each message once, the failed one twice."""
    rows: list[tuple[int, ...]] = []
    for number in range(COUNT):
        kind = DELIVERED if number == LATE else SENT
        outcome = GIVEN_BACK if number == FAILS else CONSUMED
        rows.append((0, 0, 0, number, stored_at(number, kind), 0, number, 0, outcome, 0))
    rows.append((0, 2, 0, 0, stored_at(FAILS, RETRIED), 0, FAILS, 1, CONSUMED, 0))
    return rows


def checked(load: JavaLoad, store: Kept) -> Repeats:
    """All checks at once."""
    found = Repeats()
    check_stored(load, {0: store}, found)
    check_given(load, {0: store}, found)
    return found


def test_a_load_that_lost_nothing_has_no_fault_and_no_repeat(tmp_path: Path) -> None:
    assert checked(load_in(tmp_path, given()), kept()) == Repeats(
        acknowledged=COUNT, consumed=COUNT
    )


@pytest.mark.parametrize(
    ("without", "fault"),
    [
        (stored_at(4, SENT), "1 acknowledged messages of producer 0 are lost"),
        (stored_at(LATE, DELIVERED), "1 were not delivered, 0 came from nowhere"),
        (stored_at(FAILS, RETRIED), "1 were not delivered, 0 came from nowhere"),
        (stored_at(FAILS, HANDED_BACK), "0 were not delivered, 1 came from nowhere"),
    ],
)
def test_a_record_that_is_missing_is_a_fault(tmp_path: Path, without: int, fault: str) -> None:
    assert fault in " ".join(checked(load_in(tmp_path, given()), kept(without)).faults)


def test_records_that_are_there_twice_are_counted_by_their_cause(tmp_path: Path) -> None:
    twice = (stored_at(4, SENT), stored_at(LATE, DELIVERED), stored_at(FAILS, RETRIED))
    found = checked(load_in(tmp_path, [*given(), given()[0]]), kept(again=twice))
    assert found.faults == []
    assert (found.sent_twice, found.delivered_twice, found.retried_twice) == (1, 1, 1)
    assert found.given_again == 1


def test_an_acknowledged_message_that_was_given_and_never_consumed_is_a_fault(
    tmp_path: Path,
) -> None:
    found = checked(load_in(tmp_path, given()[:-1]), kept())
    assert (found.unconsumed, found.lost) == (1, 0)
    assert found.faults == [f"1 acknowledged messages were not consumed: [[0, {FAILS}]]"]


def test_a_message_that_is_given_and_not_stored_is_a_fault(tmp_path: Path) -> None:
    foreign = (0, 0, 0, 55, 55_000, 0, 55, 0, CONSUMED, 0)
    faults = checked(load_in(tmp_path, [*given(), foreign]), kept()).faults
    assert faults == ["1 messages given are not stored there"]


def test_a_committed_offset_beyond_what_was_given_is_a_fault() -> None:
    rows: Ints = np.array(given(), np.int64)
    assert check_committed({(0, 0, 0): COUNT, (0, 2, 0): 1}, rows) == []
    (fault,) = check_committed({(0, 0, 0): COUNT, (0, 2, 0): 1}, np.delete(rows, 5, axis=0))
    assert "1 messages below it were given to nobody: [5]" in fault
    (fault,) = check_committed({(0, 2, 0): 2}, rows)
    assert "given to nobody: [1]" in fault
