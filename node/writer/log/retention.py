"""Which old segments go, and when the disk is too full to take more.

RocketMQ's rules (DefaultMessageStore.CleanCommitLogService), with these differences. The configured
ratios are really used: a broker clamps them. A segment younger than `file_forced_reserved_minutes`
stays however full the disk is: a broker deletes it. By force one segment goes in a round, and none
in the first `file_forced_warning_seconds` of a writer: a broker deletes ten at once.
`retention_bytes` bounds the whole log, and topics may be kept for longer than `file_reserved_time`:
a broker has neither. `judge` and `expired` decide, purely; `Retention` looks and unlinks. Segments
are unlinked and never truncated: a process that maps one goes on reading it.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import DiskUse, forced_ratio, refusal_at, use_of
from protocol.errors import ServiceNotAvailable, StoreMoved
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from protocol.names import parse_offset_file_name as parse_name

log = logging.getLogger("keelog.retention")

LOOK_EVERY_S = 1.0
"""How often the disk is looked at, and how soon appends resume after space came back."""
_MINUTE_S = 60.0
_HOUR_S = 3600.0


class SegmentFile(NamedTuple):
    """A segment on disk: its first offset, the one after it, and when it was last written."""

    start: int
    end: int
    modified_s: float


class Spared(NamedTuple):
    """Log offsets that retention spares: a segment that ends above one of them stays.

    Below `needed` the log is flushed, not written any more, and a saved snapshot has the queues'
    ends. Below `followed` every worker has read it; above the forced ratio only `needed` counts.
    Below `reserved` no topic of a longer retention has a message that is not past it; that counts
    for segments that go by age.
    """

    needed: int
    followed: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision from clock and disk.

    `refused`: why appends are refused; empty while they are taken.
    `at_once`: segments go at the age of `file_forced_reserved_minutes`.
    `needs_room`: abandoned staged batches go, before any segment does.
    """

    refused: str
    may_delete: bool
    at_once: bool
    needs_room: bool
    why: str


def staging_ratio(settings: Settings) -> int:
    """Percent of the disk that staged batches may fill: above it messages would pay for them.

    Segments go by force above it, or, where that is not allowed, appends are refused above it.
    """
    warning = settings.disk_space_warning_level_ratio
    if not settings.clean_file_forcibly_enable:
        return warning
    return forced_ratio(settings)


def judge(use: DiskUse, hour: int, settings: Settings) -> Verdict:
    """`hour`: of the local clock, 0 to 23."""
    fullest = max(use)
    forced = fullest > forced_ratio(settings)
    if forced:
        why = f"the disk is {fullest} % full"
    elif fullest > settings.disk_max_used_space_ratio:
        why = f"the disk is {fullest} % full, and they are past file_reserved_time"
    else:
        why = "they are past file_reserved_time"
    return Verdict(
        refused=refusal_at(use, settings),
        may_delete=forced
        or fullest > settings.disk_max_used_space_ratio
        or hour in settings.delete_hours,
        at_once=forced and settings.clean_file_forcibly_enable,
        needs_room=fullest > staging_ratio(settings),
        why=why,
    )


def expired(
    segments: Sequence[SegmentFile],
    verdict: Verdict,
    spared: Spared,
    now_s: float,
    settings: Settings,
) -> list[SegmentFile]:
    """The segments that go now, oldest first: up to the first that stays.

    `now_s` and the segments' times are of one clock. The last segment always stays. One at most
    goes before its time.
    """
    found: list[SegmentFile] = []
    forced_s = settings.file_forced_reserved_minutes * _MINUTE_S
    limit = spared.needed if verdict.at_once else min(spared.needed, spared.followed)
    for segment, written_s in zip(segments[:-1], _written_s(segments), strict=False):
        is_old = verdict.may_delete and is_past_time(segment, now_s, settings, spared)
        is_forced = verdict.at_once and (forced_s == 0 or now_s >= written_s + forced_s)
        is_over = segment.start < over_size(segments, settings)
        if segment.end > limit or not (is_old or is_over or is_forced):
            break
        found.append(segment)
        if not (is_old or is_over):
            break
    return found[: settings.delete_file_batch_max]


def is_past_time(segment: SegmentFile, now_s: float, settings: Settings, spared: Spared) -> bool:
    """Whether a segment was last written more than `file_reserved_time` ago, and no topic keeps it
    for longer."""
    is_old = now_s >= segment.modified_s + settings.file_reserved_time * _HOUR_S
    return is_old and segment.end <= spared.reserved


def over_size(segments: Sequence[SegmentFile], settings: Settings) -> int:
    """The log offset below which segments go, so that the rest takes `retention_bytes` at most.

    The segment that is written and the one made ahead count with their whole length, as on the
    disk.
    """
    if not settings.retention_bytes or not segments:
        return 0
    return segments[-1].end - settings.retention_bytes


def _written_s(segments: Sequence[SegmentFile]) -> list[float]:
    """When each segment was last written: not after the one that follows it.

    A clock that was ahead for a while would otherwise keep segments, and a full disk full.
    """
    from_last = accumulate((segment.modified_s for segment in reversed(segments)), min)
    return list(from_last)[::-1]


class Clock:
    """The time of day for ages. Set forward while the node runs, it makes nothing older."""

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._started = wall_s() - monotonic_s()

    def now_s(self) -> float:
        """Seconds since 1970: the least of what the clock says and what has passed."""
        return min(self._wall_s(), self._started + self._monotonic_s())

    def hour(self) -> int:
        return time.localtime(self._wall_s()).tm_hour


class Retention:
    """Looks at clock and disk once a second, and deletes once a `clean_resource_interval`.

    All methods are for the writer's own thread; files are unlinked in another one.
    """

    def __init__(
        self,
        root: Path,
        segment_bytes: int,
        settings: Settings,
        clock: Clock | None = None,
        use: Callable[[], DiskUse] | None = None,
    ) -> None:
        self._root = root
        self._segment_bytes = segment_bytes
        self._settings = settings
        self.clock = clock or Clock()
        self._use = use or partial(use_of, root)
        self._look_at = 0.0
        self._clean_at = 0.0
        self._forced_from: float | None = None
        """Until then, of the clock of `turn`, no segment goes before its time: a start warns."""
        self._has_warned = False
        self._deleting: threading.Thread | None = None
        self.full: str | None = None
        """Why appends are refused; None while there is room."""
        self.make_room: Callable[[float], bool] = lambda _now: False
        """Asks for abandoned staged batches to be dropped. No segment goes while it returns True:
        some batches may still go."""

    def check_room(self) -> None:
        """Raises ServiceNotAvailable, disk_full, while the disk is above the warning ratio."""
        if self.full is not None:
            raise ServiceNotAvailable(
                f"disk_full: {self.full}", "free space; appends then go on by themselves"
            )

    def turn(self, now: float, spared: Callable[[], Spared]) -> list[SegmentFile]:
        """The segments to delete now, none most of the time. `now`: of a monotonic clock.

        Publish where the log begins from now on before you call `delete`.
        """
        if self._forced_from is None:
            self._forced_from = now + self._settings.file_forced_warning_seconds
        if now < self._look_at or (self._deleting and self._deleting.is_alive()):
            return []
        self._look_at = now + LOOK_EVERY_S
        verdict = judge(self._use(), self.clock.hour(), self._settings)
        self._note_full(verdict)
        if verdict.needs_room and self.make_room(now):
            return []
        bound = self._settings.retention_bytes
        if not (verdict.may_delete or bound) or now < self._clean_at:
            return []
        self._clean_at = now + self._settings.clean_resource_interval / 1000
        segments = self.segments()
        log.debug("old segments looked for", extra=fields(segments=len(segments), why=verdict.why))
        now_s = self.clock.now_s()
        sparing = spared()
        found = expired(segments, verdict, sparing, now_s, self._settings)
        if not found:
            self._note_nothing(segments, verdict)
            return found
        is_old = is_past_time(found[-1], now_s, self._settings, sparing)
        is_over = found[-1].start < over_size(segments, self._settings)
        is_forced = verdict.at_once and not (is_old or is_over)
        if is_forced and now < self._forced_from:
            self._warn(found.pop(), verdict, self._forced_from - now)
        elif is_forced and verdict.refused:
            self._clean_at = now  # appends are refused: the next one goes after the next look
        if found:
            why = verdict.why
            if not (is_forced or is_old):
                why = f"the log is larger than retention_bytes, {self._settings.retention_bytes}"
            span = {"start": found[0].start, "end": found[-1].end}
            details = fields(segments=len(found), **span, why=why, before_their_time=is_forced)
            log.warning("deleting segments", extra=details)
        return found

    def _warn(self, first: SegmentFile, verdict: Verdict, left_s: float) -> None:
        """Once a start: says which segment is the first to go by force, and when."""
        if not self._has_warned:
            self._has_warned = True
            keeping = "free space, or set store.clean_file_forcibly_enable=false"
            when = {"start": first.start, "end": first.end, "in_s": math.ceil(left_s)}
            details = fields(**when, why=verdict.why, to_keep_them=keeping)
            log.warning("segments will be deleted before their time", extra=details)

    def _note_nothing(self, segments: list[SegmentFile], verdict: Verdict) -> None:
        if verdict.at_once and len(segments) > 1:
            reserved = self._settings.file_forced_reserved_minutes
            details = fields(why=verdict.why, file_forced_reserved_minutes=reserved)
            log.warning("no segment could be deleted", extra=details)

    def segments(self) -> list[SegmentFile]:
        """The segments that are there, oldest first."""
        found: list[SegmentFile] = []
        with os.scandir(self._root / COMMIT_LOG_DIR) as entries:
            for entry in entries:
                start = parse_name(entry.name)
                if start is not None:
                    modified_s = entry.stat().st_mtime
                    found.append(SegmentFile(start, start + self._segment_bytes, modified_s))
        return sorted(found)

    def written_before(self, limit_s: float) -> int:
        """The log offset below which all segments were last written before a time."""
        segments = self.segments()
        written = zip(segments[:-1], _written_s(segments), strict=False)
        return max((one.end for one, written_s in written if written_s < limit_s), default=0)

    def delete(self, segments: Sequence[SegmentFile]) -> None:
        """Begins to unlink them, oldest first, with `delete_commit_log_files_interval` between."""
        paths = [self._root / COMMIT_LOG_DIR / offset_file_name(one.start) for one in segments]
        deleting = threading.Thread(target=self._delete, args=(paths,), name="retention")
        try:
            deleting.start()
        except RuntimeError as error:  # no thread can be had
            log.error("segments cannot be deleted", extra=fields(why=error))  # noqa: TRY400
        else:
            self._deleting = deleting

    def _delete(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                disk.unlink(path, missing_ok=True)
            except StoreMoved:
                return  # the writer's loop finds it too, and ends
            except OSError as error:
                # Tried again in the next round; the log begins after it already.
                details = fields(file=path, why=error.strerror)
                log.error("a segment cannot be deleted", extra=details)  # noqa: TRY400
                return
            time.sleep(self._settings.delete_commit_log_files_interval / 1000)

    def close(self) -> None:
        """Waits for a deletion that is under way."""
        if self._deleting is not None:
            self._deleting.join()

    def _note_full(self, verdict: Verdict) -> None:
        if not verdict.refused:
            if self.full is not None:
                log.info("the disk has room again")
            self.full = None
            return
        if self.full is None:
            log.error("no more appends", extra=fields(why=verdict.refused))
        self.full = verdict.refused
