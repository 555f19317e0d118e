"""Requests of every operation, valid ones and broken ones: what `fuzz_frames.py` sends.

A seed gives the same frames in the same order. Each request is a list of frames.
"""

import random
import zlib
from collections.abc import Callable
from typing import Any

import msgpack

from protocol.ids import Host
from protocol.record.encode import NewMessage, encode_batch

Header = dict[str, Any]
Frames = list[bytes]

TOPICS = tuple(f"fuzz-{n}" for n in range(12))
REMOVED_TOPICS = tuple(f"fuzz-removed-{n}" for n in range(4))
"""Topics that are made, purged and removed. No message goes there: all that were acknowledged must
be readable in the end."""
QUEUES = 4
VALID_SHARE = 0.15
"""So many requests go out unbroken: the store must grow under the fuzz."""
WRITER, READER, CONTROL = "writer", "reader", "control"
OPERATIONS = {
    WRITER: (
        *("send", "append", "create_topic", "delete_topic", "topics", "ping"),
        *("stage", "publish", "unstage", "purge_topic", "cursor_get", "cursor_commit"),
    ),
    READER: ("pull", "get", "find", "offsets", "seek", "topics", "ping", "fetch", "layout"),
    CONTROL: ("routes", "status", "health", "ping"),
}
WEIGHTS = {
    WRITER: (8, 8, 1, 0.2, 0.5, 1, 4, 2, 0.2, 0.2, 0.5, 0.5),
    READER: (6, 4, 2, 1, 1, 0.5, 1, 2, 0.5),
    CONTROL: (1, 1, 1, 2),
}

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, -(2**31) - 1, 2**63, -(2**63), 2**64 - 1, 0.5,
    float("nan"), float("inf"), -0.0, "", "x" * 300, "\0", "../../etc/passwd", "%RETRY%x", "a/b",
    "\x01\x02", "\N{GRINNING FACE}" * 40, b"", b"\xff" * 40, [], [[]], [1] * 200, [["k"] * 3] * 3,
    {}, {"a": {"b": {"c": []}}}, {str(n): n for n in range(50)}, msgpack.ExtType(5, b"abc"),
    msgpack.Timestamp(2**34 - 1, 999_999_999), "none", "flushed", "SCHEDULE_TOPIC_XXXX", "KEYS",
)  # fmt: skip
_REMOVALS = ("delete_topic", "purge_topic")
_NO_NAMES = tuple(value for value in HOSTILE_VALUES if not isinstance(value, str))
"""For these: a send with a broken topic may have made a topic of a hostile name."""
FIELDS = (
    "v", "op", "id", "topic", "queue", "offset", "body", "tags", "keys", "properties", "wait",
    "count", "bytes", "crc", "sizes", "max_messages", "max_bytes", "wait_ms", "physical_offset",
    "msg_id", "unique_key", "key", "begin", "end", "cursor", "unique", "timestamp", "boundary",
    "queues", "perm", "born_timestamp", "born_host", "reconsume_times", "flag", "sys_flag",
    "query", "batch", "stage", "frame", "stages", "final", "group", "offsets",
)  # fmt: skip


class Fuzz:
    """A source of requests. `valid` and `broken` count what was made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.valid = 0
        self.broken = 0
        self.batch_of: dict[int, int] = {}
        """By the id of a `publish`: the batch that it asks for."""
        self._staged = (0, b"")
        """The last batch that was staged, and the line that publishes it."""
        self._records = [self._batch(count) for count in (1, 1, 2, 5, 40) for _ in range(8)]

    def request(self, target: str, number: int) -> Frames:
        """One request for a process of the kind `target`; `number` is its id while it has one."""
        operation = self.random.choices(OPERATIONS[target], WEIGHTS[target])[0]
        header, payload = self._valid(operation, number)
        if self.random.random() < VALID_SHARE:
            self.valid += 1
            return [msgpack.packb(header), *payload]
        self.broken += 1
        breaks: tuple[Callable[[Header, Frames], Frames], ...] = (
            self._break_fields, self._break_fields, self._break_bytes, self._break_bytes,
            self._break_records, self._break_frames, self._break_all,
        )  # fmt: skip
        return self.random.choice(breaks)(header, payload)

    # -- valid requests -----------------------------------------------------------------------

    def _batch(self, count: int) -> tuple[int, tuple[int, ...], bytes]:
        messages = [self._message() for _ in range(count)]
        batch = encode_batch(messages, crc=True)
        return count, batch.sizes, batch.records

    def _message(self) -> NewMessage:
        pick = self.random
        return NewMessage(
            topic=pick.choice(TOPICS),
            body=pick.randbytes(pick.choice((0, 1, 20, 200, 3_000))),
            queue_id=pick.randrange(QUEUES),
            tags=pick.choice(("", "TagA", "TagB")),
            keys=pick.choice(((), ("k1",), ("k1", "k2"))),
            properties=pick.choice(({}, {"city": "Bern"})),
            unique_key=f"{pick.getrandbits(128):032X}",
            born_timestamp=1_700_000_000_000,
            born_host=pick.choice((Host(bytes(4), 0), Host(bytes(15) + b"\1", 80))),
        )

    def _valid(self, operation: str, number: int) -> tuple[Header, Frames]:
        header: Header = {"v": 1, "op": operation, "id": number}
        pick = self.random
        queue = {"topic": pick.choice(TOPICS), "queue": pick.randrange(QUEUES)}
        payload: Frames = []
        match operation:
            case "send":
                message = self._message()
                header |= {"topic": message.topic, "body": message.body, "tags": message.tags}
                header |= {"keys": list(message.keys), "properties": dict(message.properties)}
                header |= {"queue": message.queue_id, "unique_key": message.unique_key}
            case "append":
                count, sizes, records = pick.choice(self._records)
                header |= _told(count, sizes, records)
                payload = [records]
            case "stage" | "publish" | "unstage":
                fields, payload = self._staging(operation, number)
                header |= fields
            case (
                "create_topic"
                | "delete_topic"
                | "purge_topic"
                | "cursor_get"
                | "cursor_commit"
                | "offsets"
            ):
                header |= self._of_topic(operation, queue)
            case "pull":
                header |= {**queue, "offset": pick.randrange(2_000), "max_messages": 32}
                header |= {"tags": pick.choice(("*", "TagA || TagB")), "wait_ms": 20}
            case "find":
                header |= {"topic": queue["topic"], "key": "k1", "max_messages": 5}
            case "seek":
                header |= {**queue, "timestamp": 1_700_000_000_000, "boundary": "lower"}
            case "get" | "fetch" | "layout":
                header |= self._raw(operation, queue)
        return header, payload

    def _of_topic(self, operation: str, queue: Header) -> Header:
        pick = self.random
        if operation == "create_topic":
            name = pick.choice((queue["topic"], *REMOVED_TOPICS))
            return {"topic": name, "queues": QUEUES, "perm": 6}
        if operation == "delete_topic":
            return {"topic": pick.choice(REMOVED_TOPICS)}
        if operation == "purge_topic":
            return {"topic": pick.choice(REMOVED_TOPICS), "offset": pick.randrange(3)}
        fields: Header = {"topic": queue["topic"]}
        if operation.startswith("cursor"):
            fields["group"] = f"g{pick.randrange(9)}"
        if operation == "cursor_commit":
            fields["offsets"] = [[queue["queue"], 0]]
        return fields

    def _staging(self, operation: str, number: int) -> tuple[Header, Frames]:
        """A batch of one stage, which the next `publish` may bring into the log."""
        header: Header = {"query": "fuzz", "batch": number}
        if operation == "stage":
            count, sizes, records = self.random.choice(self._records)
            self._staged = number, f"s 1 {count} {len(records)}\n".encode()
            return {**header, **_told(count, sizes, records), "stage": "s", "frame": 0}, [records]
        if operation == "publish":
            batch, line = self._staged
            self.batch_of[number] = batch
            return {**header, "batch": batch, "stages": 1}, [line or b"s 1 1 1\n"]
        return header, []

    def _raw(self, operation: str, queue: Header) -> Header:
        pick = self.random
        if operation == "get":
            return self._place(queue)
        if operation == "layout":
            return {"topics": [queue["topic"]], "index": pick.random() < 0.5}
        place = {"kind": pick.choice(("log", "queue", "index")), "offset": pick.randrange(200_000)}
        size = 1 << pick.randrange(23)
        return {**queue, **place, "file": "20240102030405006", "max_bytes": size}

    def _place(self, queue: Header) -> Header:
        offset = self.random.randrange(200_000)
        return self.random.choice(
            (
                {**queue, "offset": self.random.randrange(100)},
                {"physical_offset": offset},
                {"msg_id": f"7F00000100002A9F{offset:016X}"},
                {"topic": queue["topic"], "unique_key": "0" * 32},
            )
        )

    # -- broken ones --------------------------------------------------------------------------

    def _break_fields(self, header: Header, payload: Frames) -> Frames:
        """Fields of another kind, missing ones, unknown ones, and keys that come twice."""
        pick = self.random
        values = _NO_NAMES if header["op"] in _REMOVALS else HOSTILE_VALUES
        for _ in range(pick.choice((1, 1, 2, 4))):
            name = (
                pick.choice(list(header) or ["v"]) if pick.random() < 0.7 else pick.choice(FIELDS)
            )
            if pick.random() < 0.2:
                header.pop(name, None)
            else:
                header[name] = pick.choice(values)
        packed = msgpack.packb(header)
        if pick.random() < 0.1 and header and len(header) < 15:
            twice = msgpack.packb(pick.choice(list(header))) + msgpack.packb(pick.choice(values))
            packed = bytes([packed[0] + 1]) + packed[1:] + twice
        return [packed, *payload]

    def _break_bytes(self, header: Header, payload: Frames) -> Frames:
        """Flipped bits, cut and repeated parts, lengths that lie."""
        frames = [msgpack.packb(header), *payload]
        row = self.random.randrange(len(frames))
        frames[row] = self.mutate(frames[row])
        return frames

    def _break_records(self, header: Header, payload: Frames) -> Frames:
        """Broken records behind a header that agrees with them: only their own checks are left."""
        if not payload:
            return self._break_bytes(header, payload)
        if header["op"] == "publish":
            return self._break_bytes(header, payload)
        records = self.mutate(payload[0])
        count = header["count"] + self.random.choice((0, 0, 0, 1, -1))
        told = _told(count, (), records)
        if self.random.random() < 0.3:
            told["queue"] = -1
        return [msgpack.packb({"v": 1, "op": "append", "id": header["id"], **told}), records]

    def _break_frames(self, header: Header, payload: Frames) -> Frames:
        """A wrong number of frames, or the right one in the wrong order."""
        pick = self.random
        frames = [msgpack.packb(header), *payload]
        match pick.randrange(5):
            case 0:
                frames.append(pick.choice((b"", b"x", frames[0])))
            case 1:
                frames += [b""] * pick.choice((2, 5, 300))
            case 2:
                frames.reverse()
            case 3:
                frames = [b"", *frames]
            case 4:
                frames = frames[:1] if payload else [b""]
        return frames

    def _break_all(self, header: Header, _payload: Frames) -> Frames:
        """No request at all: random bytes, deep nesting, many items, marks that promise much."""
        pick = self.random
        match pick.randrange(5):
            case 0:
                return [pick.randbytes(pick.choice((0, 1, 10, 200)))]
            case 1:
                depth = pick.choice((10, 500, 1_000, 20_000))
                return [b"\x81\xa1v" + pick.choice((b"\x91", b"\x81\xa1v")) * depth]
            case 2:
                items = pick.choice((b"\x90", b"\x80", b"\xc0", b"\xa1x"))
                return [b"\x81\xa1v\xdd" + (60_000).to_bytes(4, "big") + items * 60_000]
            case 3:
                lie = pick.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"))
                return [msgpack.packb(header) + lie + pick.choice((b"\xff" * 4, b"\x7f\0\0\0"))]
        return [b"\xde\xff\xff" + msgpack.packb(header)[1:]]

    def mutate(self, data: bytes) -> bytes:
        """One to four changes of the bytes."""
        pick = self.random
        changed = bytearray(data)
        for _ in range(pick.choice((1, 1, 1, 2, 4))):
            place = pick.randrange(len(changed) + 1)
            match pick.randrange(6):
                case 0 | 1 if place < len(changed):
                    changed[place] ^= 1 << pick.randrange(8)
                case 2 if place < len(changed):
                    changed[place] = pick.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF))
                case 3:
                    del changed[place:]
                case 4:
                    del changed[place : place + pick.choice((1, 2, 8))]
                case _:
                    changed[place:place] = pick.randbytes(pick.choice((1, 2, 8)))
        return bytes(changed)


def _told(count: int, sizes: tuple[int, ...], records: bytes) -> Header:
    """What the header of an append says of its records."""
    told: Header = {"count": count, "bytes": len(records), "crc": zlib.crc32(records)}
    if sizes:
        told["sizes"] = b"".join(size.to_bytes(4, "little") for size in sizes)
    return told
