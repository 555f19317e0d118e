"""From a client's header and payload to an `AppendRequest`, and from its outcome to the answer."""

from dataclasses import dataclass, replace
from functools import lru_cache

from node.runtime.process import now_ms
from node.serving.request_server import Received
from node.writer.append_request import AppendRequest
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, MessageTooLarge
from protocol.message_id import Host, offset_message_id, parse_host
from protocol.names import QUEUE_ID_MAX
from protocol.record.codec import BORN_HOST_V6, RECORD_BYTES_MIN, STORE_HOST_V6
from protocol.record.encode import ANY_QUEUE, NewMessage, check_message, record_bytes
from protocol.record.kernel_put import Put
from protocol.record.patch import AppendRules
from protocol.record.properties import UNIQUE_KEY, WAIT, split_keys
from protocol.wire.frames import PAYLOAD_BYTES_MAX, VERSION, Header, take, take_int

PUT_OK = "PUT_OK"
FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
WAIT_NONE = "none"
WAIT_FLUSHED = "flushed"
PORT_MAX = 65_535
_INT32 = 2**31
_INT64 = 2**63
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_CRC_MAX = 2**32 - 1
_RECORDS_MAX = PAYLOAD_BYTES_MAX // RECORD_BYTES_MIN


Turn = tuple[int, int, int]
"""When a turn of the writer's loop began, had read its requests, had appended them: clock's ns."""
NO_TURN: Turn = (0, 0, 0)


@dataclass(slots=True)
class PendingRequest:
    """One request on its way: who asked, what for, and how long the answer waits."""

    peer: bytes
    request_id: int
    append: AppendRequest
    wait: str | None
    """`none`, `flushed`, or None: as the store's flush mode says."""
    is_send: bool
    topic: str = ""
    unique_key: str = ""
    turn: Turn = NO_TURN
    """Of a request that waits for the disk."""

    def answer(self, store_host: Host, epoch: int, status: str, flushed: bool) -> Header:
        """The header of the good answer."""
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
            fields["store_host"] = _text_of(store_host)
        return fields


@lru_cache(maxsize=8)
def _text_of(host: Host) -> str:
    return str(host)


def pending_append(received: Received, header: Header) -> PendingRequest:
    """The operation `append`. Raises BadRequest, MessageTooLarge."""
    wait = parse_wait(header) if "wait" in header else None
    append = parse_append(header, received.payload)
    return PendingRequest(received.peer, header["id"], append, wait, is_send=False)


def pending_send(
    received: Received, header: Header, topics: TopicTable, rules: AppendRules
) -> PendingRequest:
    """The operation `send`. Raises as `parse_send`."""
    wait = parse_wait(header)
    header.setdefault("born_timestamp", now_ms())
    append, message = parse_send(header, received.payload, topics, rules, received.sender())
    if not message.wait:
        wait = WAIT_NONE
    names = message.topic, message.unique_key
    return PendingRequest(received.peer, header["id"], append, wait, True, *names)


def parse_wait(header: Header) -> str | None:
    """The field `wait`. Raises BadRequest."""
    if "wait" not in header:
        return None
    wait = take(header, "wait", str, None)
    if wait not in (None, WAIT_NONE, WAIT_FLUSHED):
        raise BadRequest(f"field wait is {wait[:40]!a}", "use none, flushed, or leave it out")
    return wait  # type: ignore[no-any-return]


def parse_send(
    header: Header,
    payload: bytes | memoryview | None,
    topics: TopicTable,
    rules: AppendRules,
    sender: Host,
) -> tuple[AppendRequest, NewMessage]:
    """One message as fields. Raises BadRequest, IllegalMessage and its kinds, UnknownTopic.

    `sender` is the born host when the client names none; its time is left 0 for the caller.
    """
    if payload is not None:
        raise BadRequest("send is one frame, two came", "put the body into the header")
    message = _message(header, sender)
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


def _message(header: Header, sender: Host) -> NewMessage:
    properties = _text_map(header, "properties")
    keys = header.get("keys")
    if isinstance(keys, str):
        keys = split_keys(keys)
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    ):
        raise BadRequest("field keys is no list of strings")
    born_host = take(header, "born_host", str, "")
    if born_host and parse_host(born_host).port > PORT_MAX:
        raise BadRequest(f"born_host is {born_host[:40]!a}", f"use a port in [0, {PORT_MAX}]")
    # Reserved names that come as properties stay as they came (two spaces in KEYS, WAIT=true):
    # the fields only win over them.
    return NewMessage(
        topic=take(header, "topic", str),
        body=take(header, "body", bytes),
        queue_id=take_int(header, "queue", ANY_QUEUE, QUEUE_ID_MAX, ANY_QUEUE),
        tags=take(header, "tags", str, ""),
        keys=tuple(keys or ()),
        properties=properties,
        unique_key=take(header, "unique_key", str, properties.get(UNIQUE_KEY, "")),
        flag=take_int(header, "flag", -_INT32, _INT32 - 1, 0),
        sys_flag=take_int(header, "sys_flag", -_INT32, _INT32 - 1, 0),
        born_timestamp=take_int(header, "born_timestamp", -_INT64, _INT64 - 1, 0),
        born_host=parse_host(born_host) if born_host else sender,
        reconsume_times=take_int(header, "reconsume_times", -_INT32, _INT32 - 1, 0),
        wait=parse_wait(header) != WAIT_NONE and properties.get(WAIT) != "false",
    )


def _text_map(header: Header, name: str) -> dict[str, str]:
    found = take(header, name, dict, {})
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in found.items()):
        raise BadRequest(f"field {name} is no map of strings to strings")
    return found  # type: ignore[no-any-return]


def parse_append(header: Header, payload: bytes | memoryview | None) -> AppendRequest:
    """A batch of records, with what the header says of them; the appender holds them against it."""
    count, size, crc = header.get("count"), header.get("bytes"), header.get("crc")
    sizes, queue = header.get("sizes", b""), header.get("queue")
    if (
        payload is not None
        and type(count) is type(size) is type(crc) is int
        and type(sizes) is bytes
        and 1 <= count <= _RECORDS_MAX
        and len(payload) == size <= PAYLOAD_BYTES_MAX
        and 0 <= crc <= _CRC_MAX
        and (not sizes or len(sizes) == 4 * count)
        and (queue is None or (type(queue) is int and queue == ANY_QUEUE))
    ):
        return AppendRequest(payload, count, sizes, queue is not None, crc)
    return _parse_append(header, payload)


def _parse_append(header: Header, payload: bytes | memoryview | None) -> AppendRequest:
    """As `parse_append`, slowly: says what is wrong."""
    if payload is None:
        raise BadRequest("append is two frames, one came", "send the records as the second frame")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MessageTooLarge(
            f"the batch has {len(payload)} bytes, {PAYLOAD_BYTES_MAX} are allowed",
            "send smaller batches",
        )
    count = take_int(header, "count", 1, _RECORDS_MAX)
    size = take_int(header, "bytes", 0, PAYLOAD_BYTES_MAX)
    if size != len(payload):
        raise BadRequest(f"the header says {size} bytes, the frame has {len(payload)}")
    crc = take_int(header, "crc", 0, _CRC_MAX)
    sizes = take(header, "sizes", bytes, b"")
    if sizes and len(sizes) != 4 * count:
        raise BadRequest(f"sizes has {len(sizes)} bytes for {count} records", "4 bytes a record")
    queue = take_int(header, "queue", ANY_QUEUE, ANY_QUEUE, None)
    return AppendRequest(payload, count, sizes, any_queue=queue is not None, crc=crc)
