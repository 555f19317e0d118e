"""What retention deletes and when it refuses appends: clock, ages and disk are given."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.runtime.settings import Settings, load_settings
from node.runtime.shortage import DiskUse, room_below, used_percent
from node.writer.log.retention import (
    LOOK_EVERY_S,
    Clock,
    Retention,
    SegmentFile,
    Spared,
    Verdict,
    expired,
    judge,
    staging_ratio,
)
from protocol.errors import BadRequest, ServiceNotAvailable
from protocol.names import COMMIT_LOG_DIR, offset_file_name

SEGMENT_BYTES = 1000
HOUR_S = 3600.0
NOW_S = 1_800_000_000.0
ALL = Spared(10**9, 10**9, 10**9)
DEFAULTS = Settings()


def segments(*ages_h: float) -> list[SegmentFile]:
    """Segments of these ages, the oldest first."""
    return [
        SegmentFile(n * SEGMENT_BYTES, (n + 1) * SEGMENT_BYTES, NOW_S - age * HOUR_S)
        for n, age in enumerate(ages_h)
    ]


@pytest.mark.parametrize(
    ("percent", "hour", "is_full", "may_delete", "at_once"),
    [
        (10, 3, False, False, False),
        (10, 4, False, True, False),  # delete_when is 04: the whole hour
        (75, 3, False, False, False),
        (76, 3, False, True, False),
        (85, 3, False, True, False),
        (86, 3, False, True, True),
        (90, 3, False, True, True),
        (91, 3, True, True, True),
    ],
)
def test_the_default_ratios_decide_as_a_broker_does(
    percent: int, hour: int, is_full: bool, may_delete: bool, at_once: bool
) -> None:
    for use in (DiskUse(percent, 0), DiskUse(0, percent)):
        verdict = judge(use, hour, DEFAULTS)
        assert (bool(verdict.refused), verdict.may_delete, verdict.at_once) == (
            is_full,
            may_delete,
            at_once,
        )


def test_the_configured_ratios_are_the_ones_that_count() -> None:
    wide = load_settings(
        ["diskSpaceWarningLevelRatio=99", "diskSpaceCleanForciblyRatio=98", "deleteWhen=05;23"]
    )
    assert not judge(DiskUse(98, 98), 4, wide).at_once
    assert judge(DiskUse(99, 0), 4, wide).at_once
    assert not judge(DiskUse(99, 0), 4, wide).refused
    assert judge(DiskUse(100, 0), 4, wide).refused
    assert [hour for hour in range(24) if judge(DiskUse(0, 0), hour, wide).may_delete] == [5, 23]
    narrow = load_settings(["disk_space_warning_level_ratio=20"])
    assert judge(DiskUse(21, 0), 0, narrow).refused
    assert judge(DiskUse(21, 0), 0, narrow).at_once, "who refuses appends makes room"


def test_nothing_goes_before_its_time_when_that_is_not_allowed() -> None:
    gentle = load_settings(["cleanFileForciblyEnable=false"])
    verdict = judge(DiskUse(95, 0), 0, gentle)
    assert verdict.refused
    assert expired(segments(80, 71, 1), verdict, ALL, NOW_S, gentle) == segments(80, 71, 1)[:1]


def test_old_segments_go_up_to_the_first_that_stays() -> None:
    verdict = judge(DiskUse(0, 0), 4, DEFAULTS)
    files = segments(100, 72, 71.99, 90, 1)
    assert expired(files, verdict, ALL, NOW_S, DEFAULTS) == files[:2]


def test_the_last_segment_stays_and_a_round_has_a_limit() -> None:
    verdict = judge(DiskUse(100, 0), 0, DEFAULTS)
    assert len(expired(segments(*[100] * 6), verdict, ALL, NOW_S, DEFAULTS)) == 5
    assert len(expired(segments(*[100] * 50), verdict, ALL, NOW_S, DEFAULTS)) == 10
    assert expired(segments(1000), verdict, ALL, NOW_S, DEFAULTS) == []


def in_rounds(files: list[SegmentFile], verdict: Verdict, settings: Settings) -> list[SegmentFile]:
    """All that go by force, in rounds of which each takes one."""
    gone: list[SegmentFile] = []
    while found := expired(files[len(gone) :], verdict, ALL, NOW_S, settings):
        assert len(found) == 1
        gone += found
    return gone


def test_by_force_one_segment_goes_in_a_round_after_those_past_their_time() -> None:
    verdict = judge(DiskUse(100, 0), 0, DEFAULTS)
    files = segments(100, 90, 50, 40, 30, 0)
    assert expired(files, verdict, ALL, NOW_S, DEFAULTS) == files[:3]
    assert expired(files[3:], verdict, ALL, NOW_S, DEFAULTS) == files[3:4]


def test_what_is_younger_than_the_forced_reserve_stays_on_the_fullest_disk() -> None:
    verdict = judge(DiskUse(100, 0), 0, DEFAULTS)
    files = segments(3, 1, 0.99, 0.5, 0.1)
    assert in_rounds(files, verdict, DEFAULTS) == files[:2]
    brief = load_settings(["fileForcedReservedMinutes=30"])
    assert in_rounds(files, verdict, brief) == files[:4]
    as_a_broker = load_settings(["file_forced_reserved_minutes=0"])
    assert in_rounds(segments(0, -1, 0), verdict, as_a_broker) == segments(0, -1)
    late = load_settings(["file_forced_reserved_minutes=6000"])
    assert expired(segments(80, 60, 0), verdict, ALL, NOW_S, late) == segments(80)


def test_segments_of_a_clock_that_was_ahead_are_as_old_as_the_next_one(tmp_path: Path) -> None:
    (tmp_path / COMMIT_LOG_DIR).mkdir()
    for one in segments(9, -500, 8, 3, 0):
        path = tmp_path / COMMIT_LOG_DIR / offset_file_name(one.start)
        path.write_bytes(b"")
        os.utime(path, (one.modified_s, one.modified_s))
    retention = Retention(tmp_path, SEGMENT_BYTES, DEFAULTS)
    assert retention.written_before(NOW_S - 5 * HOUR_S) == 3 * SEGMENT_BYTES
    assert retention.written_before(NOW_S - 10 * HOUR_S) == 0
    assert retention.written_before(NOW_S + HOUR_S) == 4 * SEGMENT_BYTES, "the last one stays"


def test_a_segment_is_not_younger_than_the_one_that_follows_it() -> None:
    verdict = judge(DiskUse(100, 0), 0, DEFAULTS)
    ahead = segments(-10_000, -9_000, 2, 1.5, 0)
    assert in_rounds(ahead, verdict, DEFAULTS) == ahead[:4]
    assert expired(segments(-10_000, -9_000, 0), verdict, ALL, NOW_S, DEFAULTS) == []


def test_no_segment_goes_while_abandoned_batches_may_still_go(tmp_path: Path) -> None:
    made(tmp_path, 3, age_h=100)
    retention = Retention(tmp_path, SEGMENT_BYTES, DEFAULTS, at(0), use=lambda: DiskUse(86, 0))
    answers = [True, True, False]
    retention.make_room = lambda _now: answers.pop(0)
    assert retention.turn(0.0, lambda: ALL) == []
    assert retention.turn(20.0, lambda: ALL) == []
    assert len(retention.turn(40.0, lambda: ALL)) == 2
    assert answers == []


@pytest.mark.parametrize(
    ("settings", "percent"),
    [
        ([], 85),
        (["disk_space_warning_level_ratio=80"], 80),
        (["clean_file_forcibly_enable=false"], 90),
    ],
)
def test_room_is_needed_from_where_messages_would_pay(settings: list[str], percent: int) -> None:
    given = load_settings(settings)
    assert staging_ratio(given) == percent
    for use in range(101):
        verdict = judge(DiskUse(use, 0), 0, given)
        assert verdict.needs_room == (use > percent)
        assert not verdict.at_once or verdict.needs_room


def test_the_room_below_a_ratio_ends_where_the_used_part_goes_over_it(tmp_path: Path) -> None:
    used = used_percent(tmp_path)
    assert room_below(tmp_path, used) >= 0
    assert room_below(tmp_path, used - 1) <= 0
    space = os.statvfs(tmp_path)
    assert abs(room_below(tmp_path, 100) - space.f_bavail * space.f_frsize) < 2**30


def test_a_slow_worker_is_waited_for_until_the_disk_is_above_the_forced_ratio() -> None:
    files = segments(100, 100, 100, 100)
    slow = ALL._replace(needed=3 * SEGMENT_BYTES, followed=SEGMENT_BYTES + 1)
    by_time, forced = judge(DiskUse(0, 0), 4, DEFAULTS), judge(DiskUse(86, 0), 0, DEFAULTS)
    assert expired(files, by_time, slow, NOW_S, DEFAULTS) == files[:1]
    assert expired(files, forced, slow, NOW_S, DEFAULTS) == files[:3]


def test_a_topic_that_keeps_its_messages_for_longer_keeps_segments_until_the_disk_fills() -> None:
    files = segments(100, 100, 100, 100)
    kept = ALL._replace(reserved=2 * SEGMENT_BYTES)
    by_time, forced = judge(DiskUse(0, 0), 4, DEFAULTS), judge(DiskUse(86, 0), 0, DEFAULTS)
    assert expired(files, by_time, kept, NOW_S, DEFAULTS) == files[:2]
    assert expired(files, forced, kept, NOW_S, DEFAULTS) == files[:3]
    sized = load_settings([f"retention_bytes={SEGMENT_BYTES}"])
    assert expired(files, by_time, kept, NOW_S, sized) == files[:3]


@given(
    ages=st.lists(st.floats(0, 200), max_size=30),
    needed=st.integers(0, 31_000),
    followed=st.integers(0, 31_000),
    reserved=st.integers(0, 31_000),
    percent=st.integers(0, 100),
    hour=st.integers(0, 23),
)
def test_what_goes_is_always_a_beginning_that_nobody_needs(
    ages: list[float], needed: int, followed: int, reserved: int, percent: int, hour: int
) -> None:
    files, verdict = segments(*ages), judge(DiskUse(percent, 0), hour, DEFAULTS)
    gone = expired(files, verdict, Spared(needed, followed, reserved), NOW_S, DEFAULTS)
    assert gone == files[: len(gone)]
    assert len(gone) <= min(max(len(files) - 1, 0), DEFAULTS.delete_file_batch_max)
    assert all(file.end <= needed for file in gone)
    hours = [max(ages[n:]) for n in range(len(gone))]
    assert all(age >= 1 for age in hours), "younger than an hour"
    if not verdict.at_once:
        assert all(file.end <= min(followed, reserved) for file in gone)
        assert all(NOW_S - file.modified_s >= 72 * HOUR_S for file in gone)
    if not verdict.may_delete:
        assert gone == []


def test_a_clock_set_forward_makes_nothing_older_and_one_set_back_nothing_younger() -> None:
    wall, monotonic = [1000.0], [50.0]
    clock = Clock(lambda: wall[0], lambda: monotonic[0])
    assert clock.now_s() == 1000.0
    wall[0], monotonic[0] = 1000.0 + 2 * 86_400, 60.0
    assert clock.now_s() == 1010.0
    wall[0], monotonic[0] = 1000.0 - HOUR_S, 70.0
    assert clock.now_s() == 1000.0 - HOUR_S


@pytest.mark.parametrize("text", ["", "24", "4,5", "x", "04;", "4;4"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="delete_when"):
        load_settings([f"delete_when={text}"])


def test_a_ratio_above_a_hundred_is_refused() -> None:
    with pytest.raises(BadRequest, match="disk_max_used_space_ratio"):
        load_settings(["diskMaxUsedSpaceRatio=101"])


def made(root: Path, count: int, age_h: float) -> list[Path]:
    folder = root / COMMIT_LOG_DIR
    folder.mkdir()
    paths = [folder / offset_file_name(n * SEGMENT_BYTES) for n in range(count)]
    for path in paths:
        path.write_bytes(bytes(SEGMENT_BYTES))
        os.utime(path, (NOW_S - age_h * HOUR_S,) * 2)
    return paths


def at(hour: int) -> Clock:
    clock = Clock(lambda: NOW_S, lambda: 0.0)
    clock.hour = lambda: hour  # type: ignore[method-assign]
    return clock


def test_a_round_deletes_files_and_the_next_waits_for_its_interval(tmp_path: Path) -> None:
    paths = made(tmp_path, 13, age_h=100)
    settings = load_settings(["delete_commit_log_files_interval=1"])
    retention = Retention(tmp_path, SEGMENT_BYTES, settings, at(4), use=lambda: DiskUse(0, 0))
    found = retention.turn(100.0, lambda: ALL)
    retention.delete(found)
    retention.close()
    assert [path.exists() for path in paths] == [False] * 10 + [True] * 3
    assert retention.turn(100.0 + 2 * LOOK_EVERY_S, lambda: ALL) == []
    retention.delete(retention.turn(111.0, lambda: ALL))
    retention.close()
    assert [path.exists() for path in paths] == [False] * 12 + [True]


def test_appends_are_refused_while_the_disk_is_too_full_and_resume_by_themselves(
    tmp_path: Path,
) -> None:
    made(tmp_path, 1, age_h=1)
    percent = [91]
    retention = Retention(
        tmp_path, SEGMENT_BYTES, DEFAULTS, at(0), use=lambda: DiskUse(percent[0], 0)
    )
    retention.check_room()
    retention.turn(0.0, lambda: ALL)
    with pytest.raises(ServiceNotAvailable, match="disk_full: the disk is 91 % full"):
        retention.check_room()
    percent[0] = 90
    retention.turn(0.5, lambda: ALL)
    with pytest.raises(ServiceNotAvailable):
        retention.check_room()
    retention.turn(0.5 + LOOK_EVERY_S, lambda: ALL)
    retention.check_room()


def looks(retention: Retention, times: range) -> dict[int, list[int]]:
    """At which second which segments went."""
    found: dict[int, list[int]] = {}
    for second in times:
        gone = retention.turn(float(second), lambda: ALL)
        if gone:
            found[second] = [segment.start for segment in gone]
            retention.delete(gone)
            retention.close()
    return found


def test_a_start_warns_before_segments_go_before_their_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, 5, age_h=10)
    retention = Retention(tmp_path, SEGMENT_BYTES, DEFAULTS, at(0), use=lambda: DiskUse(86, 0))
    assert looks(retention, range(1000, 1060)) == {}
    (warned,) = [one for one in caplog.records if "before their time" in one.message]
    said = str(warned.__dict__)
    for part in ("'end': 1000", "'in_s': 60", "86 % full", "clean_file_forcibly_enable=false"):
        assert part in said
    assert looks(retention, range(1060, 1100)) == {
        1060: [0],
        1070: [1000],
        1080: [2000],
        1090: [3000],
    }


def test_no_more_goes_by_force_than_the_disk_needs(tmp_path: Path) -> None:
    made(tmp_path, 9, age_h=10)
    settings = load_settings(["file_forced_warning_seconds=0"])

    def use() -> DiskUse:
        return DiskUse(80 + len(list((tmp_path / COMMIT_LOG_DIR).iterdir())), 0)

    retention = Retention(tmp_path, SEGMENT_BYTES, settings, at(0), use=use)
    assert looks(retention, range(100)) == {0: [0], 10: [1000], 20: [2000], 30: [3000]}
    assert use().log_percent == 85


def test_while_appends_are_refused_the_next_one_goes_after_the_next_look(tmp_path: Path) -> None:
    made(tmp_path, 9, age_h=10)
    settings = load_settings(["file_forced_warning_seconds=0"])

    def use() -> DiskUse:
        return DiskUse(84 + len(list((tmp_path / COMMIT_LOG_DIR).iterdir())), 0)

    retention = Retention(tmp_path, SEGMENT_BYTES, settings, at(0), use=use)
    assert looks(retention, range(6)) == {0: [0], 1: [1000], 2: [2000], 3: [3000]}
    retention.check_room()


def test_what_is_past_its_time_goes_without_a_warning(tmp_path: Path) -> None:
    made(tmp_path, 5, age_h=100)
    retention = Retention(tmp_path, SEGMENT_BYTES, DEFAULTS, at(0), use=lambda: DiskUse(86, 0))
    assert looks(retention, range(3)) == {0: [0, 1000, 2000, 3000]}


def test_the_log_is_held_to_its_size_at_any_hour_and_age(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, 8, age_h=0)
    settings = load_settings([f"store.retention_bytes={3 * SEGMENT_BYTES + 1}"])
    retention = Retention(tmp_path, SEGMENT_BYTES, settings, at(0), use=lambda: DiskUse(1, 0))
    assert looks(retention, range(30)) == {0: [0, 1000, 2000, 3000, 4000]}
    assert "retention_bytes, 3001" in str(caplog.records[-1].__dict__)


@pytest.mark.parametrize(
    ("size", "gone"), [(0, 0), (1, 3), (1000, 3), (2000, 2), (3999, 1), (4000, 0)]
)
def test_a_log_of_its_size_stays_and_so_do_the_last_segment_and_what_is_needed(
    size: int, gone: int
) -> None:
    files, idle = segments(0, 0, 0, 0), judge(DiskUse(0, 0), 0, DEFAULTS)
    settings = load_settings([f"retention_bytes={size}"])
    assert len(expired(files, idle, ALL, NOW_S, settings)) == gone
    slow = ALL._replace(followed=1000)
    assert len(expired(files, idle, slow, NOW_S, settings)) == min(gone, 1)


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "keeps 72 h"),
        (["file_reserved_time=48", f"retention_bytes={10 << 30}"], "keeps 48 h, at most 10 GiB"),
        ([f"retention_bytes={3 << 19}"], "keeps 72 h, at most 1.5 MiB"),
        (["retention_bytes=100"], "keeps 72 h, at most 100 B"),
    ],
)
def test_the_settings_say_how_long_messages_are_kept(pairs: list[str], text: str) -> None:
    assert load_settings(pairs).kept == text


def test_a_file_that_cannot_be_deleted_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = made(tmp_path, 2, age_h=100)
    settings = load_settings(["delete_commit_log_files_interval=1"])
    retention = Retention(tmp_path, SEGMENT_BYTES, settings, at(4), use=lambda: DiskUse(0, 0))

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("node.runtime.disk.unlink", refuse)
        retention.delete(retention.turn(0.0, lambda: ALL))
        retention.close()
    assert "cannot be deleted" in caplog.text
    retention.delete(retention.turn(20.0, lambda: ALL))
    retention.close()
    assert [path.exists() for path in paths] == [False, True]


def test_the_used_part_of_a_disk_is_what_df_says(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    used = space.f_blocks - space.f_bfree
    percent = 100 * used / (used + space.f_bavail)
    assert percent <= used_percent(tmp_path) < percent + 1.5


def test_a_verdict_without_a_reason_to_delete_deletes_nothing() -> None:
    idle = Verdict(refused="", may_delete=False, at_once=False, needs_room=False, why="")
    assert expired(segments(1000, 1000), idle, ALL, NOW_S, DEFAULTS) == []
