"""The files of timer messages against a plain model, through stops, kills and lost ends."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelog.gateway.tasks.timer_files import GONE, TimerFiles, TimerLog, TimerMessage, WaitingUnit
from keelog.gateway.tasks.timer_records import DueUnit, LoadedSecond
from protocol.derived.file_layouts import (
    NO_TIMER_UNIT,
    TIMER_BLANK_BYTES,
    TIMER_CHECK_FILE_BYTES,
    TIMER_DELETE,
    TIMER_ROLL,
    TIMER_UNIT_BYTES,
    WHEEL_BYTES,
    WHEEL_SLOTS,
    TimerCheck,
    timer_units_of_file,
)

START = 1_700_000_000
FILE_BYTES = 5 * TIMER_UNIT_BYTES + TIMER_BLANK_BYTES + 7
"""Five units, a blank, and what is no unit."""


class Waiting:
    """The model: the units of each second, by their messages."""

    def __init__(self) -> None:
        self.units: list[tuple[int, int, int]] = []
        """Second, magic, log offset."""
        self.read = START

    def of(self, second: int) -> list[int]:
        return [place for when, _, place in self.units if when == second]

    @property
    def pending(self) -> int:
        waiting = [magic for when, magic, _ in self.units if when >= self.read]
        return sum(-1 if magic & TIMER_DELETE else 1 for magic in waiting)


def unit(second: int, magic: int, place: int) -> WaitingUnit:
    return WaitingUnit(
        slot_ms=second * 1000, magic=magic, written_ms=START * 1000, physical_offset=place,
        record_bytes=100, topic_hash=7, due_ms=second * 1000 + 1 + place % 1000,
    )  # fmt: skip


def chain_of(files: TimerFiles, second: int) -> list[int]:
    """The log offsets of a second, first to last."""
    last, positions = files.last_of(second), []
    while last != NO_TIMER_UNIT:
        more, last = files.log.chain(last, 2)
        positions += more
    units = files.log.gather(np.array(positions[::-1], np.int64))
    return [int(place) for place in units["physical_offset"]]


class Files:
    """The files under test, opened again and again. A message's log offset is 10 x its number."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stored = 10**9
        self.second = START
        self.open()

    def open(self) -> None:
        self.files = TimerFiles(self.root, self._is_stored, lambda: self.second * 1000, FILE_BYTES)

    def _is_stored(self, place: int) -> int | None:
        return place // 10 if place < self.stored else None


STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=9)),
    st.tuples(st.just("pass"), st.integers(0, 4)),
    st.tuples(st.just("save"), st.none()),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=12))
def test_the_files_say_what_waits_after_any_history(
    steps: list[tuple[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    real, model = Files(tmp_path_factory.mktemp("timers")), Waiting()
    saved = START
    for step, value in steps:
        files = real.files
        if step == "add":
            assert isinstance(value, list)
            first = len(model.units)
            new = [
                (model.read + ahead, 1 | TIMER_DELETE * taken_back, 10 * (first + row))
                for row, (ahead, taken_back) in enumerate(value)
            ]
            files.add([unit(*one) for one in new], first + len(new))
            model.units += new
        elif step == "pass":
            assert isinstance(value, int)
            model.read += value
            files.pass_to(model.read)
        elif step == "save":
            check = files.check_now()
            if check is not None:
                files.save(check)
            saved = model.read
        else:
            if step == "stop":
                files.close()
                saved = model.read
            real.second = saved
            real.open()
            model.read = saved
        check_same(real.files, model)


def check_same(files: TimerFiles, model: Waiting) -> None:
    assert files.queue_offset == len(model.units)
    assert files.read_second == model.read
    assert files.pending == max(0, model.pending)
    ahead = range(model.read, model.read + 12)
    for second in ahead:
        assert chain_of(files, second) == model.of(second)
    seconds = sorted({when for when, _, _ in model.units if when in ahead})
    assert files.next_second(model.read, model.read + 12) == next(iter(seconds), None)


def test_units_whose_messages_a_power_loss_took_are_cut_off(tmp_path: Path) -> None:
    real = Files(tmp_path)
    real.files.add([unit(START + 5, 1, 10 * row) for row in range(13)], 13)
    real.files.close()
    real.stored = 70
    real.open()
    assert real.files.queue_offset == 7
    assert chain_of(real.files, START + 5) == [10 * row for row in range(7)]
    real.files.add([unit(START + 5, 1, 70)], 8)
    real.stored = 10**9
    real.open()
    assert chain_of(real.files, START + 5) == [10 * row for row in range(8)]


def test_a_message_that_retention_took_ends_no_log(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path, lambda _: GONE, lambda: START * 1000, FILE_BYTES)
    files.add([unit(START + 5, 1, 10 * row) for row in range(3)], 9)
    files.close()
    files = TimerFiles(tmp_path, lambda _: GONE, lambda: START * 1000, FILE_BYTES)
    assert (files.queue_offset, files.pending) == (9, 3)


def test_without_its_log_the_queue_is_read_again_and_what_is_delivered_is_known(
    tmp_path: Path,
) -> None:
    real = Files(tmp_path)
    real.files.add([unit(START + row, 1, 10 * row) for row in range(9)], 9)
    real.files.pass_to(START + 4)
    real.files.close()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    (tmp_path / "timerwheel").unlink()
    real.open()
    files = real.files
    assert (files.queue_offset, files.known_below, files.read_second) == (0, 9, START + 4)
    files.add([unit(START + 4, 1, 40)], 5)
    assert files.check_now() is None, "a crash begins again"
    files.add([unit(START + row, 1, 10 * row) for row in range(5, 9)], 9)
    check = files.check_now()
    assert check is not None
    assert (check.queue_offset, check.read_ms) == (9, (START + 4) * 1000)


def test_files_go_with_their_messages(tmp_path: Path) -> None:
    real = Files(tmp_path)
    real.files.add([unit(START + 5, 1, 10 * row) for row in range(13)], 13)
    folder = tmp_path / "timerlog"
    assert len(list(folder.iterdir())) == 3
    real.files.log.remove_before(41)
    assert [int(path.name) for path in sorted(folder.iterdir())] == [FILE_BYTES, 2 * FILE_BYTES]
    assert all(path.stat().st_size == FILE_BYTES for path in folder.iterdir())
    assert chain_of(real.files, START + 5) == [10 * row for row in range(5, 13)]
    real.files.close()
    real.open()
    assert chain_of(real.files, START + 5) == [10 * row for row in range(5, 13)]


def test_an_overdue_slot_is_not_given_away(tmp_path: Path) -> None:
    files = Files(tmp_path).files
    last = START + WHEEL_SLOTS - 1
    for second, wanted in (
        (last, (last, 1)), (last + 1, (last, 1 | TIMER_ROLL)), (START - 5, (START, 1)),
    ):  # fmt: skip
        found = files.within(unit(second, 1, 0))
        assert (found.second, found.magic) == wanted
    files.pass_to(START + 1)
    assert files.within(unit(last + 1, 1, 0)) == unit(last + 1, 1, 0)


def test_the_files_have_rocketmqs_sizes_and_bytes(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path, lambda place: place, lambda: START * 1000)
    files.add([unit(START + 5, 1, 0), unit(START + 5, 1 | TIMER_DELETE, 100)], 2)
    files.close()
    (log,) = (tmp_path / "timerlog").iterdir()
    assert (log.name, log.stat().st_size) == ("0" * 20, 104_857_600)
    with log.open("rb") as file:
        units = file.read(3 * TIMER_UNIT_BYTES)
    fields = (52, -1, 1, START * 1000, 5000, 0, 100, 7, (START + 5) * 1000 + 1)
    sizes = (4, 8, 4, 8, 4, 8, 4, 4, 8)
    wanted = b"".join(
        value.to_bytes(size, "big", signed=True) for value, size in zip(fields, sizes, strict=True)
    )
    assert units[:TIMER_UNIT_BYTES] == wanted
    assert units[TIMER_UNIT_BYTES : TIMER_UNIT_BYTES + 16] == bytes.fromhex(
        "00000034 0000000000000000 00000005"
    )
    assert not any(units[2 * TIMER_UNIT_BYTES :])
    wheel = (tmp_path / "timerwheel").read_bytes()
    assert len(wheel) == WHEEL_BYTES == 38_707_200
    slot = wheel[(START + 5) % WHEEL_SLOTS * 32 :][:32]
    assert slot == b"".join(value.to_bytes(8, "big") for value in (START + 5, 0, 52)) + bytes(
        8
    )  # a message, and one that takes it back: 0
    check = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(check) == TIMER_CHECK_FILE_BYTES
    assert TimerCheck.parse(check)[:4] == (START * 1000, 104, 2, 2)


def test_a_log_ends_at_the_first_bytes_that_are_no_unit(tmp_path: Path) -> None:
    folder = tmp_path / "timerlog"
    files = TimerFiles(tmp_path, lambda place: place, lambda: START * 1000, FILE_BYTES)
    files.add([unit(START + 5, 1, row) for row in range(7)], 7)
    files.close()
    (first, second) = sorted(folder.iterdir())
    data = bytearray(first.read_bytes())
    data[3 * TIMER_UNIT_BYTES + 3] = 51
    first.write_bytes(data)
    log = TimerLog(folder, FILE_BYTES)
    assert log.end == 3 * TIMER_UNIT_BYTES
    assert not second.exists()
    assert timer_units_of_file(FILE_BYTES) == 5
    assert log.positions(3).tolist() == [3 * TIMER_UNIT_BYTES, 4 * TIMER_UNIT_BYTES, FILE_BYTES]


def test_a_loaded_second_gives_out_what_is_due_in_order(tmp_path: Path) -> None:
    files = Files(tmp_path).files
    rows = [unit(START, 1, place) for place in (900, 100, 500)]
    rows += [unit(START, 1 | TIMER_DELETE, 300), unit(START, 1, 501)._replace(due_ms=0)]
    positions = files.add(rows, 5)
    loaded = LoadedSecond(START)
    assert loaded.load(positions, files.log.gather(positions)) == [300]
    assert (len(loaded), loaded.next_ms()) == (4, START * 1000 + 101)
    loaded.add(DueUnit(START * 1000 + 50, 999, 50, 0, 1))
    assert loaded.next_ms() == START * 1000 + 50
    assert loaded.take(START * 1000 + 49, 9) == []
    taken = loaded.take(START * 1000 + 501, 9)
    assert sorted(one.physical_offset for one in taken) == [50, 100, 500]
    assert not loaded.is_done
    assert [one.physical_offset for one in loaded.take(START * 1000 + 999, 9)] == [900]
    assert [one.physical_offset for one in loaded.take((START + 1) * 1000, 9)] == [501]
    assert loaded.first_ms() == START * 1000 + 50
    loaded.delivered(taken)
    assert loaded.first_ms() == START * 1000 + 901
    loaded.delivered([DueUnit(START * 1000 + 901, 0, 900, 0, 1)])
    loaded.delivered([DueUnit((START + 1) * 1000, 0, 501, 0, 1)])
    assert loaded.is_done
    assert loaded.first_ms() is None
    again = LoadedSecond(START)
    again.load(positions, files.log.gather(positions), START * 1000 + 501, int(positions[2]))
    assert [one.physical_offset for one in again.take((START + 1) * 1000, 9)] == [500, 900, 501]


class Clocked:
    """Files of a clock that a test sets, with messages that ask for delays."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.second = START
        self.set_by_ms = 0
        self.said: dict[int, TimerMessage] = {}
        self.open()

    def open(self) -> None:
        self.files = TimerFiles(
            self.root, lambda place: place // 10, lambda: self.second * 1000, FILE_BYTES,
            message_at=self.said.get, set_since=lambda _: self.set_by_ms,
        )  # fmt: skip

    def restart(self, second: int, delivered_ms: int) -> None:
        self.files.close(delivered_ms)
        self.second = second
        self.open()


def test_after_a_clock_that_was_ahead_nothing_is_early_and_nothing_comes_again(
    tmp_path: Path,
) -> None:
    real = Clocked(tmp_path)
    ahead = real.second = START + 86_400
    real.files.add([unit(ahead + row, 1, 10 * row) for row in range(20)], 20)
    real.files.pass_to(ahead + 5)
    real.restart(START + 60, (ahead + 7) * 1000 + 500)
    files = real.files
    assert (files.read_second, files.queue_offset, files.pending) == (START + 60, 20, 12)
    assert [chain_of(files, ahead + row) for row in (5, 7, 8, 19)] == [[], [], [80], [190]]
    again = files.check_now(0)
    assert again is None, "it is saved"
    real.restart(START + 61, 0)
    assert (real.files.read_second, real.files.pending) == (START + 60, 12)


def test_a_delay_that_a_clock_ahead_began_counts_from_now_and_its_recall_follows(
    tmp_path: Path,
) -> None:
    real = Clocked(tmp_path)
    ahead = real.second = START + 86_400
    real.files.add(
        [unit(ahead + 30, 1, 0), unit(ahead + 30, 1, 10), unit(ahead + 30, 1 | TIMER_DELETE, 20)], 3
    )
    real.files.pass_to(ahead)
    real.said = {
        0: TimerMessage(30_000, ("K", "t+K"), ""),
        10: TimerMessage(None, ("A",), ""),
        20: TimerMessage(None, ("K",), "t+K"),
    }
    real.restart(START, ahead * 1000)
    assert chain_of(real.files, START + 29) == [0, 20]
    assert chain_of(real.files, ahead + 30) == [10]
    assert real.files.moved == {"K": START + 29, "t+K": START + 29}


def test_units_of_a_broker_wait_until_their_second_ends_when_the_clock_is_set(
    tmp_path: Path,
) -> None:
    """A broker writes no time into them but the second."""
    real = Clocked(tmp_path)
    begin = real.second = START + 86_400
    real.files.add([unit(begin + 30, 1, place)._replace(due_ms=0) for place in (0, 10)], 2)
    real.said = {0: TimerMessage(40_000, ("K",), ""), 10: TimerMessage(None, ("A",), "")}
    real.set_by_ms = 3_600_000
    real.restart(begin + 3605, 0)
    later = begin + 3630
    assert chain_of(real.files, later) == [0]
    assert chain_of(real.files, begin + 3605) == [], "nothing is due at once"
    assert chain_of(real.files, begin + 30) == [10]
    positions = [real.files.last_of(second) for second in (later, begin + 30)]
    due = [int(real.files.log.unit_at(position)["due_ms"]) for position in positions]
    assert due == [(later + 1) * 1000, (begin + 31) * 1000]


def test_a_kill_while_the_files_are_made_anew_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Clocked(tmp_path)
    real.second = START + 86_400
    real.files.add([unit(real.second + 9, 1, 10 * row) for row in range(15)], 15)
    real.files.pass_to(real.second)
    real.files.close()
    real.second = START

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TimerFiles, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            real.open()
    real.open()
    assert (real.files.queue_offset, real.files.known_below) == (0, 15), "the queue is read again"
    assert real.files.read_second == START


def test_units_that_are_farther_away_than_the_wheel_reaches_wait_on(tmp_path: Path) -> None:
    real = Clocked(tmp_path)
    far = real.second = START + 3 * WHEEL_SLOTS
    real.files.read_second = far
    real.files.add([unit(far + 5, 1, 0)._replace(written_ms=far * 1000)], 1)
    real.restart(START, 0)
    last = START + WHEEL_SLOTS - 1
    assert chain_of(real.files, last) == [0]
    assert real.files.log.unit_at(0)["magic"] == 1 | TIMER_ROLL


def test_a_check_point_beyond_its_queue_is_lowered(tmp_path: Path) -> None:
    """The power was lost: the log has 7 of 13 messages, and the units of all."""
    real = Files(tmp_path)
    real.files.add([unit(START + 5, 1, 10 * row) for row in range(13)], 13)
    real.files.close()
    lost = 70

    def opened(queue_end: int | None) -> TimerFiles:
        stored = {place: place // 10 for place in range(0, lost, 10)}
        return TimerFiles(
            tmp_path, stored.get, lambda: START * 1000, FILE_BYTES, queue_end=queue_end
        )

    for queue_end in (7, None):
        files = opened(queue_end)
        assert (files.queue_offset, files.known_below, files.pending) == (7, 0, 7)
        files.close()


@pytest.mark.parametrize("hours", [24, -24])
def test_when_the_clock_is_set_delays_move_and_times_do_not(tmp_path: Path, hours: int) -> None:
    real = Clocked(tmp_path)
    begin = real.second = START + 86_400
    real.files.add([unit(begin + 30, 1, 0), unit(begin + 30, 1, 10)], 2)
    real.said = {0: TimerMessage(40_000, ("K",), ""), 10: TimerMessage(None, ("A",), "")}
    real.set_by_ms = hours * 3_600_000
    real.restart(begin + 5 + hours * 3600, (begin + 5) * 1000)
    assert chain_of(real.files, begin + 30 + hours * 3600) == [0]
    assert chain_of(real.files, begin + 30) == [10]
    assert real.files.moved == {"K": begin + 30 + hours * 3600}
    assert real.files.read_second <= begin + 5


def test_what_is_overdue_when_the_clock_is_set_is_not_taken_for_delivered(tmp_path: Path) -> None:
    real = Clocked(tmp_path)
    begin = real.second = START + 86_400
    real.files.pass_to(begin)
    real.files.add([unit(begin + 1, 1, 0)], 1)
    real.said = {0: TimerMessage(2_000, ("K",), "")}
    real.set_by_ms = -86_400_000
    real.restart(START + 5, begin * 1000)
    assert chain_of(real.files, START + 5) == [0]
    real.set_by_ms = 3_600_000
    real.restart(START + 5 + 3600, (START + 5) * 1000 - 1)
    assert real.files.pending == 1
