"""docs/protocol.md says what the code does: operations, fields, errors, the worked example."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from protocol import errors
from protocol.ids import parse_host
from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import NewMessage, encode_batch
from protocol.requests import REQUESTS
from protocol.wire import frames as wire
from scripts.docs.pages import parts_of
from tests.support.node import RunningNode

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/protocol.md").read_text()
SERVERS = (
    "node/writer/loop.py", "node/writer/requests.py",
    "node/reader/answers.py", "node/reader/pull_desk.py", "node/reader/loop.py",
    "node/supervisor/loop.py", "node/writer/staging/stages.py",
    "node/writer/staging/publisher.py", "node/writer/removal.py", "node/access/answers.py",
)  # fmt: skip
OPERATION = re.compile(r"^### ([a-z_]+)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\| `([a-z_]+)`", re.MULTILINE)
SOMETIMES = re.compile(r"^\| `([a-z_]+)`: [^|]+ \| only ", re.MULTILINE)
"""A field whose meaning begins with the word need not be there."""
DRAFT = NewMessage(
    topic="FooBar", body=b"hello", queue_id=3, tags="TagA", keys=("k1", "k2"),
    unique_key="7F0000010A2B18B4AAC2000000000001", born_timestamp=1_700_000_000_000,
    born_host=parse_host("127.0.0.1:54321"),
)  # fmt: skip


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """Each operation's fields: of the request, of the answer."""
    found = {}
    for operation, section in OPERATION.findall(TEXT):
        request, _, answer = section.partition("| answer field, type |")
        found[operation] = set(FIELD.findall(request)), set(FIELD.findall(answer))
    return found


def trees() -> Iterator[ast.AST]:
    for path in SERVERS:
        yield from ast.walk(ast.parse((ROOT / path).read_text()))


def operations_that_the_servers_know() -> set[str]:
    found: set[object] = set()
    named = {
        node.targets[0].id: node.value
        for node in trees()
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in trees():
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            found.add(node.value.value)
        if isinstance(node, ast.Compare) and getattr(node.left, "id", "") == "operation":
            compared = [named.get(getattr(one, "id", ""), one) for one in node.comparators]
            for one in (part for whole in compared for part in ast.walk(whole)):
                if isinstance(one, ast.Constant):
                    found.add(one.value)
    return {name for name in found if isinstance(name, str)}


def test_the_page_describes_every_operation_and_no_other() -> None:
    assert set(documented()) == operations_that_the_servers_know()


def test_every_declared_request_has_its_table() -> None:
    assert set(parts_of(TEXT)) == {f"request {name}" for name in REQUESTS}
    assert {name for name, (fields, _) in documented().items() if fields} == set(REQUESTS)


def test_the_worked_example_is_what_the_encoder_makes() -> None:
    example = TEXT[TEXT.index("### A worked example") : TEXT.index("## Unique keys")]
    blocks = re.findall(r"```\n(.*?)```", example, re.DOTALL)
    lines = [re.split(r"\s{2,}", line)[0] for line in blocks[0].splitlines()]
    batch = encode_batch([DRAFT], crc=True)
    assert bytes.fromhex("".join(lines)) == batch.records
    header = {
        "v": 1, "op": "append", "id": 7, "count": 1, "bytes": len(batch.records),
        "crc": batch.crc, "sizes": batch.sizes[0].to_bytes(4, "little"),
    }  # fmt: skip
    assert bytes.fromhex(blocks[1]) == wire.pack(header)
    assert f"crc: {batch.crc}" in example


def test_the_record_table_has_the_places_of_the_layout() -> None:
    table = TEXT[TEXT.index("## Records") : TEXT.index("**Properties**")]
    places = re.findall(r"^\| (\d+) \| (\d+) \|", table, re.MULTILINE)
    expected = [*SHORT_HEAD.offsets.values()]
    assert [int(at) for at, _ in places] == expected
    assert SHORT_HEAD.size == 88


def test_the_error_table_has_the_errors_of_the_code() -> None:
    section = TEXT[TEXT.index("## Errors") : TEXT.index("## Retries")]
    rows = re.findall(r"^\| ([A-Z]\w+) \| (\d+) \| (\w+) \| (yes|no) \|", section, re.MULTILINE)
    for name, code, status, retriable in rows:
        kind = getattr(errors, name)
        assert (int(code), status) == (kind.code, kind.status), name
        assert (retriable == "yes") == kind.retriable, name
    sides = {"NotConnected", "ClientClosed", "SendTimeout", "RequestTimeout"}
    stores = {"StoreError", "NotAStore", "StoreLocked", "StorePermission", "BackupRefused"}
    families = {"MqError", "RefusedError", "BusyError", "CorruptError", "OutcomeUnknownError"}
    kinds = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.MqError)
    }
    assert {name for name, *_ in rows} == kinds - families - sides - stores


class Peer:
    """A bare DEALER: nothing of the client's code between the page and the node."""

    def __init__(self, endpoints: dict[str, str]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        for name, endpoint in endpoints.items():
            self._sockets[name] = self._context.socket(zmq.DEALER)
            self._sockets[name].setsockopt(zmq.RCVTIMEO, 20_000)
            self._sockets[name].connect(endpoint)

    def ask(self, name: str, op: str, payload: bytes | None = None, /, **fields: Any) -> Any:
        header = wire.pack({"v": 1, "op": op, "id": 5, **fields})
        self._sockets[name].send_multipart([header, *([] if payload is None else [payload])])
        answer = wire.unpack_answer(self._sockets[name].recv_multipart()[0])
        assert (answer.pop("v"), answer.pop("id"), answer.pop("ok")) == (1, 5, True), answer
        return answer

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.mark.process
def test_a_node_answers_with_the_fields_of_the_page_and_no_others(tmp_path: Path) -> None:
    small = ("store.mapped_file_size_commit_log=1048576", "store.max_index_num=1000")
    with RunningNode(tmp_path / "store", small) as node:
        first = Peer({"control": node.endpoint})
        routes = first.ask("control", "routes")
        # Over local sockets: anybody may change users there, and needs no key afterwards.
        local, writer, reader = routes["local"], routes["writer"], routes["readers"][0]
        peer = Peer({"writer": local[writer], "reader": local[reader]})
        batch = encode_batch([DRAFT], crc=routes["crc"])
        sizes = batch.sizes[0].to_bytes(4, "little")
        size = len(batch.records)
        try:
            answers = {
                "routes": routes,
                "status": first.ask("control", "status"),
                "health": first.ask("control", "health"),
                "members": first.ask("control", "members"),
                "create_topic": peer.ask("writer", "create_topic", topic="FooBar", queues=4),
                "append": peer.ask(
                    "writer", "append", batch.records, count=1, bytes=size, crc=batch.crc,
                    sizes=sizes,
                ),
                "send": peer.ask("writer", "send", topic="FooBar", queue=3, body=b"x", keys=["k1"]),
                "topics": peer.ask("reader", "topics"),
                "ping": peer.ask("reader", "ping"),
                "pull": peer.ask("reader", "pull", topic="FooBar", queue=3, offset=0, wait_ms=9000),
                "get": peer.ask("reader", "get", physical_offset=0),
                "find": peer.ask("reader", "find", topic="FooBar", key="k1"),
                "offsets": peer.ask("reader", "offsets", topic="FooBar"),
                "seek": peer.ask("reader", "seek", topic="FooBar", queue=3, timestamp=0),
                "layout": peer.ask("reader", "layout", index=True),
                "fetch": peer.ask("reader", "fetch", kind="log", offset=0),
                "stage": peer.ask(
                    "writer", "stage", batch.records, count=1, bytes=size, crc=batch.crc,
                    query="q", batch=0, stage="s", frame=0,
                ),
                "publish": peer.ask(
                    "writer", "publish", b"s 1 1 %d\n" % size, query="q", batch=0, stages=1
                ),
                "unstage": peer.ask("writer", "unstage", query="q", batch=0),
                "cursor_commit": peer.ask(
                    "writer", "cursor_commit", topic="FooBar", group="g", offsets=[[3, 0]]
                ),
                "cursor_get": peer.ask("writer", "cursor_get", topic="FooBar", group="g"),
                "groups": peer.ask("writer", "groups"),
                "delete_group": peer.ask("writer", "delete_group", group="g"),
                "change_users": peer.ask(
                    "writer", "change_users", change="create_user", name="alice",
                    info=b'{"password":"canary-secret"}',
                ),
                "users": peer.ask("writer", "users"),
                "purge_topic": peer.ask("writer", "purge_topic", topic="FooBar", offset=0),
                "delete_topic": peer.ask("writer", "delete_topic", topic="FooBar"),
            }  # fmt: skip
        finally:
            first.close()
            peer.close()
    page = documented()
    sometimes = {
        op: set(SOMETIMES.findall(section.partition("| answer field, type |")[2]))
        for op, section in OPERATION.findall(TEXT)
    }
    assert {op: set(fields) | sometimes[op] for op, fields in answers.items()} == {
        op: answer for op, (_, answer) in page.items()
    }
    text = " ".join(section for op, section in OPERATION.findall(TEXT))
    assert "canary" not in str(answers)
    for op in ("status", "health", "topics", "offsets", "users"):
        for value in answers[op].values():
            for row in value if isinstance(value, list) else [value]:
                for name in row if isinstance(row, dict) else ():
                    assert f"`{name}`" in text, f"{op}: {name}"
