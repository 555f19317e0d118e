"""Appends that store a message once, however often it is sent with one unique key.

A request asks for it. Its messages that the window has already are taken out before the append, and
answered with the places of the first ones; the appender gets the others and does not know of it.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.writer.append_request import AppendRequest, RepeatedMessage, check_crc, check_sizes
from node.writer.repeats.key_window import KeyWindow, MessageKey
from protocol.derived.removed import Removed
from protocol.errors import BadRequest, IllegalMessage, MqError, NodeBusy
from protocol.names import SCHEDULE_TOPIC
from protocol.record.codec import Record, decode
from protocol.record.properties import REAL_QUEUE_ID

log = logging.getLogger("keelog.writer")

FOLLOW_BYTES = 4 * 1024 * 1024
"""Log that one turn of the writer's loop reads for the window at most."""
FOLLOW_BUSY_BYTES = 1024 * 1024
"""As much more than came is read while messages come and much is unread, as after a start: senders
wait for it."""
CATCH_UP_BYTES = 16 * 1024 * 1024
"""Log that one request waits for. While more is unread, as after a start, requests that ask are
refused as busy."""
ASKED_RECORDS_MAX = 10_000
"""Messages of one request that asks: each repeated one is a row of the answer."""

Append = Callable[[list[AppendRequest], int], None]


class AskedRow(NamedTuple):
    """A message of a request: where it lies in it, its queue, and its key."""

    start: int
    size: int
    topic: str
    queue_id: int
    key: MessageKey | None


class AgainRow(NamedTuple):
    """A message that repeats another one of its request, which is stored by that alone."""

    row: int
    first: int


class AskedRequest(NamedTuple):
    """A request that asks, without what was stored before. `kept`: the rows that are left."""

    request: AppendRequest
    rows: list[AskedRow]
    kept: list[int]
    again: list[AgainRow]

    def name_own_repeats(self) -> None:
        """After the append: a message that repeats another one of the request has its place."""
        request = self.request
        if not self.again or request.error is not None:
            return
        following = {(topic, queue_id): first for topic, queue_id, first, _ in request.queues}
        places: dict[int, RepeatedMessage] = {}
        physical = request.physical_offset
        for row in self.kept:
            one = self.rows[row]
            queue = one.topic, request.queues[0][1] if request.any_queue else one.queue_id
            time = request.store_timestamp
            places[row] = RepeatedMessage(queue[1], following[queue], physical, time)
            following[queue] += 1
            physical += one.size
        assert request.repeats is not None
        request.repeats.update((row, places[first]) for row, first in self.again)


class StoredOnce:
    """Stands before the appender. `append` is `Appender.append`."""

    def __init__(
        self,
        window: KeyWindow,
        append: Append,
        bounds: Callable[[], tuple[int, int]],
        removed: Callable[[], Removed],
        crc: bool,
    ) -> None:
        """`bounds`: the log's, as of now. `crc`: drafts get room for the checksum of the whole."""
        self._window = window
        self._append = append
        self._bounds = bounds
        self._removed = removed
        self._crc = crc
        self._was_far = False
        self._seen_end = bounds()[1]
        """The log's end in the last turn."""
        self.taken_out = 0
        """Messages that were not stored again."""

    @property
    def is_behind(self) -> bool:
        """Whether the window has not read the whole log."""
        return self._window.at < self._bounds()[1]

    def close(self) -> None:
        """Closes the window's files."""
        self._window.close()

    def turn(self, is_busy: bool = False) -> None:
        """Reads on, so that a request that asks finds little to read. `is_busy`: messages come."""
        is_far = self._is_far_behind()
        if is_far != self._was_far:
            unread = fields(unread_bytes=self._bounds()[1] - self._window.at)
            event = "the log is read for repeated keys" if is_far else "repeated keys are known"
            log.info(event, extra=unread)
            self._was_far = is_far
        start, end = self._bounds()
        # Less than what came would leave requests that ask refused for as long as others send.
        least = end - self._seen_end + FOLLOW_BUSY_BYTES
        self._seen_end = end
        bytes_max = min(least, FOLLOW_BYTES) if is_busy and is_far else FOLLOW_BYTES
        self._window.follow(start, end, bytes_max)

    def append(self, requests: list[AppendRequest], now_ms: int) -> None:
        """As `Appender.append`. A request that asks has `repeats`, which get the messages of it
        that were stored before."""
        run = _Run()
        for request in requests:
            if request.repeats is None:
                run.add(request)
                continue
            try:
                rows = self._rows(request)
            except MqError:
                # The appender refuses it, and says why.
                run.add(request)
                continue
            if not run.may_take(rows):
                self._carry_out(run, now_ms)
                run = _Run()
            if self._is_far_behind():
                request.error = NodeBusy(
                    "the log is being read for repeated keys", "send it again in a moment"
                )
                continue
            self._catch_up()
            asked = self._take_out(request, rows)
            if asked.kept:
                run.add(request, asked)
        self._carry_out(run, now_ms)

    def _carry_out(self, run: "_Run", now_ms: int) -> None:
        if run.requests:
            self._append(run.requests, now_ms)
        for asked in run.asked:
            asked.name_own_repeats()

    def _catch_up(self) -> None:
        start, end = self._bounds()
        while self._window.at < end:
            self._window.follow(start, end, CATCH_UP_BYTES)

    def _is_far_behind(self) -> bool:
        return self._bounds()[1] - self._window.at > CATCH_UP_BYTES

    def _rows(self, request: AppendRequest) -> list[AskedRow]:
        """Raises what the appender would refuse the request for."""
        if request.draft is not None:
            request.encode(self._crc)
        check_crc(request)
        records = request.records
        rows: list[AskedRow] = []
        position = 0
        while position < len(records):
            found = decode(records, position, sealed=False)
            if not isinstance(found, Record):
                raise IllegalMessage(f"byte {position} begins no record")
            key, queue_id = MessageKey.of(found), found.head.queue_id
            rows.append(AskedRow(position, found.size, found.topic, queue_id, key))
            position += found.size
        check_sizes(request, [row.size for row in rows])
        return rows

    def _take_out(self, request: AppendRequest, rows: list[AskedRow]) -> AskedRequest:
        """Takes the repeated messages out of the request, and names those in its `repeats` whose
        first one has a place by now."""
        repeats = request.repeats
        assert repeats is not None
        keyed = [(row, one.key) for row, one in enumerate(rows) if one.key is not None]
        found = self._window.stored([key for _, key in keyed], self._removed())
        firsts = {keyed[number][0]: record for number, record in found.items()}
        repeats.update((row, _repeated(record)) for row, record in firsts.items())
        own: dict[MessageKey, int] = {}
        again = [
            AgainRow(row, own[key])
            for row, key in keyed
            if row not in firsts and own.setdefault(key, row) != row
        ]
        out = {*firsts, *(row for row, _ in again)}
        kept = [row for row in range(len(rows)) if row not in out]
        asked = AskedRequest(request, rows, kept, again)
        if not out:
            return asked
        self.taken_out += len(out)
        records = request.records
        request.count, request.crc, request.sizes = len(kept), None, b""
        request.checked_rows = None
        if kept:
            ends = ((rows[row].start, rows[row].start + rows[row].size) for row in kept)
            request.records = b"".join([records[start:end] for start, end in ends])
        else:
            _answer_with(request, max(firsts.values(), key=lambda one: one.physical_offset))
        return asked


class _Run:
    """Requests that go to the appender together: none asks for what another one stores."""

    def __init__(self) -> None:
        self.requests: list[AppendRequest] = []
        self.asked: list[AskedRequest] = []
        self._keys: set[MessageKey] | None = set()
        """None where there is a request whose keys nobody has looked at."""

    def may_take(self, rows: list[AskedRow]) -> bool:
        """Whether the window need not know these requests' messages first."""
        return self._keys is not None and self._keys.isdisjoint(row.key for row in rows if row.key)

    def add(self, request: AppendRequest, asked: AskedRequest | None = None) -> None:
        """`asked`: None for a request that does not ask."""
        self.requests.append(request)
        if asked is None:
            self._keys = None
            return
        self.asked.append(asked)
        if self._keys is not None:
            self._keys.update(row.key for row in asked.rows if row.key)


def _repeated(record: Record) -> RepeatedMessage:
    head = record.head
    queue_id = head.queue_id
    if record.topic == SCHEDULE_TOPIC:
        # Its sender knows the queue that it goes to when it is due.
        queue_id = int(record.properties.get(REAL_QUEUE_ID, queue_id))
    return RepeatedMessage(queue_id, head.queue_offset, head.physical_offset, head.store_timestamp)


def _answer_with(request: AppendRequest, last: Record) -> None:
    """The outcome of a request of which nothing is left: the place of the last of its messages.

    Its records become that one, so that a wait for the disk is one for its end.
    """
    head = last.head
    request.records, request.physical_offset = last.raw, head.physical_offset
    request.store_timestamp = head.store_timestamp
    request.queues = ((last.topic, head.queue_id, head.queue_offset, 1),)


def check_asked(count: int, settings: Settings, is_timer: bool = False) -> None:
    """Raises BadRequest for a request that may not ask. `is_timer`: it is one of `deliver_ms` or
    `delay_ms`, which can be taken back, so that its key may come again."""
    if not settings.idempotent_window:
        raise BadRequest(
            "once: this node does not look for repeated keys",
            "set store.idempotent_window to a number of seconds",
        )
    if is_timer:
        raise BadRequest("once with deliver_ms or delay_ms", "leave one of them out")
    if count > ASKED_RECORDS_MAX:
        raise BadRequest(
            f"{count} messages with once, {ASKED_RECORDS_MAX} are allowed", "send smaller batches"
        )
