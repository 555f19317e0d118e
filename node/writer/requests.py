"""The writer's requests: from header and payload to an `AppendRequest`, and to the answer.

Those whose answer waits for the disk or for followers are answered in groups (`GroupCommit`). The
process that serves followers publishes in its page up to where enough of them have the log, and
rings the writer when that is what a request waits for (`Acknowledgements`).
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hmac import compare_digest
from typing import NoReturn

from node.access.answers import USER_OPERATIONS
from node.access.asking import PortAsker
from node.runtime import stats_series as series
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from node.runtime.state_page import WorkerPage, WorkerState
from node.runtime.wakeup import FOLLOWERS_SLOT, WRITER_SLOT, Context, DatagramWakeup, Waiters
from node.serving.request_server import Received
from node.store.config.topics_file import Topic
from node.writer.appender import AppendRequest
from node.writer.repeats import check_asked
from node.writer.store import WriterStore
from node.writer.topic_table import TopicTable
from protocol import requests
from protocol.access.decision import Kind
from protocol.errors import BadRequest, MessageTooLarge, NotAllowed, UnknownOperation
from protocol.ids import Host, offset_message_id
from protocol.names import SYSTEM_GROUP_PREFIX
from protocol.record.append import Put, Sealer
from protocol.record.codec import BORN_HOST_V6, STORE_HOST_V6
from protocol.record.encode import NewMessage, check_message, record_bytes
from protocol.record.patch import AppendRules
from protocol.record.properties import UNIQUE_KEY, WAIT
from protocol.record.waiting import RealPlace
from protocol.request_fields import WAIT_NONE, WAIT_REPLICATED
from protocol.wire.frames import PAYLOAD_BYTES_MAX, VERSION, Header, answer, request_id

PUT_OK = "PUT_OK"
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6

Turn = tuple[int, int, int]
"""When a turn of the writer's loop began, had read its requests, had appended them; in ns."""
NO_TURN: Turn = (0, 0, 0)
NOW = [None, None, None]
"""The delay level and the two times of an append that does not wait."""
LOOK_S = 0.5
"""How often it looks for the page of the process that serves followers, and whether it is another
one by now."""


@dataclass(slots=True)
class PendingRequest:
    """One append from its request to its answer."""

    peer: bytes
    request_id: int
    append: AppendRequest
    wait: str | None
    """`none`, `flushed`, or None: as the store's flush mode says."""
    is_send: bool
    topic: str = ""
    unique_key: str = ""
    turn: Turn = NO_TURN
    """Set for a request that waits for the disk."""
    real_place: RealPlace | None = None
    """Of a message that waits for its delivery: where it goes then."""
    deliver_ms: int | None = None
    """Of one that waits for a time: that time, in ms since 1970."""

    def answer(self, store_host: Host, epoch: int, status: str, flushed: bool) -> Header:
        """The header of the answer to an append that succeeded."""
        done = self.append
        fields: Header = {
            "v": VERSION,
            "id": self.request_id,
            "ok": True,
            "status": status,
            "physical_offset": done.physical_offset,
            "store_timestamp": done.store_timestamp,
            "flushed": flushed,
            "epoch": epoch,
        }
        if self.is_send:
            _, queue_id, queue_offset, _ = done.queues[0]
            fields["topic"] = self.topic
            fields["queue_id"] = queue_id
            fields["queue_offset"] = queue_offset
            fields["msg_id"] = offset_message_id(store_host, done.physical_offset)
            fields["unique_key"] = self.unique_key
        else:
            fields["queues"] = done.queues
            if self.real_place is not None:
                fields["queues"] = [(*self.real_place, *done.queues[0][2:])]
            if self.deliver_ms is not None:
                fields["deliver_ms"] = self.deliver_ms
            fields["store_host"] = _text_of(store_host)
        return fields


class PendingOnce(PendingRequest):
    """One whose messages are stored once: the answer names those that were stored before."""

    __slots__ = ()

    def answer(self, store_host: Host, epoch: int, status: str, flushed: bool) -> Header:
        """As `PendingRequest.answer`. Where nothing new was stored, the log's place in it is that
        of the last of the first ones."""
        # Not super(): a dataclass with slots is another class than the one that it was made of.
        fields = PendingRequest.answer(self, store_host, epoch, status, flushed)
        repeats = self.append.repeats
        if repeats:
            fields["repeated"] = [[row, *repeats[row]] for row in sorted(repeats)]
            if self.real_place is not None:
                first = repeats[0]
                fields["queues"] = [(self.real_place.topic, first.queue_id, first.queue_offset, 1)]
        return fields


@lru_cache(maxsize=8)
def _text_of(host: Host) -> str:
    return str(host)


def pending_append(
    received: Received, header: Header, store: WriterStore, asker: PortAsker | None = None
) -> PendingRequest:
    """The operation `append`. Raises BadRequest, MessageTooLarge, NotAllowed, and with an `asker`
    what its records are refused with."""
    payload = received.payload
    if payload is None or len(payload) > PAYLOAD_BYTES_MAX:
        refuse_payload(payload)
    records, size, crc, sizes, queue_id, wait, right, *later, once = requests.APPEND.values(header)
    append = batch_of(payload, records, size, crc, sizes, queue_id is not None)
    if right is not None:
        _check_right(store, right, received)
        append.is_inner = True
    if asker is not None:
        check_topics(asker, append, store.checker)
    if wait == WAIT_REPLICATED:
        check_may_be_followed(store)
    kind: type[PendingRequest] = PendingRequest
    if once:
        check_asked(records, store.settings, is_timer=later[1:] != NOW[1:])
        kind = PendingOnce
    pending = kind(received.peer, header["id"], append, wait, False)
    if later != NOW:
        pending.append, pending.real_place, pending.deliver_ms = store.delays.hold(append, *later)
    if once:
        pending.append.repeats = {}
    return pending


def check_topics(asker: PortAsker, append: AppendRequest, checker: Sealer) -> None:
    """Asks of the topic of each record as it was sent, before a delay puts it elsewhere, a topic is
    made or anything stored. One foreign record refuses its request.

    Raises NotAllowed, and what an append of the records would be refused with.
    """
    for topic in dict.fromkeys(part.topic for part in checker.check(append)):
        asker.check_topic(topic)


def _check_right(store: WriterStore, right: str, received: Received) -> None:
    """Raises NotAllowed. The processes of a node come over local sockets: nobody who has seen the
    right can use it from another machine."""
    is_real = compare_digest(right.encode(), store.inner_right.encode())
    if not is_real or not received.is_own:
        raise NotAllowed("the right is not this node's", "leave the field out")


def _check_group(store: WriterStore, group: str, right: str | None, received: Received) -> None:
    """Raises NotAllowed for places by which the node itself goes on, as those of transactions."""
    if right is not None:
        _check_right(store, right, received)
    elif group.startswith(SYSTEM_GROUP_PREFIX):
        raise NotAllowed(f"group {group} is the system's", "use a group of your own")


def pending_send(received: Received, header: Header, store: WriterStore) -> PendingRequest:
    """The operation `send`. Raises as `draft_of`."""
    if received.payload is not None:
        raise BadRequest("send is one frame, two came", "put the body into the header")
    asked = requests.SEND.parse(header)
    append, message = draft_of(asked, store.topics, store.rules, received.sender(), now_ms())
    wait = asked.wait if message.wait else WAIT_NONE
    if wait == WAIT_REPLICATED:
        check_may_be_followed(store)
    names = message.topic, message.unique_key
    kind: type[PendingRequest] = PendingRequest
    if asked.once:
        check_asked(1, store.settings)
        append.repeats = {}
        kind = PendingOnce
    return kind(received.peer, header["id"], append, wait, True, *names)


def check_may_be_followed(store: WriterStore) -> None:
    """Raises NotAllowed for a request that would wait for followers in vain."""
    if not store.may_be_followed:
        raise NotAllowed("nobody may follow this node", "start it with --ha HOST:PORT")


def draft_of(
    asked: requests.SendFields, topics: TopicTable, rules: AppendRules, sender: Host, now: int
) -> tuple[AppendRequest, NewMessage]:
    """Checks a message that a client gave as fields, and makes the draft that the appender encodes.

    `sender` is the born host, and `now` the born time, where the client names none.
    Raises BadRequest, IllegalMessage and its kinds, UnknownTopic.
    """
    message = _message(asked, sender, now)
    queue_id = topics.queue_of(topics.for_send(message.topic), message.queue_id)
    if queue_id != message.queue_id:
        message = replace(message, queue_id=queue_id)
    properties = check_message(message, rules.crc, rules.max_message_bytes)
    put = Put(
        message.topic, message.body, message.queue_id, properties,
        message.born_timestamp, message.born_host,
        message.flag, message.sys_flag & ~_HOST_BITS, message.reconsume_times,
    )  # fmt: skip
    size = record_bytes(message, properties, rules.crc)
    return AppendRequest(b"", 1, draft=put, draft_bytes=size), message


def _message(asked: requests.SendFields, sender: Host, now: int) -> NewMessage:
    # Reserved names that come as properties stay as they came (two spaces in KEYS, WAIT=true):
    # the fields only win over them.
    properties = asked.properties or {}
    born, unique_key = asked.born_timestamp, asked.unique_key
    return NewMessage(
        topic=asked.topic,
        body=asked.body,
        queue_id=asked.queue_id,
        tags=asked.tags,
        keys=asked.keys,
        properties=properties,
        unique_key=properties.get(UNIQUE_KEY, "") if unique_key is None else unique_key,
        flag=asked.flag,
        sys_flag=asked.sys_flag,
        born_timestamp=now if born is None else born,
        born_host=asked.born_host or sender,
        reconsume_times=asked.reconsume_times,
        wait=asked.wait != WAIT_NONE and properties.get(WAIT) != "false",
    )


def refuse_payload(payload: bytes | memoryview | None) -> NoReturn:
    """Raises BadRequest or MessageTooLarge for the second frame of `append` or `stage`."""
    if payload is None:
        raise BadRequest("append is two frames, one came", "send the records as the second frame")
    raise MessageTooLarge(
        f"the batch has {len(payload)} bytes, {PAYLOAD_BYTES_MAX} are allowed",
        "send smaller batches",
    )


def batch_of(
    payload: bytes | memoryview, records: int, size: int, crc: int, sizes: bytes, any_queue: bool
) -> AppendRequest:
    """The records with the header's claims about them, which the appender checks.

    Raises BadRequest where header and frame disagree.
    """
    if size != len(payload):
        raise BadRequest(f"the header says {size} bytes, the frame has {len(payload)}")
    if sizes and len(sizes) != 4 * records:
        raise BadRequest(f"sizes has {len(sizes)} bytes for {records} records", "4 bytes a record")
    return AppendRequest(payload, records, sizes, any_queue, crc)


def answer_other(
    store: WriterStore,
    operation: str,
    header: Header,
    received: Received,
    asker: PortAsker | None = None,
) -> Header:
    """The good answer to an operation that appends nothing. `asker`: who lists are cut for.

    Raises UnknownOperation, BadRequest, NotAllowed, and what the tables refuse.
    """
    table, offsets, number = store.topics, store.offsets, request_id(header)
    if operation in USER_OPERATIONS:
        caller = store.port.caller_of(received, operation)
        answered = store.users.answer(operation, header, number, now_ms(), caller)
        store.port.take_in()  # a change counts for the next request
        return answered
    if operation == "ping":
        return answer(number)
    sees = _all if asker is None or asker.sees_all else asker.sees
    if operation == "topics":
        rows = [_row(topic) for topic in table.all() if sees(Kind.TOPIC, topic.name)]
        return answer(number, topics=rows)
    if operation == "create_topic":
        topic, created = table.create(requests.CREATE_TOPIC.parse(header))
        return answer(number, topic=topic.name, queues=topic.write_queues, created=created)
    if operation == "groups":
        rows = [
            {
                "group": one.group,
                "topic": one.topic,
                "offsets": [list(pair) for pair in one.offsets.items()],
                "moved_ms": [list(pair) for pair in one.moved_ms.items()],
            }
            for one in offsets.all_of(*requests.GROUPS.parse(header))
            if sees(Kind.GROUP, one.group) and sees(Kind.TOPIC, one.topic)
        ]
        return answer(number, groups=rows)
    if operation == "delete_group":
        (group,) = requests.DELETE_GROUP.parse(header)
        _check_group(store, group, None, received)
        return answer(number, deleted=offsets.forget_group(group))
    if operation == "cursor_get":
        name, group = requests.CURSOR_GET.parse(header)
        found = [list(pair) for pair in sorted(offsets.get(name, group).items())]
        return answer(number, offsets=found, generation=store.removed.horizon(name))
    if operation == "cursor_commit":
        name, group, places, right, generation = requests.CURSOR_COMMIT.parse(header)
        _check_group(store, group, right, received)
        store.removed.check_place(name, generation)
        offsets.commit(name, group, places)
        return answer(number)
    raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")


def _all(_kind: Kind, _name: str) -> bool:
    """Everything is seen where no list is cut."""
    return True


def _row(topic: Topic) -> Header:
    return {
        "topic": topic.name,
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "perm": topic.perm,
        "retention_hours": topic.retention_hours,
    }


Waiting = tuple[int, float, PendingRequest]
"""Answered when the log is flushed or acknowledged up to this offset, or at the deadline."""
Answer = Callable[[list[PendingRequest], str, bool], None]
_NOBODY = WorkerState(*(0 for _ in WorkerState._fields))


class GroupCommit:
    """The requests that wait for disk or followers, bounded in number and bytes. Offsets and
    deadlines ascend."""

    def __init__(self, settings: Settings) -> None:
        self._count_max = settings.send_thread_pool_queue_capacity
        self._bytes_max = settings.waiting_bytes_max
        self._timeout_s = settings.sync_flush_timeout / 1000
        self._slave_timeout_s = settings.slave_timeout / 1000
        self._requests: deque[Waiting] = deque()
        self._for_followers: deque[Waiting] = deque()
        self._bytes = 0
        self.count = 0
        """How many requests wait."""
        self.is_full = False
        """Whether one more is refused, before any of its records is stored."""

    def put(self, pending: PendingRequest, now: float, for_followers: bool = False) -> None:
        """Lets an appended request wait for the disk, or until enough followers have it."""
        waiting, timeout_s = self._requests, self._timeout_s
        if for_followers:
            waiting, timeout_s = self._for_followers, self._slave_timeout_s
        waiting.append((pending.append.end, now + timeout_s, pending))
        self._note(1, pending.append.size)

    def _note(self, count: int, size: int) -> None:
        self.count += count
        self._bytes += size
        self.is_full = self.count >= self._count_max or self._bytes >= self._bytes_max

    @property
    def wanted(self) -> int:
        """The log offset that the first request needs followers to have; 0 where none waits."""
        return self._for_followers[0][0] if self._for_followers else 0

    def reached(self, offset: int, by_followers: bool = False) -> list[PendingRequest]:
        """Takes out the requests that a flush up to `offset` covers, or that followers have up to
        there; oldest first."""
        waiting = self._for_followers if by_followers else self._requests
        return self._take(waiting, lambda one: one[0] <= offset)

    def overdue(self, now: float, for_followers: bool = False) -> list[PendingRequest]:
        """Takes out the requests whose deadline has passed: a timeout, yet stored."""
        waiting = self._for_followers if for_followers else self._requests
        return self._take(waiting, lambda one: one[1] <= now)

    def _take(
        self, waiting: deque[Waiting], is_done: Callable[[Waiting], bool]
    ) -> list[PendingRequest]:
        taken = []
        while waiting and is_done(waiting[0]):
            taken.append(waiting.popleft()[2])
            self._note(-1, -taken[-1].append.size)
        return taken


class Acknowledgements:
    """One for each writer whose node may be followed. The current folder is `keelog/run`.

    `answer` gets requests, their status, and whether they are flushed. `show` gets up to where
    readers may see the log, where that waits for followers too.
    """

    def __init__(
        self,
        store: WriterStore,
        waiting: GroupCommit,
        context: Context,
        answer: Answer,
        show: Callable[[int], None],
    ) -> None:
        settings = store.settings
        self._store = store
        self._waiting = waiting
        self._answer = answer
        self._show = show
        self._shows = settings.shows_replicated
        self._shown = store.page.read().readable
        self._needed = settings.followers_needed
        self._is_usual = settings.waits_for_followers
        self._is_sync_flush = settings.is_sync_flush
        self._page: WorkerPage | None = None
        self._look_at = 0.0
        self._wanted = 0
        self.has_followers = False
        """Whether somebody follows the node, as of the last look."""
        self._wakeup = DatagramWakeup(WRITER_SLOT)
        self.fd = self._wakeup.watched
        """Readable when followers have acknowledged what was wanted."""
        self._servers = Waiters(context, store.root, FOLLOWERS_SLOT.__eq__)

    def take(self, pending: PendingRequest, now: float) -> bool:
        """Lets an appended request wait if it has to."""
        wait = pending.wait
        waits = wait == WAIT_REPLICATED or (self._is_usual and wait != WAIT_NONE)
        if waits:
            self._waiting.put(pending, now, for_followers=True)
        return waits

    def flushed(self, offset: int) -> None:
        """Rings the process that serves followers: there is more to send."""
        self._servers.wake(self._store.epoch, offset)

    def turn(self, now: float, flushed: int) -> None:
        """Replies to the requests that enough followers have, and those that waited too long."""
        self._wakeup.hush()
        while True:
            self._want()
            if not self._wanted:
                break
            state = self._state(now)
            # Of an earlier epoch: it speaks of a log that was perhaps longer.
            reached = state.dispatched if state.epoch == self._store.epoch else 0
            safe = min(reached, flushed)
            if self._shows and safe > self._shown:
                self._shown = safe
                self._show(safe)
            done = self._waiting.reached(safe, by_followers=True)
            if not done:
                self._give_up(now, flushed, state.held)
                break
            self._answer(done, PUT_OK, True)
        if now >= self._look_at:
            self.has_followers = self._state(now).held > 0
            self._look_at = now + LOOK_S
            self._servers.look()
            if self._page is not None and self._page.is_replaced:
                self._page.close()
                self._page = None

    def _want(self) -> None:
        """Asks for a ring before it looks: what is acknowledged in between is not missed."""
        wanted = self._waiting.wanted
        if not wanted and self._shows and self._shown < self._store.log.end:
            wanted = self._store.log.end  # nobody waits for an answer, but readers do
        if wanted != self._wanted:
            self._wanted = wanted
            self._store.page.publish(wants_acknowledged=wanted)

    def _give_up(self, now: float, flushed: int, connected: int) -> None:
        """Replies to overdue requests: all of them are stored."""
        late = self._waiting.overdue(now, for_followers=True)
        if not late:
            return
        status = (
            series.FLUSH_SLAVE_TIMEOUT if connected >= self._needed else series.SLAVE_NOT_AVAILABLE
        )
        on_disk = [pending for pending in late if pending.append.end <= flushed]
        others = late[len(on_disk) :]
        self._answer(on_disk, status, True)
        self._answer(others, series.FLUSH_DISK_TIMEOUT if self._is_sync_flush else status, False)
        self._want()

    def _state(self, now: float) -> WorkerState:
        with suppress(FileNotFoundError):
            if self._page is None and now >= self._look_at:
                self._page = WorkerPage.open(self._store.root, FOLLOWERS_SLOT)
            if self._page is not None:
                return self._page.read()
        return _NOBODY

    def close(self) -> None:
        self._wakeup.close()
        self._servers.close()
        if self._page is not None:
            self._page.close()
