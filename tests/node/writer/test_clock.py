"""A clock that jumps back an hour or forward two days moves store times, never offsets or order."""

from pathlib import Path

from protocol.record.codec import Record
from tests.support.owned_store import FIRST_TIME, Owner, record_at, recovered, some

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def appended(root: Path, jumps_ms: list[int], restart: bool) -> list[Record]:
    """Three records at each of these clocks; the node is killed in between, or runs on."""
    owner = Owner(root)
    offsets: list[int] = []
    for number, jump in enumerate(jumps_ms):
        if restart and number:
            owner.kill()
            owner = Owner(root)
        owner.now_ms = FIRST_TIME + jump
        offsets += owner.append(some(3, first=3 * number))
        if number % 2:
            owner.flush()
    owner.kill()
    return [record_at(root, offset) for offset in offsets]


def check(records: list[Record], times: list[int]) -> None:
    assert [record.head.store_timestamp - FIRST_TIME for record in records] == [
        time for time in times for _ in range(3)
    ]
    ends = [record.physical_offset + record.size for record in records]
    assert [record.physical_offset for record in records[1:]] == ends[:-1]
    by_queue: dict[int, list[int]] = {}
    for record in records:
        by_queue.setdefault(record.head.queue_id, []).append(record.head.queue_offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())


def test_store_times_never_fall_while_the_clock_is_back(tmp_path: Path) -> None:
    jumps = [0, -HOUR_MS, -HOUR_MS + 5, 10, 2 * DAY_MS, 20]
    records = appended(tmp_path / "store", jumps, restart=False)
    check(records, [0, 0, 0, 10, 2 * DAY_MS, 2 * DAY_MS])


def test_nor_do_they_over_restarts_after_kills(tmp_path: Path) -> None:
    jumps = [0, 2 * DAY_MS, -HOUR_MS, 30]
    records = appended(tmp_path / "store", jumps, restart=True)
    check(records, [0, 2 * DAY_MS, 2 * DAY_MS, 2 * DAY_MS])


def test_nor_after_a_stop_in_order(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "store")
    owner.append(some(2))
    owner.stop()
    owner = Owner(tmp_path / "store")
    owner.now_ms = FIRST_TIME - HOUR_MS
    (offset,) = owner.append(some(1, first=2))
    owner.kill()
    assert record_at(tmp_path / "store", offset).head.store_timestamp == FIRST_TIME


def test_recovery_asks_no_clock(tmp_path: Path) -> None:
    appended(tmp_path / "store", [2 * DAY_MS, -HOUR_MS], restart=True)
    found = recovered(tmp_path / "store")
    assert (found.cut, found.last_store_timestamp) == (None, FIRST_TIME + 2 * DAY_MS)
