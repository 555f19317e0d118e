"""How long a timer message waits before it is looked at again."""

import pytest

from keelog.gateway.tasks.timer_records import waiting_unit
from protocol.derived.file_layouts import TIMER_ROLL
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, pack_record
from protocol.record.properties import encode_properties

NOW_MS, WINDOW_MS = 1_700_000_000_500, 60_000
WRITTEN_MS = 1_700_000_000_000


def record(out_ms: int) -> Record:
    pairs = [("REAL_TOPIC", "t"), ("TIMER_OUT_MS", str(out_ms))]
    found = decode(pack_record(NewMessage("x", b"x", 0), encode_properties(pairs)), 0)
    assert isinstance(found, Record)
    return found


@pytest.mark.parametrize(
    ("left_s", "waits_s"), [(59, 59), (60, 30), (79, 30), (80, 60), (100_000, 60)]
)
def test_a_message_of_a_far_time_waits_for_a_window_first(left_s: int, waits_s: int) -> None:
    found = waiting_unit(record(WRITTEN_MS + left_s * 1000), NOW_MS, WINDOW_MS)
    assert found is not None
    assert (found.slot_ms - WRITTEN_MS) // 1000 == waits_s
    assert bool(found.magic & TIMER_ROLL) == (waits_s != left_s)
    assert found.due_ms - WRITTEN_MS == (left_s + 1) * 1000, "its own time stays"
