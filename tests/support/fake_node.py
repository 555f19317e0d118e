"""A node in one thread and in memory, for tests of clients: the wire of docs/protocol.md.

It keeps what it is sent, and misbehaves on demand: lost answers, refusals, restarts, held pulls.
"""

import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import psutil
import zmq

from keelog.client.client import Client
from protocol.errors import BadRequest, MqError, NotFound, UnknownOperation, UnknownTopic
from protocol.ids import offset_message_id, parse_host, parse_offset_message_id
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_message
from protocol.record.patch import AppendRules, PlainRow, StoreStamp, check_plain, patch_plain
from protocol.wire import frames as wire
from tests.support.node import wait_until

RULES = AppendRules(4 * 1024 * 1024, crc=True)
STORE_HOST = parse_host("127.0.0.1:7850")
PORTS = (61_000, 65_536)
"""No connection is given one of these by the kernel: a socket can have its port again."""
AT_ONCE_S = 60.0
"""What a machine that others use may take for what is done at once."""
Header = dict[str, Any]


class Reply(NamedTuple):
    """The fields of a good answer, and its payload."""

    fields: Header
    payload: bytes = b""


class Held(NamedTuple):
    """A pull that waits for messages."""

    until: float
    identity: bytes
    header: Header


class Late(NamedTuple):
    """An answer that is kept back."""

    until: float
    op: str
    name: str
    identity: bytes
    answer: Header


class Memory:
    """What the fake node has stored."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.starts: list[int] = []
        self.end = 0
        self.queues: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.topics: dict[str, int] = {}
        self.auto_create = True

    def need_topic(self, topic: str) -> int:
        """The number of its queues; makes it where that is allowed."""
        if topic not in self.topics:
            if not self.auto_create:
                raise UnknownTopic(f"topic {topic} does not exist")
            self.topics[topic] = 8
        return self.topics[topic]

    def store(self, frame: bytes, queue: int | None) -> Header:
        """Checks, then stores, as the writer does."""
        rows = check_plain(frame, RULES)
        chosen = self._chosen_queue(rows, queue)
        for row in rows:
            queue_id = row.queue_id if chosen is None else chosen
            if not 0 <= queue_id < self.need_topic(row.topic):
                raise BadRequest(f"queue {queue_id} is outside of topic {row.topic}")
        buffer = bytearray(frame)
        first, now = self.end, int(time.time() * 1000)
        counts: dict[tuple[str, int], list[int]] = {}
        for row in rows:
            key = (row.topic, row.queue_id if chosen is None else chosen)
            placed, offset = replace(row, queue_id=key[1]), len(self.queues[key])
            stamp = StoreStamp(now, STORE_HOST.to_bytes())
            patch_plain(buffer, placed, offset, self.end, stamp, crc=True)
            self._keep(bytes(buffer[row.start : row.start + row.size]), key)
            counts.setdefault(key, [offset, 0])[1] += 1
        return {
            "status": "PUT_OK",
            "physical_offset": first,
            "queues": [[topic, q, *counts[topic, q]] for topic, q in counts],
            "store_timestamp": now,
            "store_host": str(STORE_HOST),
            "flushed": False,
            "epoch": 1,
        }

    def _chosen_queue(self, rows: list[PlainRow], queue: int | None) -> int | None:
        if queue is None:
            return None
        if len({row.topic for row in rows}) != 1:
            raise BadRequest("queue -1 needs records of one topic")
        return len(self.records) % self.need_topic(rows[0].topic)

    def _keep(self, raw: bytes, key: tuple[str, int]) -> None:
        record = decode(raw, 0, self.end)
        assert isinstance(record, Record)
        self.starts.append(self.end)
        self.records.append(record)
        self.queues[key].append(record)
        self.end += len(raw)


class FakeNode:
    """Control, writer and reader sockets on free ports of 127.0.0.1."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.seen: list[Header] = []
        self.lose_answers: dict[str, int] = {}
        self.refuse: dict[str, list[MqError]] = {}
        self.delay: dict[str, float] = {}
        """So long answers of a kind are kept, or until the entry is taken away."""
        self.writer_error: Header | None = None
        self.hold_pulls = True
        self.held_max = 0
        """So many pulls have waited at the same time, at most."""
        self.routes_without_readers = 0
        """So many answers to `routes` name no reader: the node is starting."""
        self.readers_count = 1
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands: list[tuple[Callable[[], None], threading.Event]] = []
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._held: list[Held] = []
        self._loses_part = False
        self._late: list[Late] = []
        self._stopping = False
        self.endpoints: dict[str, str] = {}
        for name in ("control", "writer", "reader"):
            self._bind(name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The control address."""
        return self.endpoints["control"]

    def lose_next_part(self) -> None:
        """The next answer of a stream does not go out."""
        self._loses_part = True

    def held_offsets(self) -> list[int]:
        """Where the pulls stand that wait now."""
        return [held.header["offset"] for held in self._held]

    def stored(self, topic: str | None = None) -> list[Record]:
        """What was stored, in order."""
        return [r for r in self.memory.records if topic in (None, r.topic)]

    def operations(self, op: str) -> list[Header]:
        """The requests of one kind that have come."""
        return [header for header in list(self.seen) if header.get("op") == op]

    def close(self) -> None:
        """Stops the thread."""
        self._stopping = True
        self._thread.join(AT_ONCE_S)

    def stop_process(self, name: str) -> None:
        """Closes one socket, as the end of the process would; behind it, its peers can know."""
        self._do(lambda: self._unbind(name))
        port = int(self.endpoints[name].rpartition(":")[2])
        wait_until(lambda: not _is_connected(port), f"the {name} still has connections")

    def start_process(self, name: str, same_port: bool = True) -> None:
        """Opens it again, at the same address or another one."""
        self._do(lambda: self._bind(name, self.endpoints[name] if same_port else None))

    def _do(self, command: Callable[[], None]) -> None:
        done = threading.Event()
        self._commands.append((command, done))
        assert done.wait(AT_ONCE_S)

    def _bind(self, name: str, endpoint: str | None = None) -> None:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 200)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if endpoint is None:
            port = socket.bind_to_random_port("tcp://127.0.0.1", *PORTS)
            endpoint = f"tcp://127.0.0.1:{port}"
        else:
            _bind_again(socket, endpoint)
        self._sockets[name] = socket
        self.endpoints[name] = endpoint

    def _unbind(self, name: str) -> None:
        self._sockets.pop(name).close(linger=0)

    def _run(self) -> None:
        while not self._stopping:
            while self._commands:
                command, done = self._commands.pop(0)
                command()
                done.set()
            poller = zmq.Poller()
            names = {socket: name for name, socket in self._sockets.items()}
            for socket in names:
                poller.register(socket, zmq.POLLIN)
            for socket, _ in poller.poll(2):
                self._serve(names[socket], socket)
            self._answer_held()
            self._answer_late()
        for socket in self._sockets.values():
            socket.close()
        self._context.term()

    def _serve(self, name: str, socket: "zmq.Socket[bytes]") -> None:
        for _ in range(200):
            try:
                identity, frame, *rest = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._one(name, identity, frame, rest[0] if rest else b"")

    def _one(self, name: str, identity: bytes, frame: bytes, payload: bytes) -> None:
        header = wire.unpack(frame)
        self.seen.append(header)
        op, number = wire.check_envelope(header), wire.request_id(header)
        try:
            if self.refuse.get(op):
                raise self.refuse[op].pop(0)
            reply = getattr(self, f"_{name}_{op}", self._unknown)(header, payload, identity)
        except MqError as error:
            self._answer(name, identity, wire.refusal(number, error), b"")
            return
        if reply is None:
            return
        if self.lose_answers.get(op, 0) > 0:
            self.lose_answers[op] -= 1
            return
        answer = wire.answer(number, **reply.fields)
        if op in self.delay:
            self._late.append(Late(time.monotonic() + self.delay[op], op, name, identity, answer))
        else:
            self._answer(name, identity, answer, reply.payload)

    def _answer(self, name: str, identity: bytes, header: Header, payload: bytes) -> None:
        frames = [identity, wire.pack(header), *([payload] if payload else [])]
        try:
            self._sockets[name].send_multipart(frames, zmq.NOBLOCK)
        except (zmq.ZMQError, KeyError):
            return

    def _answer_late(self) -> None:
        now = time.monotonic()
        for late in list(self._late):
            if late.until <= now or late.op not in self.delay:
                self._late.remove(late)
                self._answer(late.name, late.identity, late.answer, b"")

    def _answer_held(self) -> None:
        now = time.monotonic()
        for held in list(self._held):
            reply = self._pull_now(held.header)
            if reply.payload or held.until <= now:
                self._held.remove(held)
                answer = wire.answer(wire.request_id(held.header), **reply.fields)
                if reply.payload and held.header.get("stream"):
                    answer |= {"more": True, "offset": held.header["offset"]}
                    behind = {**held.header, "offset": reply.fields["next_begin_offset"]}
                    self._held.append(held._replace(header=behind))
                    if self._loses_part:
                        self._loses_part = False
                        continue
                self._answer("reader", held.identity, answer, reply.payload)

    def _unknown(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        raise UnknownOperation(f"no operation {header['op']}")

    # Control

    def _control_routes(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        self.routes_without_readers -= 1
        return Reply(
            {
                "writer": None if self.writer_error else self.endpoints["writer"],
                "writer_error": self.writer_error,
                "readers": [] if self.routes_without_readers >= 0 else [self.endpoints["reader"]],
                "crc": True,
                "max_message_size": RULES.max_message_bytes,
                "epoch": 1,
                "node": "fake",
                "shards": 1,
            }
        )

    def _control_status(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        process = {"role": "writer", "index": 0, "pid": os.getpid(), "state": "running", "new": 1}
        end = self.memory.end
        log = {"min": 0, "appended": end, "committed": end, "flushed": 0, "readable": end}
        disk = {"free_bytes": 1, "used_ratio": 0.5}
        fields = {"ready": True, "store": "memory", "processes": [process], "log": log}
        return Reply({**fields, "disk": disk})

    def _control_health(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        return Reply({"ready": True, "checks": [{"name": "writer", "ok": True, "detail": "runs"}]})

    # Writer

    def _writer_topics(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        items = [
            {"topic": topic, "read_queues": n, "write_queues": n, "perm": 6}
            for topic, n in self.memory.topics.items()
        ]
        return Reply({"topics": items})

    def _writer_create_topic(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        topic = header["topic"]
        created = topic not in self.memory.topics
        queues = self.memory.topics.setdefault(topic, header.get("queues", 8))
        return Reply({"topic": topic, "queues": queues, "created": created})

    def _writer_delete_topic(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        deleted = self.memory.topics.pop(header["topic"], None) is not None
        left = {"left_in_log_bytes": 0, "until": None}
        return Reply({"topic": header["topic"], "deleted": deleted, **left})

    def _writer_append(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        if len(payload) != header["bytes"] or zlib.crc32(payload) != header["crc"]:
            raise BadRequest("bytes or crc do not agree with the second frame")
        fields = self.memory.store(payload, header.get("queue"))
        return Reply({**fields, "flushed": header.get("wait") == "flushed"})

    def _writer_send(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        queue = header.get("queue")
        message = NewMessage(
            topic=header["topic"],
            body=header["body"],
            queue_id=-1 if queue is None else queue,
            tags=header.get("tags") or "",
            keys=tuple(header.get("keys") or ()),
            properties=header.get("properties") or {},
            unique_key=header.get("unique_key") or "",
            flag=header.get("flag") or 0,
            born_timestamp=header.get("born_timestamp") or int(time.time() * 1000),
            born_host=parse_host(header.get("born_host") or "127.0.0.1:0"),
            reconsume_times=header.get("reconsume_times") or 0,
            wait=header.get("wait") != "none",
        )
        record = encode_message(message, crc=True)
        fields = self.memory.store(record, -1 if queue is None else None)
        topic, queue_id, offset, _ = fields.pop("queues")[0]
        del fields["store_host"]
        return Reply(
            {
                **fields,
                "topic": topic,
                "queue_id": queue_id,
                "queue_offset": offset,
                "msg_id": offset_message_id(STORE_HOST, fields["physical_offset"]),
                "unique_key": message.unique_key,
                "flushed": header.get("wait") == "flushed",
            }
        )

    # Reader

    def _reader_topics(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        found = self._writer_topics(header, payload, identity)
        return Reply(
            {"topics": [{**t, "queues": t["read_queues"]} for t in found.fields["topics"]]}
        )

    def _reader_pull(self, header: Header, payload: bytes, identity: bytes) -> Reply | None:
        reply = self._pull_now(header)
        wait = header.get("wait_ms", 0) / 1000
        if reply.payload or not wait or not self.hold_pulls:
            return reply
        self._held.append(Held(time.monotonic() + wait, identity, header))
        self.held_max = max(self.held_max, len(self._held))
        return None

    def _pull_now(self, header: Header) -> Reply:
        """Rules 12.1 as far as the tests need them."""
        queue = self.memory.queues.get((header["topic"], header["queue"]), [])
        offset, end = header["offset"], len(queue)
        status, following, found = "FOUND", offset, []
        if not queue:
            status, following = "NO_MESSAGE_IN_QUEUE", 0
        elif offset >= end:
            status = "OFFSET_OVERFLOW_ONE" if offset == end else "OFFSET_OVERFLOW_BADLY"
            following = end
        else:
            tags = [tag.strip() for tag in (header.get("tags") or "").split("||") if tag.strip()]
            scanned = queue[offset : offset + header.get("max_messages", 32)]
            following = offset + len(scanned)
            found = [r for r in scanned if not tags or r.tags in tags]
            status = "FOUND" if found else "NO_MATCHED_MESSAGE"
        fields = {"status": status, "next_begin_offset": following, "min_offset": 0}
        return _with_records({**fields, "max_offset": end}, found)

    def _reader_get(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        def wanted(record: Record) -> bool:
            if "physical_offset" in header:
                return bool(record.physical_offset == header["physical_offset"])
            if "msg_id" in header:
                return bool(record.physical_offset == parse_offset_message_id(header["msg_id"])[1])
            if "unique_key" in header:
                same = record.unique_key == header["unique_key"]
                return bool(same and record.topic == header["topic"])
            place = (record.topic, record.head.queue_id, record.head.queue_offset)
            return bool(place == (header["topic"], header["queue"], header["offset"]))

        for record in self.memory.records:
            if wanted(record):
                return Reply({"size": record.size}, record.raw)
        raise NotFound("nothing is stored there")

    def _reader_find(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        if header["topic"] not in self.memory.topics:
            raise UnknownTopic(f"topic {header['topic']} does not exist")
        key = header["key"]
        found = [
            r
            for r in reversed(self.memory.records)
            if r.topic == header["topic"]
            and (r.unique_key == key or (key in r.keys and not header.get("unique")))
            and header.get("begin", 0) <= r.head.store_timestamp <= header.get("end", 2**63 - 1)
        ]
        start = int(header.get("cursor") or 0)
        end = start + header.get("max_messages", 64)
        return _with_records({"cursor": str(end) if end < len(found) else None}, found[start:end])

    def _reader_offsets(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        topic = header["topic"]
        if topic not in self.memory.topics:
            raise UnknownTopic(f"topic {topic} does not exist")
        wanted = header.get("queue")
        ids = range(self.memory.topics[topic]) if wanted is None else [wanted]
        queues = [
            {"queue_id": i, "min_offset": 0, "max_offset": len(self.memory.queues[topic, i])}
            for i in ids
        ]
        return Reply({"queues": queues})

    def _reader_seek(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        queue = self.memory.queues[header["topic"], header["queue"]]
        later = (r for r in queue if r.head.store_timestamp >= header["timestamp"])
        return Reply({"offset": next((r.head.queue_offset for r in later), len(queue))})


def _with_records(fields: Header, records: list[Record]) -> Reply:
    sizes = b"".join(len(r.raw).to_bytes(4, "little") for r in records)
    return Reply(
        {**fields, "count": len(records), "sizes": sizes}, b"".join(r.raw for r in records)
    )


def _bind_again(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    """The old socket of this address closes in the background: a moment later it is free."""

    def is_bound() -> bool:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            return False
        return True

    wait_until(is_bound, f"{endpoint} stays in use", AT_ONCE_S)


def _is_connected(port: int) -> bool:
    """Whether this process, a node's and its clients', has a connection at the node's port."""
    found = psutil.Process().net_connections("tcp4")
    return any(one.laddr and one.laddr.port == port and one.raddr for one in found)


def has_lost(client: Client, endpoint: str) -> bool:
    """Whether the client knows that its connection to a process is gone: what it is asked now
    waits for another. Of those beside the I/O thread it learns when it uses them."""
    link = client._core.io._links.get(endpoint)
    return link is None or not link.connected


@contextmanager
def fake_node() -> Iterator[FakeNode]:
    """A fake node for the time of a `with`."""
    node = FakeNode()
    try:
        yield node
    finally:
        node.close()
