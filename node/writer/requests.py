"""The writer's requests: from header and payload to an `AppendRequest`, and to the answer."""

from dataclasses import dataclass, replace
from functools import lru_cache
from hmac import compare_digest
from typing import NoReturn

from node.runtime.process import now_ms
from node.serving.request_server import Received
from node.writer.appender import AppendRequest
from node.writer.repeats import check_asked
from node.writer.store import WriterStore
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, MessageTooLarge, NotAllowed, UnknownOperation
from protocol.ids import Host, offset_message_id
from protocol.names import SYSTEM_GROUP_PREFIX
from protocol.record.append import Put
from protocol.record.codec import BORN_HOST_V6, STORE_HOST_V6
from protocol.record.encode import ANY_QUEUE, NewMessage, check_message, record_bytes
from protocol.record.patch import AppendRules
from protocol.record.properties import UNIQUE_KEY, WAIT
from protocol.record.waiting import RealPlace
from protocol.request_fields import WAIT_NONE, WAIT_REPLICATED
from protocol.requests import (
    APPEND,
    CREATE_TOPIC,
    CURSOR_COMMIT,
    CURSOR_GET,
    DELETE_GROUP,
    GROUPS,
    SEND,
    SendFields,
)
from protocol.wire.frames import PAYLOAD_BYTES_MAX, VERSION, Header, answer

PUT_OK = "PUT_OK"
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6

Turn = tuple[int, int, int]
"""When a turn of the writer's loop began, had read its requests, had appended them; in ns."""
NO_TURN: Turn = (0, 0, 0)
NOW = [None, None, None]
"""The delay level and the two times of an append that does not wait."""


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


def pending_append(received: Received, header: Header, store: WriterStore) -> PendingRequest:
    """The operation `append`. Raises BadRequest, MessageTooLarge, NotAllowed."""
    payload = received.payload
    if payload is None or len(payload) > PAYLOAD_BYTES_MAX:
        refuse_payload(payload)
    records, size, crc, sizes, queue_id, wait, right, *later, once = APPEND.values(header)
    append = batch_of(payload, records, size, crc, sizes, queue_id is not None)
    if right is not None:
        _check_right(store, right)
        append.is_inner = True
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


def _check_right(store: WriterStore, right: str) -> None:
    if not compare_digest(right.encode(), store.inner_right.encode()):
        raise NotAllowed("the right is not this node's", "leave the field out")


def _check_group(store: WriterStore, group: str, right: str | None) -> None:
    """Raises NotAllowed for places by which the node itself goes on, as those of transactions."""
    if right is not None:
        _check_right(store, right)
    elif group.startswith(SYSTEM_GROUP_PREFIX):
        raise NotAllowed(f"group {group} is the system's", "use a group of your own")


def pending_send(received: Received, header: Header, store: WriterStore) -> PendingRequest:
    """The operation `send`. Raises as `draft_of`."""
    if received.payload is not None:
        raise BadRequest("send is one frame, two came", "put the body into the header")
    asked = SEND.parse(header)
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
    asked: SendFields, topics: TopicTable, rules: AppendRules, sender: Host, now: int
) -> tuple[AppendRequest, NewMessage]:
    """Checks a message that a client gave as fields, and makes the draft that the appender encodes.

    `sender` is the born host, and `now` the born time, where the client names none.
    Raises BadRequest, IllegalMessage and its kinds, UnknownTopic.
    """
    message = _message(asked, sender, now)
    topic = topics.for_send(message.topic)
    if message.queue_id == ANY_QUEUE:
        message = replace(message, queue_id=topics.choose_queue(topic))
    topics.check_queue(topic, message.queue_id)
    properties = check_message(message, rules.crc, rules.max_message_bytes)
    put = Put(
        message.topic, message.body, message.queue_id, properties,
        message.born_timestamp, message.born_host,
        message.flag, message.sys_flag & ~_HOST_BITS, message.reconsume_times,
    )  # fmt: skip
    size = record_bytes(message, properties, rules.crc)
    return AppendRequest(b"", 1, draft=put, draft_bytes=size), message


def _message(asked: SendFields, sender: Host, now: int) -> NewMessage:
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


def answer_other(store: WriterStore, operation: str, header: Header, number: int) -> Header:
    """The good answer to an operation that appends nothing.

    Raises UnknownOperation, BadRequest, and what the tables refuse.
    """
    table, offsets = store.topics, store.offsets
    if operation == "ping":
        return answer(number)
    if operation == "topics":
        rows = [
            {
                "topic": topic.name,
                "read_queues": topic.read_queues,
                "write_queues": topic.write_queues,
                "perm": topic.perm,
                "retention_hours": topic.retention_hours,
            }
            for topic in table.all()
        ]
        return answer(number, topics=rows)
    if operation == "create_topic":
        topic, created = table.create(CREATE_TOPIC.parse(header))
        return answer(number, topic=topic.name, queues=topic.write_queues, created=created)
    if operation == "groups":
        rows = [
            {
                "group": one.group,
                "topic": one.topic,
                "offsets": [list(pair) for pair in one.offsets.items()],
                "moved_ms": [list(pair) for pair in one.moved_ms.items()],
            }
            for one in offsets.all_of(*GROUPS.parse(header))
        ]
        return answer(number, groups=rows)
    if operation == "delete_group":
        (group,) = DELETE_GROUP.parse(header)
        _check_group(store, group, None)
        return answer(number, deleted=offsets.forget_group(group))
    if operation == "cursor_get":
        name, group = CURSOR_GET.parse(header)
        found = [list(pair) for pair in sorted(offsets.get(name, group).items())]
        return answer(number, offsets=found, generation=store.removed.horizon(name))
    if operation == "cursor_commit":
        name, group, places, right, generation = CURSOR_COMMIT.parse(header)
        _check_group(store, group, right)
        store.removed.check_place(name, generation)
        offsets.commit(name, group, places)
        return answer(number)
    raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")
