"""Which damaged bytes take the places of missing messages."""

import pytest

from node.store.log.reader import Damage
from protocol.record.codec import Torn
from workers import queue_units
from workers.queue_units import Holes, MissingMessages


def damage(start: int, stop: int) -> Damage:
    return Damage("segment", Torn(start, "bad_magic", ""), stop)


def first_of(known: Holes, begin: int, end: int) -> int | None:
    units = known.units(MissingMessages(begin, end, 1))
    return None if units is None else int(units[0]["physical_offset"])


def test_beyond_the_limit_the_newest_two_are_one_in_whatever_order_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_units, "HOLES_MAX", 3)
    known = Holes()
    for start in (300, 400, 500, 100, 200):
        known.add(damage(start, start + 10))
    assert [first_of(known, start, start + 50) for start in (100, 200)] == [100, 200]
    assert first_of(known, 290, 520) == 300
    assert first_of(known, 290, 350) is None
