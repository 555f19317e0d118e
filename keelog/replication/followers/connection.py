"""One follower: what it may get of the log, how it and this node speak, and its reports.

A follower may get the log up to where its writer has flushed it. A master of RocketMQ sends what it
has appended, so that a power cut can leave a slave ahead of it. Bytes that are flushed here are
here after a power cut too.

They speak by RocketMQ's default replication, or as its brokers do where a controller elects the
master. A connection sleeps for nobody. Bytes go from the page cache to the socket (sendfile);
nothing of the log is in this process, but with TLS a record of it at a time.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from node.runtime.state_page import RECOVERING, STARTING, StatePages
from node.runtime.store_paths import open_regular
from protocol import addresses, errors, ha, names

TURN_BYTES_MAX = 1024 * 1024
"""What one follower gets in a turn, so that others have theirs."""
TLS_RECORD_BYTES = 16 * 1024
"""The most that one record of TLS holds."""
RECEIVED_AT_ONCE = TLS_RECORD_BYTES
"""A whole record: what stays in OpenSSL makes no descriptor readable."""


class Peer(NamedTuple):
    """From where somebody follows; an IPv6 address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class FlushedLog:
    """Follows the writer's page. Offsets are as `look` found them last; zeros before."""

    def __init__(self, root: Path) -> None:
        self._root, self._pages = root, StatePages(root, 0)
        self.epoch = 0
        self.cut_at = 0
        """Where the current epoch began: nothing above is as it was before."""
        self.begin = 0
        self.end = 0
        """The end of what is flushed."""
        self.appended = 0
        self.segment_bytes = 0
        self._is_current = False
        """Whether the last look took in what the page says."""

    @property
    def is_known(self) -> bool:
        """Whether a writer has said yet how far the log reaches."""
        return self.epoch > 0 and self.segment_bytes > 0

    @property
    def has_grown(self) -> bool:
        """Whether more is flushed than `look` has found."""
        page = self._pages.log
        return self._is_current and page is not None and page.flushed > self.end

    @property
    def wants_acknowledged(self) -> int:
        """The log offset for which the writer wants a ring; 0: none."""
        page = self._pages.log
        return 0 if page is None else page.wants_acknowledged

    def look(self) -> None:
        """Takes in what the writer says. Keeps what is known while the writer starts: until it
        has recovered the log, its page may say less than there is."""
        page = self._pages.log
        state = None if page is None else page.read()
        self._is_current = False
        if state is None or state.epoch <= 0 or state.state in (STARTING, RECOVERING):
            return
        self._is_current = True
        self.epoch, self.cut_at = state.epoch, state.epoch_start
        self.begin, self.end = state.min_offset, min(state.flushed, state.appended)
        self.appended, self.segment_bytes = state.appended, state.segment_bytes

    def look_for_page(self) -> None:
        """Lets go of a page whose name another file has by now. Call it now and then."""
        if self._pages.are_gone():
            self._pages.close()

    def open_segment(self, offset: int) -> tuple[int, int]:
        """Opens the segment that holds an offset: its descriptor, and where it begins. Raises
        OSError."""
        start = offset - offset % self.segment_bytes
        path = self._root / names.COMMIT_LOG_DIR / names.offset_file_name(start)
        return open_regular(path, os.O_RDONLY), start

    def close(self) -> None:
        self._pages.close()


class PlainWire:
    """One connection's bytes, without a controller."""

    def __init__(self) -> None:
        self.feed: Callable[[bytes], int | None] = ha.ReportReader().feed
        """Takes bytes; returns the last whole report, if there is one. Raises BadRequest."""

    @property
    def broker_id(self) -> int:
        """Who follows, as it said; 0: it did not say."""
        return 0

    def greeting(self, end: int) -> bytes:
        """What has to be sent now, before the log: once, and often nothing. Raises StoreDamaged."""
        return b""

    def piece(self, offset: int, size: int) -> int:
        """How much of `size` bytes at `offset` one frame may hold."""
        return size

    def head(self, offset: int, size: int) -> bytes:
        """What goes before a frame's bytes."""
        return ha.encode_head(offset, size)


class SwitchWire(PlainWire):
    """With a controller. `epochs` loads those of the log; `confirmed` returns its end as all who
    must have it have acknowledged it."""

    def __init__(self, epochs: Callable[[], ha.MasterEpochs], confirmed: Callable[[], int]) -> None:
        self._follower = ha.FollowerReader()
        self.feed = self._follower.feed
        self._load = epochs
        self._epochs: ha.MasterEpochs = ()
        self._confirmed = confirmed
        self._has_greeted = False

    @property
    def broker_id(self) -> int:
        """0 before the greeting."""
        return self._follower.broker_id or 0

    def greeting(self, end: int) -> bytes:
        """The end and the epochs of the log, once the follower has greeted."""
        if self._has_greeted or self._follower.broker_id is None:
            return b""
        self._has_greeted = True
        self._epochs = self._load()
        return ha.encode_answer(ha.MasterGreeting(end, self._epochs))

    def piece(self, offset: int, size: int) -> int:
        """A frame belongs to one epoch."""
        _, end = ha.epoch_at(self._epochs, offset)
        return size if end is None else min(size, end - offset)

    def head(self, offset: int, size: int) -> bytes:
        """Names the epoch of the bytes, and how far the log is confirmed."""
        epoch, _ = ha.epoch_at(self._epochs, offset)
        first = self._epochs[0] if self._epochs else ha.MasterEpoch(-1, 0)
        return ha.encode_switch_head(offset, size, epoch or first, self._confirmed())


class FollowerPace(NamedTuple):
    """Seconds of silence: after the first a follower gets a heart-beat, after the second its
    connection is closed."""

    heartbeat_s: float
    silence_s: float


@dataclass(eq=False)
class FollowerConnection:
    """The master's end (DefaultHAConnection, AutoSwitchHAConnection). Times are seconds of the
    monotonic clock."""

    _socket: socket.socket
    address: str
    _pace: FollowerPace
    _heard_at: float
    since_ms: int
    _wire: PlainWire = field(default_factory=PlainWire)
    _is_encrypted: bool = False
    """Whether the socket is one of TLS (`TlsSocket`): nothing may go to its descriptor then."""
    _admit: Callable[["FollowerConnection", int], None] | None = None
    """Is asked about the first report, and raises FollowerGone for one that is known to be of
    another log."""
    reported: int | None = None
    """Its last report; None before the first."""
    acknowledged: int | None = None
    """As `reported`, once it is known to be within what was sent or was there before."""
    sent: int = 0
    """The end of the log as far as the system has taken it for this follower."""
    is_blocked: bool = False
    """Whether the system takes no more for now."""
    _has_begun: bool = False
    _head: bytes = b""
    _left: int = 0
    """Bytes of the frame under way that are still in the segment."""
    _segment: int | None = None
    _segment_start: int = 0

    def __post_init__(self) -> None:
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd = self._socket.fileno()
        self._wrote_at = self._heard_at

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def broker_id(self) -> int:
        """Who follows, as it said; 0: it did not say."""
        return self._wire.broker_id

    def receive(self, now: float) -> None:
        """Takes what has come. Raises FollowerGone."""
        try:
            data = self._socket.recv(RECEIVED_AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            raise FollowerGone(Gone.CLOSED, f"the connection broke: {error.strerror}") from None
        if not data:
            raise FollowerGone(Gone.CLOSED, "it closed the connection")
        if self.reported is None and (other := addresses.foreign_client(data)) is not None:
            raise FollowerGone(Gone.FOREIGN, f"it is of {other.what}: {other.hint}")
        try:
            report = self._wire.feed(data)
        except errors.BadRequest as error:
            raise FollowerGone(Gone.BAD_REPORT, error.reason) from None
        if report is not None:
            self._heard_at, self.reported = now, report

    def serve(self, log: FlushedLog, now: float) -> None:
        """Believes the last report, if it can be, then sends. Raises FollowerGone."""
        if log.is_known and not self._has_begun:
            self._greet(log)
        if self.reported is not None and log.is_known:
            if self._has_begun:
                self._check(log, self.reported)
            else:
                self._begin(log, self.reported)
            self._send(log, now)
        silent_s = now - self._heard_at
        if silent_s > self._pace.silence_s:
            raise FollowerGone(Gone.SILENT, f"it gave no report for {silent_s:.0f} s")

    def _greet(self, log: FlushedLog) -> None:
        self._head += self._wire.greeting(log.end)
        try:
            while self._head:
                self._go_on()
        except BlockingIOError:
            self.is_blocked = True
        except OSError as error:
            raise FollowerGone(Gone.CLOSED, f"the connection broke: {error.strerror}") from None

    def _begin(self, log: FlushedLog, report: int) -> None:
        """The first report says where to begin. An empty follower gets all that there is, where
        a broker gives it the last segment alone."""
        if report < 0:
            raise FollowerGone(Gone.BAD_REPORT, f"its first report is {report}, no log offset")
        if report == ha.ONE_BYTE_BEHIND and not log.appended:
            # Both logs are empty: it wants what follows byte 0, once that is there.
            self.sent, self.acknowledged = report, 0
            return
        if self._admit is not None:
            self._admit(self, report)
        if report > log.appended:
            reason = f"its log ends at {report}, beyond the end {log.appended} of this node's"
            raise FollowerGone(Gone.DIVERGED, f"{reason}: they are not the same log")
        if 0 < report < log.begin:
            raise FollowerGone(
                Gone.TOO_OLD,
                f"its log ends at {report}, below the begin {log.begin} of this node's: what is"
                " between was deleted; let it begin anew, from an empty folder",
            )
        self.sent = report or log.begin
        self._has_begun = True
        self.acknowledged = report

    def _check(self, log: FlushedLog, report: int) -> None:
        if report > self.sent or report < 0:
            raise FollowerGone(
                Gone.BAD_REPORT, f"it acknowledges {report}, and {self.sent} is what it was sent"
            )
        if self.sent > log.appended:
            raise FollowerGone(
                Gone.CUT, f"this node's log was cut to {log.appended}, it was sent {self.sent}"
            )
        self.acknowledged = report

    def forget_above(self, offset: int) -> None:
        """The log was cut there, and may have grown again since. Raises FollowerGone."""
        if self._has_begun and self.sent > offset:
            reason = f"this node's log was cut to {offset}, it was sent {self.sent}"
            raise FollowerGone(Gone.CUT, reason)

    # -- sending ------------------------------------------------------------------------------

    def has_more(self, log: FlushedLog) -> bool:
        """Whether it could be sent more at once."""
        return self._has_begun and not self.is_blocked and self.sent < log.end

    def _send(self, log: FlushedLog, now: float) -> None:
        budget, self.is_blocked = TURN_BYTES_MAX, False
        try:
            while budget > 0 and (self._head or self._left or self._begin_frame(log, now)):
                budget -= self._go_on()
                self._wrote_at = now
        except BlockingIOError:
            self.is_blocked = True
        except OSError as error:
            raise FollowerGone(Gone.CLOSED, f"the connection broke: {error.strerror}") from None

    def _begin_frame(self, log: FlushedLog, now: float) -> bool:
        """False where there is nothing to be said."""
        left = log.end - self.sent
        if left > 0:
            to_segment_end = self._in_segment(log)
            most = min(left, ha.FRAME_BODY_BYTES, to_segment_end)
            self._left = self._wire.piece(self.sent, most)
            self._head = self._wire.head(self.sent, self._left)
            return True
        if now - self._wrote_at >= self._pace.heartbeat_s:
            self._head = self._wire.head(self.sent, 0)
            return True
        return False

    def _in_segment(self, log: FlushedLog) -> int:
        """The bytes from here to the segment's end; opens the next segment at its begin. An open
        segment is sent to its end, even if retention deletes it meanwhile."""
        at = self.sent - self._segment_start
        if self._segment is None or not 0 <= at < log.segment_bytes:
            self._close_segment()
            try:
                self._segment, self._segment_start = log.open_segment(self.sent)
            except (OSError, errors.MqError) as error:
                raise FollowerGone(
                    Gone.TOO_OLD,
                    f"it was sent the log up to {self.sent}, and the segment that holds the rest is"
                    f" gone ({error}); this node's log begins at {log.begin}",
                ) from None
            at = self.sent - self._segment_start
        return log.segment_bytes - at

    def _go_on(self) -> int:
        """Gives the system what is left of a frame; returns the bytes. Raises OSError."""
        if self._head:
            # With MSG_MORE the head waits for the body, and goes in one packet with it.
            count = self._socket.send(self._head, socket.MSG_MORE if self._left else 0)
            self._head = self._head[count:]
            return count
        assert self._segment is not None
        at = self.sent - self._segment_start
        if self._is_encrypted:
            # The same bytes again after a send that could not go on, as OpenSSL asks for.
            data = os.pread(self._segment, min(self._left, TLS_RECORD_BYTES), at)
            count = self._socket.send(data) if data else 0
        else:
            count = os.sendfile(self.fd, self._segment, at, self._left)
        if not count:
            raise FollowerGone(Gone.CUT, f"a segment of this node ends at {self.sent}")
        self.sent += count
        self._left -= count
        return count

    def close(self) -> None:
        """Ends the connection, and gives its files back."""
        self._socket.close()
        self._close_segment()

    def _close_segment(self) -> None:
        if self._segment is not None:
            os.close(self._segment)
            self._segment = None


class Gone(StrEnum):
    """The kinds of ends."""

    CLOSED = "closed"
    SILENT = "silent"
    BAD_REPORT = "bad report"
    FOREIGN = "no follower"
    DIVERGED = "diverged"
    TOO_OLD = "too old"
    CUT = "log was cut"
    CROWD = "too many followers"
    NOT_ALLOWED = "not allowed"
    STOP = "stop"


class FollowerGone(Exception):
    def __init__(self, kind: Gone, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
