"""The queues of a member: where they begin, pulls, acknowledgements, commits, and what comes again.

Messages of a queue end in any order. The offset that may be committed is that of the first one that
has not ended: a group never goes on after a message that was not handled. A program gets a message
with its acknowledgement (`GroupMessage`). No sockets and no clock: `turn` does what is due, and
replies come to the functions that asked.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from keelog.client.consumer.options import ConsumerSettings
from keelog.client.consumer.remoting_exchange import RemotingAnswer, RemotingExchange, WhenAnswered
from keelog.client.messages import Message
from keelog.client.options import pass_over
from protocol.errors import BadRequest, MessageDamaged, StoreDamaged
from protocol.record.codec import Record, decode
from protocol.record.properties import RETRY_TOPIC
from protocol.remoting import header_fields
from protocol.remoting.bodies import LockBatchBody, LockedQueues, MessageQueue
from protocol.remoting.codes import BadCommand, RequestCode, ResponseCode
from protocol.remoting.java_json import read_body, write_body, write_ext

log = logging.getLogger("keelog.client")

REQUEST_S = 10.0
"""A node that does not answer for longer is taken to be gone."""
HELD_S = 15.0
"""How long the node may hold a pull."""
PULL_MESSAGES_AT_ONCE = 128
PULL_BYTES_AT_ONCE = 262_144
SPAN_MAX = 2_000
"""Offsets of a queue between the first message that was not handled and the next pull."""
COMMIT_EVERY_S = 1.0
PAUSE_S = 0.2
"""Before pulling again where the node did not hold an empty pull."""
AGAIN_S = 1.0
REFUSED_S = 3.0
"""Before a pull that was refused is tried again."""
HANDED_BACK_S = 5.0
"""Before a message that the node did not take back is given out again."""
LOCK_TRUST_S = 30.0
LOCK_EVERY_S = 20.0
SUSPEND, SUBSCRIPTION = 0x2, 0x4
"""Bits of a pull's sysFlag: it may be held, and names its subscription itself."""
_NO_MESSAGE = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
DEAD_LETTER = -1
"""The delay level of a message that is to come no more."""
Settle = Callable[["GroupMessage", int | None], None]
"""Tells the consumer how a message ended. None: it was handled; else it is to come again after this
delay level."""


class GroupMessage(Message):
    """One message for a group. `ack()` or `retry()` settles it; until then the group's place in its
    queue does not pass it, and it comes again after a crash.

    `topic` is that of the producer, also for a message that comes again; `reconsume_times` counts
    how often it did.
    """

    __slots__ = ("_settle", "attempts", "queue_key", "settled")

    def __init__(self, raw: bytes, record: Record, settle: Settle, queue_key: Any) -> None:
        super().__init__(raw, is_whole=True)
        self._record = record
        self._settle = settle
        self.queue_key = queue_key
        """The consumer's state of its queue."""
        self.attempts = 0
        """How often an orderly consumer gave it out again."""
        self.settled = False

    def __reduce__(self) -> tuple[type[Message], tuple[bytes]]:
        # In another process nobody can settle it.
        return Message, (self.raw,)

    @property
    def topic(self) -> str:
        """The topic that its producer named."""
        return self.record.properties.get(RETRY_TOPIC) or self.record.topic

    @property
    def reconsume_times(self) -> int:
        """How often it came again."""
        return self.record.head.reconsume_times + self.attempts

    def ack(self) -> None:
        """The message was handled. Does nothing when it is settled already."""
        if not self.settled:
            self.settled = True
            self._settle(self, None)

    def retry(self, delay_level: int = 0) -> None:
        """The message could not be handled: the group gets it again, after a delay that grows with
        each time (10 s, 30 s, 1 min, … by RocketMQ's levels), or after the delay level that is
        named. After too many times it becomes a dead letter, in `%DLQ%` and the group's name;
        DEAD_LETTER (-1) makes it one now. An orderly consumer gives it out again after a second.

        Raises BadRequest when it is settled already.
        """
        if type(delay_level) is not int or delay_level < DEAD_LETTER:
            raise BadRequest(f"delay_level is {delay_level!r}", "use 0, a level, or -1")
        if self.settled:
            raise BadRequest("the message is settled already", "call ack or retry, once")
        self.settled = True
        self._settle(self, delay_level)


class QueueProgress:
    """How far one queue was pulled, handed out and handled."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.held_bytes = 0
        """Of all messages that have not ended."""
        self.waiting: deque[GroupMessage] = deque()
        """Those to hand out."""
        self._sizes: dict[int, int] = {}
        self._order: deque[int] = deque()
        self._ended: set[int] = set()

    @property
    def committable(self) -> int:
        """The next offset of the group: all messages before it have ended, or did not match."""
        return self._order[0] if self._order else self.next_offset

    @property
    def held(self) -> int:
        return len(self._sizes)

    @property
    def span(self) -> int:
        """How far the pulls are ahead of what may be committed. It bounds what comes again after a
        crash, and the memory for messages that have ended before an earlier one."""
        return self.next_offset - self.committable

    @property
    def in_hand(self) -> int:
        return len(self._sizes) - len(self.waiting)

    def take(self, found: list[GroupMessage], next_offset: int) -> None:
        """Takes the messages of a pull, in their order, and where the next one begins."""
        for message in found:
            offset, size = message.queue_offset, message.store_size
            if offset >= self.next_offset:
                self.waiting.append(message)
                self._order.append(offset)
                self._sizes[offset] = size
                self.held_bytes += size
        self.next_offset = max(self.next_offset, next_offset)

    def hand_out(self) -> GroupMessage | None:
        return self.waiting.popleft() if self.waiting else None

    def end(self, offset: int) -> None:
        """A message that was handed out has ended: it was handled, or comes again by another way.
        Harmless when repeated."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return
        self.held_bytes -= size
        self._ended.add(offset)
        while self._order and self._order[0] in self._ended:
            self._ended.remove(self._order.popleft())


@dataclass(slots=True, eq=False)
class OwnedQueue:
    """`progress` is None until it is known where the group is in the queue.

    `not_before`: when the next request for it may go. `committed`: what the node has.
    `to_commit`: what it is to have, where not all that was handled is committed by itself.
    """

    queue: MessageQueue
    progress: QueueProgress | None = None
    not_before: float = 0.0
    committed: int | None = None
    to_commit: int | None = None
    known_at: int | None = None
    """The log offset of the last message that was pulled: a topic that was removed later has other
    places."""
    locked_until: float = 0.0
    is_starting: bool = False
    is_pulling: bool = False
    is_committing: bool = False
    is_ready: bool = False
    """Whether it is in the line of those with a message to hand out."""
    is_dropped: bool = False
    damage: MessageDamaged | None = None
    """The damaged message at which it stops, where it shall: what comes before it is handed out."""

    def begin(self, offset: int) -> None:
        """The group goes on at this offset; what was held of the queue does not count any more."""
        self.progress, self.known_at = QueueProgress(offset), None
        self.is_starting = self.is_pulling = False
        self.damage = None

    def place(self, auto_commit: bool) -> int | None:
        """What the node is to have; None while there is nothing to say."""
        if self.progress is None or not auto_commit:
            return self.to_commit
        return self.progress.committable


class QueueKey(NamedTuple):
    """The state of a message's queue when it was pulled."""

    owned: OwnedQueue
    progress: QueueProgress

    @property
    def counts(self) -> bool:
        """Whether the queue is still owned, and has not been set elsewhere."""
        return not self.owned.is_dropped and self.owned.progress is self.progress


class ReturningMessage(NamedTuple):
    """A message on its way back: to the node with a delay level, or to this member (None)."""

    message: GroupMessage
    delay_level: int | None
    not_before: float


class CommitWait(NamedTuple):
    """A caller of `commit`, and the places that the node is to have then."""

    places: dict[OwnedQueue, int]
    done: "Future[None]"

    def is_over(self) -> bool:
        """Whether the node has them all. That of a queue that was given up was sent then."""
        return all(
            owned.is_dropped or (owned.committed is not None and owned.committed >= place)
            for owned, place in self.places.items()
        )


def first_place(
    settings: ConsumerSettings, queue: MessageQueue
) -> int | tuple[int, Mapping[str, str]]:
    """Where a group without a place begins, or the code and fields of the request that asks
    (RocketMQ: RebalancePushImpl#computePullFromWhereWithException)."""
    is_retry = queue.topic == settings.retry_topic
    end = RequestCode.GET_MAX_OFFSET, write_ext(header_fields.QueueHeader(queue.topic, queue[2]))
    if settings.start == "earliest":
        return 0
    if settings.start == "latest":
        return 0 if is_retry else end
    if is_retry:
        return end
    wanted = header_fields.SearchOffsetHeader(queue.topic, queue.queue_id, settings.start_ms)
    return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, write_ext(wanted)


def pulled_messages(body: bytes, owned: OwnedQueue, settle: Settle) -> list[GroupMessage]:
    """The messages of an answer, each verified. Raises StoreDamaged."""
    assert owned.progress is not None
    found: list[GroupMessage] = []
    key, position = QueueKey(owned, owned.progress), 0
    while position < len(body):
        record = decode(body, position)
        if not isinstance(record, Record):
            raise StoreDamaged(str(owned.queue), position, "the answer to a pull holds no record")
        raw = body[position : position + record.size]
        found.append(GroupMessage(raw, record, settle, key))
        position += record.size
    return found


class QueueHandler:
    """All owned queues of one member. Times are seconds of the monotonic clock."""

    def __init__(self, settings: ConsumerSettings, client_id: str, settle: Settle) -> None:
        self.owned: dict[MessageQueue, OwnedQueue] = {}
        self.exchange: RemotingExchange | None = None
        """None without a connection."""
        self.is_refused = False
        """Whether a request was refused for want of a right; who looks, sets it back."""
        self._settings = settings
        self._client_id = client_id
        self._settle = settle
        self._ready: deque[OwnedQueue] = deque()
        self._returns: list[ReturningMessage] = []
        self._giving_back = 0
        self._waits: list[CommitWait] = []
        self._commit_at = 0.0
        self._lock_at = 0.0

    # What belongs to this member

    def own(self, topic: str, wanted: Iterable[MessageQueue]) -> None:
        """From now on these are the queues of the topic."""
        wanted = set(wanted)
        for queue in [one for one in self.owned if one.topic == topic and one not in wanted]:
            self.drop(self.owned[queue])
        for queue in sorted(wanted - self.owned.keys()):
            self.owned[queue] = OwnedQueue(queue)

    def drop(self, owned: OwnedQueue) -> None:
        """Another member's now. Its place goes to the node first; what is in hand comes again
        there."""
        del self.owned[owned.queue]
        owned.is_dropped = True
        place = owned.place(self._settings.auto_commit)
        if self.exchange is not None and place is not None and place != owned.committed:
            self.exchange.notify(*self._commit_of(owned, place))
        if owned.progress is None or not owned.progress.in_hand:
            self._unlock(owned)
        self._end_waits()

    def lost(self) -> None:
        """The connection is gone. Messages that are held stay, and may be settled."""
        self.exchange = None
        for owned in self.owned.values():
            owned.is_starting = owned.is_pulling = owned.is_committing = False
            owned.not_before = 0.0
            owned.committed = None  # a gateway that died may not have passed it on
        self._lock_at = 0.0

    # Messages

    def take(self, now: float) -> GroupMessage | None:
        """The next message to hand out, the queues in turn; None while there is none.

        Raises MessageDamaged for a queue that stops there, each time it is its turn.
        """
        for _ in range(len(self._ready)):
            owned = self._ready.popleft()
            if self._settings.orderly and now >= owned.locked_until and not owned.is_dropped:
                self._ready.append(owned)  # its lock is being renewed
                continue
            owned.is_ready = False
            if owned.progress is None or owned.is_dropped:
                continue
            message = owned.progress.hand_out()
            self._line_up(owned)
            if message is not None:
                return message
            if owned.damage is not None:
                raise owned.damage
        return None

    @property
    def has_messages(self) -> bool:
        return bool(self._ready)

    def _line_up(self, owned: OwnedQueue) -> None:
        progress = owned.progress
        if owned.is_ready or progress is None:
            return
        if not progress.waiting and owned.damage is None:
            return
        if not self._settings.orderly or not progress.in_hand:
            owned.is_ready = True
            self._ready.append(owned)

    def settle(self, message: GroupMessage, delay_level: int | None, now: float) -> None:
        key: QueueKey = message.queue_key
        if not key.counts:
            if key.owned.is_dropped:
                key.progress.end(message.queue_offset)
                if not key.progress.in_hand:
                    self._unlock(key.owned)
        elif delay_level is None:
            self._end(message)
        elif self._settings.orderly and delay_level != DEAD_LETTER:
            message.attempts += 1
            times_max = self._settings.max_retries
            if times_max is not None and message.attempts > times_max:
                self._returns.append(ReturningMessage(message, DEAD_LETTER, now))
            else:
                self._returns.append(ReturningMessage(message, None, now + AGAIN_S))
        else:
            self._returns.append(ReturningMessage(message, delay_level, now))

    def _end(self, message: GroupMessage) -> None:
        key: QueueKey = message.queue_key
        key.progress.end(message.queue_offset)
        self._line_up(key.owned)

    # What is due

    def turn(self, now: float, is_closing: bool = False) -> float:
        """Asks for what is due; returns when there may be more. Not without a connection."""
        due = [now + REQUEST_S]
        if is_closing:
            # What this member would give out again comes again elsewhere.
            self._returns = [one for one in self._returns if one.delay_level is not None]
        self._give_back_due(now)
        due += [one.not_before for one in self._returns]
        if now >= self._commit_at or is_closing:
            self._commit_at = now + COMMIT_EVERY_S
            for owned in self.owned.values():
                self._commit(owned, now)
        due.append(self._commit_at)
        if not is_closing:
            due += self._read_on(now)
        return min(due)

    def _read_on(self, now: float) -> list[float]:
        """Starts and pulls queues; returns when others are due."""
        due: list[float] = []
        if self._settings.orderly:
            self._renew_locks(now)
        for owned in list(self.owned.values()):
            if owned.not_before > now:
                due.append(owned.not_before)
            elif owned.progress is None:
                self._start(owned, now)
            else:
                self._pull(owned, now)
        return due

    def is_at_rest(self) -> bool:
        """Whether nothing is left to commit or to give back: then the member may go."""
        auto = self._settings.auto_commit
        return (
            not self._returns
            and not self._giving_back
            and not any(
                owned.is_committing or owned.place(auto) not in (None, owned.committed)
                for owned in self.owned.values()
            )
        )

    def _ask(
        self, code: int, row: Any, now: float, done: WhenAnswered, seconds: float = REQUEST_S
    ) -> None:
        assert self.exchange is not None
        self.exchange.ask(code, write_ext(row), now + seconds, done)

    # Where a queue begins

    def _start(self, owned: OwnedQueue, now: float) -> None:
        if owned.is_starting or self.exchange is None:
            return
        owned.is_starting = True
        if self._settings.orderly and now >= owned.locked_until:
            self._lock([owned], now)
            return
        queue = owned.queue
        asked = header_fields.QueryConsumerOffsetHeader(
            self._settings.group, queue.topic, queue.queue_id
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        self._ask(code, asked, now, partial(self._started, owned, False))

    def _started(
        self, owned: OwnedQueue, is_first: bool, answer: RemotingAnswer | None, now: float
    ) -> None:
        """`is_first`: the answer says where a group without a place begins."""
        if owned.is_dropped or answer is None:
            return
        is_new = not is_first and answer.code == ResponseCode.QUERY_NOT_FOUND
        if is_new and self.exchange is not None:
            first = first_place(self._settings, owned.queue)
            if isinstance(first, int):
                self._begin(owned, first, None)
            else:
                done = partial(self._started, owned, True)
                self.exchange.ask(*first, now + REQUEST_S, done)
            return
        found = answer.ext.get("offset") if answer.code == ResponseCode.SUCCESS else None
        offset = _number(found)
        if offset is None:
            whose = "queue" if is_first else "group"
            self._refused(owned, f"the {whose}'s place is not known", answer, now)
        else:
            self._begin(owned, offset, None if is_first else offset)

    def _begin(self, owned: OwnedQueue, offset: int, committed: int | None) -> None:
        owned.begin(offset)
        # A new group keeps where it began: else its next member would begin later.
        owned.committed, owned.to_commit = committed, offset
        self._commit_at = 0.0

    def _refused(self, owned: OwnedQueue, event: str, answer: RemotingAnswer, now: float) -> None:
        owned.is_starting = False
        owned.not_before = now + REFUSED_S
        if answer.code == ResponseCode.NO_PERMISSION:
            self.is_refused = True
        log.warning("%s, %s: code %d, %s", event, owned.queue, answer.code, answer.remark)

    # Pulls

    def _room(self, progress: QueueProgress) -> tuple[int, int] | None:
        """How many messages, and bytes, the next pull may bring; None while it has to wait."""
        settings, queues = self._settings, max(1, len(self.owned))
        share = max(1, settings.max_messages // queues)
        at_once = min(PULL_MESSAGES_AT_ONCE, share)
        room = share - progress.held
        room_bytes = max(1, settings.max_bytes // queues) - progress.held_bytes
        # Not for each message that was handled a pull of one.
        if 2 * room < at_once or room_bytes <= 0 or progress.span >= SPAN_MAX:
            return None
        return min(at_once, room), min(PULL_BYTES_AT_ONCE, room_bytes)

    def may_pull(self, message: GroupMessage) -> bool:
        """Whether the queue of a message that has ended waits for a turn to be pulled."""
        key: QueueKey = message.queue_key
        return not key.owned.is_pulling and self._room(key.progress) is not None

    def _pull(self, owned: OwnedQueue, now: float) -> None:
        settings, progress = self._settings, owned.progress
        assert progress is not None
        room = None if owned.is_pulling else self._room(progress)
        if room is None or owned.damage is not None:
            return
        queue, (messages, size) = owned.queue, room
        wanted = settings.subscriptions[queue.topic]
        asked = header_fields.PullMessageHeader(
            settings.group, queue.topic, queue.queue_id, progress.next_offset,
            messages, SUSPEND | SUBSCRIPTION, 0, int(HELD_S * 1000),
            wanted.sub_version, wanted.sub_string, wanted.expression_type, size,
            known_at=owned.known_at,
        )  # fmt: skip
        owned.is_pulling = True
        done = partial(self._pulled, owned, progress, now)
        self._ask(RequestCode.PULL_MESSAGE, asked, now, done, HELD_S + REQUEST_S)

    def _pulled(
        self,
        owned: OwnedQueue,
        progress: QueueProgress,
        asked_at: float,
        answer: RemotingAnswer | None,
        now: float,
    ) -> None:
        if not QueueKey(owned, progress).counts:
            return
        owned.is_pulling = False
        if answer is None:
            return
        damage = header_fields.named_damage(answer.ext)
        if damage is not None:
            self._meet(owned, progress, damage)
            return
        following = _number(answer.ext.get("nextBeginOffset"))
        if answer.code == ResponseCode.SUCCESS and following is not None:
            try:
                found = pulled_messages(answer.body, owned, self._settle)
            except StoreDamaged as error:
                log.error("%s", error.reason)  # noqa: TRY400 (the trace says nothing)
                owned.not_before = now + REFUSED_S
                return
            progress.take(found, following)
            if found:
                owned.known_at = found[-1].physical_offset
            self._line_up(owned)
        elif answer.code in _NO_MESSAGE and following is not None:
            if following == progress.next_offset and now < asked_at + PAUSE_S:
                owned.not_before = now + PAUSE_S
            progress.take([], following)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED and following is not None:
            self._move(owned, following, answer)
        else:
            self._refused(owned, "a pull was refused", answer, now)

    def _meet(self, owned: OwnedQueue, progress: QueueProgress, damage: MessageDamaged) -> None:
        """Goes on after a damaged message, or stops there, as the program wants it; what the
        node would have RocketMQ's clients do does not matter."""
        on_damage = self._settings.on_damage
        try:
            pass_over(damage, on_damage, log)
        except Exception:
            if on_damage != "fail":
                log.exception("on_damage has failed: %s", damage.reason)
            owned.damage = damage
            self._line_up(owned)
        else:
            progress.take([], damage.next_offset)

    def _move(self, owned: OwnedQueue, offset: int, answer: RemotingAnswer) -> None:
        """The group goes on elsewhere. Nobody waits for the commit of what it had before."""
        assert owned.progress is not None
        log.warning("%s goes on at %d: it was at %d (%s)", owned.queue, offset,
                    owned.progress.next_offset, answer.remark)  # fmt: skip
        for wait in self._waits:
            wait.places.pop(owned, None)
        self._begin(owned, offset, None)
        self._end_waits()

    # Commits

    def commit(self, now: float) -> CommitWait:
        places: dict[OwnedQueue, int] = {}
        for owned in self.owned.values():
            if owned.progress is not None:
                places[owned] = owned.to_commit = owned.progress.committable
        wait = CommitWait(places, Future())
        self._waits.append(wait)
        self._commit_at = now
        self._end_waits()
        return wait

    def _commit(self, owned: OwnedQueue, now: float) -> None:
        place = owned.place(self._settings.auto_commit)
        if place is None or place == owned.committed or owned.is_committing:
            return
        owned.is_committing = True
        code, ext = self._commit_of(owned, place)
        assert self.exchange is not None
        done = partial(self._committed, owned, owned.progress, place)
        self.exchange.ask(code, ext, now + REQUEST_S, done)

    def _commit_of(self, owned: OwnedQueue, place: int) -> tuple[int, dict[str, str]]:
        queue = owned.queue
        asked = header_fields.UpdateConsumerOffsetHeader(
            self._settings.group, queue.topic, queue.queue_id, place, owned.known_at
        )
        return RequestCode.UPDATE_CONSUMER_OFFSET, write_ext(asked)

    def _committed(
        self,
        owned: OwnedQueue,
        progress: QueueProgress | None,
        place: int,
        answer: RemotingAnswer | None,
        now: float,
    ) -> None:
        owned.is_committing = False
        if answer is None or owned.progress is not progress:
            return  # unknown, or of a place that does not count any more
        if answer.code == ResponseCode.SUCCESS:
            owned.committed = place
            self._end_waits()
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED and owned.progress is not None:
            self._move(owned, 0, answer)
        else:
            log.warning("%s was not committed: %s", owned.queue, answer.remark)

    def _end_waits(self) -> None:
        for wait in [one for one in self._waits if one.done.done() or one.is_over()]:
            self._waits.remove(wait)
            if not wait.done.done():
                wait.done.set_result(None)

    # What comes again

    def _give_back_due(self, now: float) -> None:
        returns, self._returns = self._returns, []
        for one in returns:
            if one.not_before <= now:
                self._give_back(one, now)
            else:
                self._returns.append(one)

    def _give_back(self, one: ReturningMessage, now: float) -> None:
        message = one.message
        key: QueueKey = message.queue_key
        if not key.counts:
            return
        if one.delay_level is None:
            message.settled = False
            key.progress.waiting.appendleft(message)
            self._line_up(key.owned)
            return
        record = message.record
        asked = header_fields.ConsumerSendMsgBackHeader(
            record.head.physical_offset, self._settings.group, one.delay_level,
            record.unique_key, record.topic, False, self._settings.max_retries,
        )  # fmt: skip
        self._giving_back += 1
        self._ask(RequestCode.CONSUMER_SEND_MSG_BACK, asked, now, partial(self._given_back, one))

    def _given_back(self, one: ReturningMessage, answer: RemotingAnswer | None, now: float) -> None:
        self._giving_back -= 1
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._end(one.message)
        elif answer is None or answer.code in BUSY:
            self._returns.append(one._replace(not_before=now + AGAIN_S))
        else:
            log.warning("a message was not taken back: code %d, %s", answer.code, answer.remark)
            again = one._replace(delay_level=None, not_before=now + HANDED_BACK_S)
            self._returns.append(again)

    # Locks, of orderly members

    def _renew_locks(self, now: float) -> None:
        mine = [owned for owned in self.owned.values() if owned.progress is not None]
        if now >= self._lock_at and mine:
            self._lock_at = now + LOCK_EVERY_S
            self._lock(mine, now)

    def _lock(self, queues: list[OwnedQueue], now: float) -> None:
        assert self.exchange is not None
        self.exchange.ask(
            RequestCode.LOCK_BATCH_MQ, {}, now + REQUEST_S, partial(self._locked, queues),
            self._lock_body(queues),
        )  # fmt: skip

    def _lock_body(self, queues: list[OwnedQueue]) -> bytes:
        names = tuple(owned.queue for owned in queues)
        body = LockBatchBody(self._settings.group, self._client_id, names)
        return write_body(body, standard=True)

    def _locked(self, queues: list[OwnedQueue], answer: RemotingAnswer | None, now: float) -> None:
        if answer is None:
            return
        granted: set[MessageQueue] = set()
        if answer.code == ResponseCode.SUCCESS:
            try:
                granted = set(read_body(LockedQueues, answer.body).lock_ok_mq_set)
            except BadCommand as error:
                log.warning("locks: %s", error.reason)
        for owned in queues:
            if owned.is_dropped:
                continue
            if owned.queue in granted:
                owned.locked_until = now + LOCK_TRUST_S
                if owned.progress is None:
                    owned.is_starting = False
                    self._start(owned, now)
            else:
                # Another member has it, for now: where that one stops is asked for then.
                owned.progress, owned.is_starting, owned.is_pulling = None, False, False
                owned.locked_until, owned.not_before = 0.0, now + AGAIN_S

    def _unlock(self, owned: OwnedQueue) -> None:
        if self._settings.orderly and self.exchange is not None and owned.locked_until:
            self.exchange.notify(RequestCode.UNLOCK_BATCH_MQ, {}, self._lock_body([owned]))
            owned.locked_until = 0.0


def _number(text: str | None) -> int | None:
    """An offset; None for anything else."""
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return int(text)
