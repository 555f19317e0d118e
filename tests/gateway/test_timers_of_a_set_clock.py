"""Timer messages while the clock is set, without a node: what no writer has seen."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from keelog.client.core import ClientCore
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.system_queue import QueuePage, WaitingQueue
from keelog.gateway.tasks.timer_files import TimerFiles, TimerMessage, WaitingUnit
from keelog.gateway.tasks.timer_records import TimerRecords
from keelog.gateway.tasks.timers import TimerDeliverer
from node.runtime.settings import Settings
from node.runtime.stored_times import ClockHistory, Moment, write_clock
from protocol.derived.file_layouts import WHEEL_SLOTS, TimerCheck
from protocol.names import TIMER_CHECK_FILE
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, pack_record
from protocol.record.properties import encode_properties
from protocol.record.waiting import TIMER_PLACE

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOON = 1_700_000_000_000
DELAY_MS = 40_000
DUE_MS = NOON + DELAY_MS


class NoMore(WaitingQueue):
    """A queue of one message, which has its unit."""

    def __init__(self) -> None:
        super().__init__(cast(ClientCore, None), TIMER_PLACE, 0.0)
        self.pulls = 0

    async def pull(self, offset: int) -> QueuePage:
        self.pulls += 1
        await asyncio.sleep(0.01)
        return QueuePage([], offset, True, 1)

    async def end(self) -> int:
        return 1


class OneMore(NoMore):
    """A queue with another message, which has none yet."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    async def pull(self, offset: int) -> QueuePage:
        await super().pull(offset)
        return QueuePage([self._record] if offset == 1 else [], 2, False, 2)

    async def end(self) -> int:
        return 2


class Waiting:
    """One message that waits for its delay, by a clock that a test sets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.at = Moment(NOON, 1_000)
        slot_ms = (DUE_MS - 1) // 1000 * 1000
        files = self.files()
        files.add([WaitingUnit(slot_ms, 1, NOON, 10, 100, 7, DUE_MS)], 1)
        files.close()

    def files(self) -> TimerFiles:
        return TimerFiles(self.root, lambda _: 0, lambda: self.at.wall_ms)

    def set(self, wall_ms: int) -> None:
        self.at = Moment(wall_ms, self.at.steady_ms)

    def saved_ms(self) -> int:
        """What the clock said when the check point was saved."""
        return TimerCheck.parse((self.root / TIMER_CHECK_FILE).read_bytes()).timestamp

    @asynccontextmanager
    async def delivering(self, queue: NoMore | None = None) -> AsyncIterator[asyncio.Future[None]]:
        queue, link = queue or NoMore(), cast(WriterLink, None)
        deliverer = TimerDeliverer(self.root, link, Settings(), queue, _now=lambda: self.at)
        running = asyncio.ensure_future(deliverer.run())
        async with asyncio.timeout(20.0):
            while not queue.pulls:
                await asyncio.sleep(0.01)
            yield running
        running.cancel()
        await asyncio.wait([running])
        deliverer.close()

    async def is_made_anew(self, running: asyncio.Future[None]) -> None:
        """Returns when the files are of the clock as it is."""
        while self.saved_ms() != self.at.wall_ms:
            assert not running.done(), running.exception()
            await asyncio.sleep(0.01)


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    async def at_once(_: TimerRecords) -> None:
        return

    async def early(_: TimerRecords) -> None:
        raise AssertionError("it is delivered early")

    said = TimerMessage(DELAY_MS, ("K",), "")
    monkeypatch.setattr(TimerRecords, "wait_for_log", at_once)
    monkeypatch.setattr(TimerRecords, "refresh", early)
    monkeypatch.setattr(TimerRecords, "queue_offset_of", lambda *_: 0)
    monkeypatch.setattr(TimerRecords, "message_at", lambda *_: said)
    (tmp_path / "keelog/run").mkdir(parents=True)
    return Waiting(tmp_path)


def test_a_delay_is_kept_when_no_writer_has_seen_how_the_clock_was_set(waiting: Waiting) -> None:
    """It was set twice between two looks of the writer's: `keelog/run/clock` knows of neither."""

    async def set_twice() -> None:
        async with waiting.delivering() as running:
            for wall_ms in (NOON + DAY_MS, NOON - 3 * HOUR_MS, NOON + 5 * HOUR_MS):
                waiting.set(wall_ms)
                await waiting.is_made_anew(running)

    asyncio.run(set_twice())
    files = waiting.files()
    due = [int(due) for _, units in files.log.files() for due in units["due_ms"]]
    assert due == [waiting.at.wall_ms + DELAY_MS]
    files.close()


def test_no_check_point_is_of_a_clock_that_the_writer_has_not_noted(waiting: Waiting) -> None:
    """Else a process that begins later would not know how the clock was set since."""

    async def set_once() -> None:
        write_clock(waiting.root, ClockHistory(waiting.at, ()))
        async with waiting.delivering() as running:
            waiting.set(NOON + DAY_MS)
            await asyncio.sleep(0.3)
            assert waiting.saved_ms() == NOON
            write_clock(waiting.root, ClockHistory(waiting.at, ()))
            await waiting.is_made_anew(running)

    asyncio.run(set_once())


def test_a_check_point_that_is_being_saved_is_saved_before_the_files_are_made_anew(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, save, close = threading.Event(), TimerFiles.save, TimerFiles.close
    under_way: list[TimerCheck] = []

    def slow_save(files: TimerFiles, check: TimerCheck) -> None:
        if threading.current_thread() is threading.main_thread():
            return save(files, check)
        under_way.append(check)
        begun.set()
        time.sleep(0.3)
        save(files, check)
        under_way.clear()

    def close_then(files: TimerFiles, *saved: int) -> None:
        assert not under_way
        close(files, *saved)

    monkeypatch.setattr(TimerFiles, "save", slow_save)
    monkeypatch.setattr(TimerFiles, "close", close_then)

    async def set_meanwhile() -> None:
        async with waiting.delivering() as running:
            waiting.set(NOON + 1_000)
            begun.clear()
            while not begun.is_set():
                await asyncio.sleep(0.01)
            waiting.set(NOON + DAY_MS)
            await waiting.is_made_anew(running)

    asyncio.run(set_meanwhile())


def test_a_message_beyond_the_wheel_holds_up_nobody_after_a_long_stop(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came when the node was back, before what was due meanwhile had left its slot."""
    stopped_ms = 13 * DAY_MS
    waiting.at = Moment(NOON + stopped_ms, 1_000 + stopped_ms)
    far_ms = waiting.at.wall_ms + 36 * HOUR_MS
    assert far_ms > NOON + WHEEL_SLOTS * 1_000
    pairs = [("REAL_TOPIC", "t"), ("TIMER_OUT_MS", str(far_ms))]
    far = decode(pack_record(NewMessage("x", b"x", 0), encode_properties(pairs)), 0)
    assert isinstance(far, Record)

    async def deliver() -> None:
        begun = asyncio.Event()

        async def note(_: TimerRecords) -> None:
            begun.set()
            await asyncio.sleep(60)

        monkeypatch.setattr(TimerRecords, "refresh", note)
        monkeypatch.setattr("keelog.gateway.tasks.timers.STOP_S", 0.0)
        async with waiting.delivering(OneMore(far)):
            await begun.wait()

    asyncio.run(deliver())
