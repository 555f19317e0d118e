"""Follows a master: connects, compares, copies, reports, and knows what state it is in.

One object for the life of the process. `turn` does what is possible now and waits for nothing.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from keelog.replication.replica import comparison, master_link
from keelog.replication.replica.log_copy import LogAssembler, LogCopy
from keelog.replication.replica.master_link import LinkLost, MasterFacts, MasterLink
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.run_files import COMPARING, CONNECTING, FOLLOWING, STOPPED, WAITING, MasterPlace
from node.writer.log.flush import JobThread
from protocol.errors import ServiceNotAvailable
from protocol.ha import ONE_BYTE_BEHIND, LogFrame, MasterEpoch

if TYPE_CHECKING:
    from node.access.own_credentials import OwnCredentials
    from node.access.tls import ClientTls

log = logging.getLogger("keelog.replica")

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
"""Between two tries to connect; each failure doubles the pause (RocketMQ: always 5 s)."""
NO_ROOM_S = 1.0
"""The pause after the disk had no room for the next segment."""
TURNED_AWAY_MAX = 3
"""Connections in a row that a master ended before it sent anything: then it is asked why. One that
stops or starts may do so once, and not know yet where its log ends."""
NOTHING_SENT = (
    "the master sends nothing: its log is empty, or no longer begins at 0",
    "for a log that begins later, name its port for requests: -X store.follow_remoting=HOST:10911",
)


class StartsElsewhere(Exception):
    """An empty store has to be made anew: the master's log begins at another offset, or has
    segments of another length."""


class MasterFollower:
    """`find` says where the master is."""

    def __init__(
        self,
        copy: LogCopy,
        find: Callable[[], MasterPlace],
        now: float,
        broker_id: int = 0,
        tls: "ClientTls | None" = None,
        credentials: "OwnCredentials | None" = None,
    ) -> None:
        """With a `broker_id`, which a controller gave, it follows an elected master."""
        self._copy = copy
        self._tls = tls
        self._credentials = credentials
        self._broker_id = broker_id
        self._epoch: MasterEpoch | None = None
        """That of the last frame, which is in the file."""
        self._find = find
        self._connector: JobThread[master_link.ConnectJob] = JobThread("connect", may_be_left=True)
        self._try_at = now
        self._pause_s = PAUSE_S_MIN
        self._link: MasterLink | None = None
        self._overlap: comparison.Overlap | None = None
        self._assembler: LogAssembler | None = None
        self._turned_away = 0
        """How many connections in a row the master ended before it sent anything."""
        self._began_at = 0
        """What this connection reported first."""
        self.state = CONNECTING
        self.address = MasterPlace()
        self.facts: MasterFacts | None = None
        self._refused = ""
        """Why the master did not say where its log begins, at the last try."""
        self.stopped: comparison.FollowStopped | None = None
        self.lacks = ""
        """Why the disk had no room at the last try; empty where it had."""
        self._is_halted = False
        """Whether the last word was `wait_for_room`."""
        self.waits_for: tuple[str, str] = ("", "")
        """Why it is `waiting`, and what to try."""
        self.disconnected, self.disconnected_ms = "", 0
        self._is_apart = False
        """Whether it has not followed since `disconnected_ms`, however often it connected."""
        self.connections = 0
        self.acknowledged = 0
        self.master_end = 0
        self.heard_ms = 0
        """When the master was heard last."""

    # -- for the loop -------------------------------------------------------------------------

    @property
    def watched(self) -> list[tuple[int, int]]:
        """Descriptors to wait for, each with its events."""
        found = [(self._connector.fd, 1)]
        if self._link is not None:
            found.append((self._link.fd, self._link.events))
        return found

    @property
    def is_connected(self) -> bool:
        """Whether a master is there, whatever it sends."""
        return self._link is not None

    @property
    def try_at(self) -> float:
        """When `turn` is to be called again while nothing is connected."""
        is_busy = self._link is not None or self._connector.is_busy
        is_idle = not is_busy and self.stopped is None and not self._is_halted
        return self._try_at if is_idle else float("inf")

    def turn(self, now: float) -> bool:
        """Returns whether there may be more to do at once. Raises StartsElsewhere, OSError."""
        if self.stopped is not None:
            return False
        if self._is_halted:
            self._is_halted, self._try_at = False, now
            self.state, self.waits_for = CONNECTING, ("", "")
        try:
            if self._link is None:
                self._connect(now)
                return False
            if self._link.greeting is not None:
                self._hear_greeting(self._link, now)
                return False
            has_more = self._receive(self._link, now)
            self._report(self._link, now)
        except LinkLost as lost:
            overlap = self._overlap
            self._lose(str(lost), now)
            if isinstance(lost, master_link.LinkClosed) and overlap is not None:
                self._count_turned_away(overlap)
            return False
        except comparison.FollowStopped as stopped:
            self._stop(stopped)
            return False
        except ServiceNotAvailable as full:
            self.lacks = full.reason
            self._lose(full.reason, now)
            self._try_at = now + NO_ROOM_S
            return False
        return has_more

    def wait_for_room(self, why: str, now: float) -> None:
        """Instead of `turn` while the disk is too full to copy anything: ends the connection, whose
        bytes would wait unread."""
        if self.stopped is not None:
            return
        self._drop_connected()
        if self._is_halted:
            return
        if self._link is not None:
            self._lose("the disk here has no room", now)
        self._is_halted, self.state = True, WAITING
        self.waits_for = f"disk_full: {why}", "free space; the copy then goes on by itself"
        log.error("waits for room on the disk", extra=fields(why=why, end=self._copy.end))

    def look(self, now: float) -> None:
        """Now and then: leaves a master whose place is taken by another."""
        if self._link is not None and self._find().ha != self.address.ha:
            self._lose("the name servers name another master", now)

    def close(self) -> None:
        self._close_link()
        self._drop_connected()
        # A try at a master that says nothing is left to the end of the process.
        if not self._connector.is_busy:
            self._connector.close()

    def _drop_connected(self) -> None:
        job = self._connector.collect()
        if job is not None and job.connected is not None:
            job.connected.close()

    # -- connecting ---------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        job = self._connector.collect()
        if job is not None:
            self._connected(job, now)
        elif now >= self._try_at and not self._connector.is_busy:
            self.address = self._find()
            if not self.address.ha:
                self.state = WAITING
                self.waits_for = (
                    "no name server has said yet where the master is",
                    "is the master registered, and this node (--remoting, --broker-name)?",
                )
                self._try_at = now + PAUSE_S_MAX / 5
                return
            self._connector.start(
                master_link.ConnectJob(self.address, self._tls, self._credentials)
            )

    def _connected(self, job: master_link.ConnectJob, now: float) -> None:
        self.facts = job.facts or self.facts
        self._note_refusal(job.refused)
        if job.facts is not None:
            self.master_end = job.facts.end
        elif job.connected is not None:
            self.master_end = 0  # it may have lost its end meanwhile
        if job.connected is None:
            if self._turned_away >= TURNED_AWAY_MAX:
                self.waits_for = ("", "")
            self._turned_away = 0
            self._lose(job.why, now)
            return
        self._link = MasterLink(job.connected, now, self._broker_id, self._tls is not None)
        self.connections += 1
        self.lacks = ""
        if self._broker_id:
            self.state, self._epoch = COMPARING, None
            self._link.greet()
        else:
            self._begin(self._link, job.facts, now)

    def _note_refusal(self, why: str) -> None:
        if why and why != self._refused:
            log.warning("the master does not say where its log begins", extra=fields(why=why))
        self._refused = why

    def _hear_greeting(self, link: MasterLink, now: float) -> None:
        greeting = link.receive_greeting(now)
        if greeting is None:
            return
        self.heard_ms = now_ms()
        self.master_end = max(self.master_end, greeting.end)
        copy = self._copy
        if not copy.is_empty:
            comparison.check_same(copy.store.root, copy.end, greeting)
        self._begin(link, self.facts, now)
        if copy.is_empty and greeting.end <= copy.end:
            self._follow()  # there is nothing yet that could be compared

    def _begin(self, link: MasterLink, facts: MasterFacts | None, now: float) -> None:
        copy = self._copy
        if copy.is_empty:
            self._begin_empty(link, facts, now)
        else:
            self._check_segments(facts)
            start = copy.overlap_start(comparison.OVERLAP_BYTES)
            if facts is not None and start < facts.begin < copy.end:
                start = facts.begin
            start = max(start, ONE_BYTE_BEHIND)
            self._overlap = comparison.Overlap(start, copy.end, copy.read, facts)
            self._assembler = copy.assembler(starts_at_zero=False)
            self.state, self._began_at = COMPARING, start
            link.report(start, now)
        details = fields(master=self.address.ha, end=copy.end, state=self.state)
        log.info("connected to the master", extra=details)

    def _begin_empty(self, link: MasterLink, facts: MasterFacts | None, now: float) -> None:
        """Raises StartsElsewhere unless the empty log can go on as the master's begins."""
        begin, own_bytes = self._copy.end, self._copy.store.log.segment_bytes
        if facts and (facts.begin != begin or facts.segment_bytes not in (0, own_bytes)):
            raise StartsElsewhere
        # RocketMQ takes a report of 0 for "the last segment", and 1 for "from 1 on". An elected
        # master takes 0 for all.
        says_one = begin == 0 and not self._broker_id
        self._overlap = None
        self._assembler = self._copy.assembler(starts_at_zero=says_one)
        self.state, self.waits_for = WAITING, NOTHING_SENT
        if self._refused:
            self.waits_for = f"the master sends nothing; {self._refused}", NOTHING_SENT[1]
        self._began_at = ONE_BYTE_BEHIND if says_one else begin
        link.report(self._began_at, now)

    def _check_segments(self, facts: MasterFacts | None) -> None:
        own_bytes = self._copy.store.log.segment_bytes
        if facts is not None and facts.segment_bytes not in (0, own_bytes):
            raise comparison.OtherSegments(
                f"the master's segments have {facts.segment_bytes} bytes, ours {own_bytes}",
                "follow with an empty directory: it takes over the master's length",
            )

    # -- copying ------------------------------------------------------------------------------

    def _receive(self, link: MasterLink, now: float) -> bool:
        """Takes what has come. Returns whether there may be more."""
        for _ in range(master_link.READS_AT_ONCE):
            frames = link.receive(now)
            if not frames:
                return False
            self.heard_ms, self._turned_away = now_ms(), 0
            for frame in frames:
                self._take(frame)
            assert self._assembler is not None
            for piece in self._assembler.take():
                self._copy.write(piece)
        return True

    def _take(self, frame: LogFrame) -> None:
        assembler, overlap = self._assembler, self._overlap
        assert assembler is not None
        wanted = assembler.wanted if overlap is None else overlap.wanted
        if frame.offset != wanted:
            raise LinkLost(f"the master sent offset {frame.offset}, {wanted} was asked for")
        self.master_end = max(self.master_end, frame.offset + len(frame.body))
        if not frame.body and overlap is not None and not overlap.is_done:
            overlap.heard_beat()
        if not frame.body and overlap is None:
            return
        body = frame.body
        if overlap is not None:
            body = overlap.take(frame)
            if not overlap.is_done:
                return
            self._overlap = None
        if self.state != FOLLOWING:
            self._follow()
        if frame.epoch is not None and frame.epoch != self._epoch:
            comparison.note_epoch(self._copy.store.root, frame.epoch)
            self._epoch = frame.epoch
        assembler.feed(body)

    def _follow(self) -> None:
        self.state, self.waits_for, self._pause_s = FOLLOWING, ("", ""), PAUSE_S_MIN
        self._is_apart = False
        self.acknowledged = 0  # the next report says what is on the disk
        log.info("follows the master", extra=fields(master=self.address.ha, end=self._copy.end))

    def _report(self, link: MasterLink, now: float) -> None:
        """Tells the master what is on our disk; until the comparison has ended, where it began."""
        if self.state == FOLLOWING:
            flushed = self._copy.flushed
            if flushed > self.acknowledged or link.is_report_due(now):
                link.report(flushed or (0 if self._broker_id else ONE_BYTE_BEHIND), now)
                self.acknowledged = flushed
        elif link.is_report_due(now):
            link.report(self._began_at, now)

    # -- ends ---------------------------------------------------------------------------------

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _lose(self, why: str, now: float) -> None:
        self._close_link()
        self._overlap = None
        if why != self.disconnected or self.state == FOLLOWING:
            details = fields(master=self.address.ha, why=why)
            log.warning("not connected to the master", extra=details)
        self.state = CONNECTING
        self.disconnected = why
        if not self._is_apart:
            self._is_apart, self.disconnected_ms = True, now_ms()
        self._try_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _count_turned_away(self, overlap: comparison.Overlap) -> None:
        """A connection has ended before the comparison. A node ends that of a follower whose log
        it cannot go on with at once, where a broker sends heart-beats."""
        self._turned_away += 1
        if self._turned_away < TURNED_AWAY_MAX:
            return
        try:
            overlap.check_trimmed()
            if not self._broker_id:
                # An elected master says what is confirmed; its greeting named its end.
                overlap.check_shorter()
        except comparison.FollowStopped as stopped:
            self._stop(stopped)
            return
        self.waits_for = (
            f"the master ends each connection before it sends anything: its log begins after offset"
            f" {overlap.start}, or ends before it, or did so when we connected first; or this"
            " address is not allowed there",
            "keelog status at the master shows its reason",
        )

    def _stop(self, stopped: comparison.FollowStopped) -> None:
        self._close_link()
        self.stopped, self.state = stopped, STOPPED
        why = {"kind": type(stopped).__name__, "cause": stopped.reason, "hint": stopped.hint}
        details = fields(master=self.address.ha, **why, end=self._copy.end)
        log.error("stops following the master", extra=details)
