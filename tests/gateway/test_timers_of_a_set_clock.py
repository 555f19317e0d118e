"""Timer messages while the clock is set, without a node: what no writer has seen."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from client.core import ClientCore
from gateway.sending.writer_link import WriterLink
from gateway.tasks.timers.timer_files import TimerFiles, TimerMessage, WaitingUnit
from gateway.tasks.timers.timer_records import TimerRecords
from gateway.tasks.timers.timers import TimerDeliverer
from gateway.tasks.waiting_queue import Pulled, WaitingQueue
from node.runtime.settings import Settings
from node.runtime.stored_times import Moment
from protocol.derived.timer_units import TimerCheck
from protocol.names import TIMER_CHECK_FILE
from protocol.record.timed import TIMER_PLACE

HOUR_MS = 3_600_000
NOON = 1_700_000_000_000
DELAY_MS = 40_000
DUE_MS = NOON + DELAY_MS
PLACE = 10


class NoMore(WaitingQueue):
    """A queue of one message, which has its unit."""

    def __init__(self) -> None:
        super().__init__(cast(ClientCore, None), TIMER_PLACE, 0.0)
        self.pulls = 0

    async def pull(self, offset: int) -> Pulled:
        self.pulls += 1
        await asyncio.sleep(0.01)
        return Pulled([], offset, 1)

    async def end(self) -> int:
        return 1


def files_of(root: Path, now_ms: int) -> TimerFiles:
    return TimerFiles(root, lambda _: 0, lambda: now_ms)


def due_times(files: TimerFiles) -> list[int]:
    return [int(due) for _, units in files.log.files() for due in units["due_ms"]]


def saved_ms(root: Path) -> int:
    """What the clock said when the check point was saved."""
    return TimerCheck.parse((root / TIMER_CHECK_FILE).read_bytes()).timestamp


def test_a_delay_is_kept_when_no_writer_has_seen_how_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set twice between two looks of the writer's: `keelog/run/clock` knows of neither."""

    async def at_once(_: TimerRecords) -> None:
        return

    async def early(_: TimerRecords) -> None:
        raise AssertionError("it is delivered early")

    said = TimerMessage(DELAY_MS, ("K",), "")
    monkeypatch.setattr(TimerRecords, "wait_for_log", at_once)
    monkeypatch.setattr(TimerRecords, "refresh", early)
    monkeypatch.setattr(TimerRecords, "queue_offset_of", lambda *_: 0)
    monkeypatch.setattr(TimerRecords, "message_at", lambda *_: said)
    files = files_of(tmp_path, NOON)
    slot_ms = (DUE_MS - 1) // 1000 * 1000
    files.add([WaitingUnit(slot_ms, 1, NOON, PLACE, 100, 7, DUE_MS)], 1)
    files.close()
    at = Moment(NOON, 1_000)

    async def set_twice() -> None:
        nonlocal at
        queue = NoMore()
        link = cast(WriterLink, None)
        deliverer = TimerDeliverer(tmp_path, link, Settings(), queue, now=lambda: at)
        running = asyncio.ensure_future(deliverer.run())
        async with asyncio.timeout(20.0):
            while not queue.pulls:
                await asyncio.sleep(0.01)
            for wall_ms in (NOON + 24 * HOUR_MS, NOON - 3 * HOUR_MS, NOON + 5 * HOUR_MS):
                at = Moment(wall_ms, at.steady_ms)
                while saved_ms(tmp_path) != wall_ms:
                    assert not running.done(), running.exception()
                    await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        deliverer.close()

    asyncio.run(set_twice())
    files = files_of(tmp_path, at.wall_ms)
    assert due_times(files) == [at.wall_ms + DELAY_MS]
    files.close()
