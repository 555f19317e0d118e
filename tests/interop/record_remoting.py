"""Records what RocketMQ's client, tools, broker and name server send: a frame of each kind.

`python -m tests.interop.record_remoting FILE` writes one JSON object a line: the `server` that was
spoken to, who the frame is `from`, the code of the request that it `answers`, and the `frame`. A
relay of ours is between the processes. tests/golden/remoting/ was made so. It takes three minutes.
"""

import base64
import json
import re
import socket
import struct
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from node.supervisor.bind import free_ports
from protocol.remoting.headers import RemotingHeader, decode_header
from scripts.rivals.rocketmq import (
    Addresses,
    Jvm,
    RocketMQ,
    class_path,
    start_name_server,
)

RUNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("all", ()),
    ("sends", ("-Drocketmq.serialize.type=ROCKETMQ",)),
    ("sends", ("-Dorg.apache.rocketmq.client.sendSmartMsg=false",)),
)
"""What the Java program does, and under which properties."""
RUN_S = 180
FRAME_BYTES_MAX = 12_000
"""Larger ones are left out: tables of a whole broker."""
ALIKE_MAX = 2
"""Frames of the same kind that are kept, while their bodies have other fields."""
HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")
_LENGTH = struct.Struct(">I")
_NAMES = re.compile(rb'"([A-Za-z]+)":')

Row = dict[str, Any]


class FrameRecorder:
    """Keeps the first frames of each kind, but for those that name the folder `home`."""

    def __init__(self, home: Path) -> None:
        self._home = str(home).encode()
        self.rows: list[Row] = []
        self._lock = threading.Lock()
        self._kinds: set[tuple[Any, ...]] = set()
        self._alike: Counter[tuple[Any, ...]] = Counter()

    def take(
        self, server: str, sender: str, answers: int | None, header: RemotingHeader, frame: bytes
    ) -> None:
        """One frame; `answers` is the code of the request of an answer."""
        kind = (server, sender, answers, *_kind(header))
        fields = frozenset(_NAMES.findall(frame[_header_end(frame) :]))
        with self._lock:
            if (*kind, fields) in self._kinds or self._alike[kind] == ALIKE_MAX:
                return
            if len(frame) > FRAME_BYTES_MAX or self._home in frame:
                return
            self._alike[kind] += 1
            self._kinds.add((*kind, fields))
            encoded = base64.b64encode(frame).decode()
            self.rows.append(
                {"server": server, "from": sender, "answers": answers, "frame": encoded}
            )


def _header_end(frame: bytes) -> int:
    return 8 + int.from_bytes(frame[5:8], "big")


def _kind(header: RemotingHeader) -> tuple[Any, ...]:
    names = frozenset(header.ext)
    return header.serialization, header.code, header.flag, names, header.remark is not None


class Relay:
    """Listens at an address, and carries each connection on to another."""

    def __init__(self, recorder: FrameRecorder, server: str, at: str, to: str) -> None:
        self._recorder, self._server, self._to = recorder, server, _parts(to)
        self._listener = socket.create_server(_parts(at), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with suppress(OSError):
                server = socket.create_connection(self._to)
                asked: tuple[dict[int, int], dict[int, int]] = ({}, {})
                for ends, sender, own, others in (
                    ((client, server), "client", *asked),
                    ((server, client), "server", *reversed(asked)),
                ):
                    arguments = (*ends, sender, own, others)
                    threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(
        self,
        source: socket.socket,
        target: socket.socket,
        sender: str,
        own: dict[int, int],
        others: dict[int, int],
    ) -> None:
        """One direction: whole frames, as they come."""
        with suppress(OSError), source.makefile("rb") as stream:
            while len(length := stream.read(_LENGTH.size)) == _LENGTH.size:
                frame = length + stream.read(_LENGTH.unpack(length)[0])
                header = decode_header(frame[4], memoryview(frame)[8 : _header_end(frame)])
                if not header.is_answer:
                    own[header.opaque] = header.code
                answers = others.get(header.opaque) if header.is_answer else None
                self._recorder.take(self._server, sender, answers, header, frame)
                target.sendall(frame)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return host, int(port)


def record(home: Path) -> Iterable[Row]:
    """Runs all of it below `home` and returns the frames, by server, code and sender."""
    classes, recorder = class_path(), FrameRecorder(home)
    traffic = class_path(Path(__file__).parents[1] / "clients" / "tools")
    addresses = Addresses.free()
    relay = f"127.0.0.1:{free_ports(1)}"
    port = addresses.broker.partition(":")[2]
    # The broker names 127.0.0.2 to everybody, where the relay listens, and is at 127.0.0.1 itself.
    shown = f"127.0.0.2:{port}"
    jvms = [start_name_server(classes, home, addresses.name_server)]
    Relay(recorder, "name server", relay, addresses.name_server)
    broker = RocketMQ(
        classes,
        home,
        Addresses(relay, addresses.broker),
        {"brokerIP1": "127.0.0.2", "bindAddress": "127.0.0.1", "enablePropertyFilter": "true"},
        HEAP,
    )
    try:
        broker.start()
        Relay(recorder, "broker", shown, addresses.broker)
        for what, properties in RUNS:
            command = [*properties, "-cp", traffic, "RemotingTraffic", relay, shown, "rival", what]
            run = Jvm("traffic", home, command, talks=False, folder=home)
            jvms.append(run)
            run.wait(RUN_S)
    finally:
        broker.kill()
        for jvm in jvms:
            jvm.kill()
    return sorted(recorder.rows, key=lambda row: (row["server"], row["answers"] or 0, row["from"]))


def main() -> None:
    """Writes the frames to the file that the command line names."""
    with tempfile.TemporaryDirectory(prefix="remoting-") as home:
        rows = list(record(Path(home)))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    Path(sys.argv[1]).write_text(lines)
    sys.stdout.write(f"{len(rows)} frames, {len(lines)} bytes\n")


if __name__ == "__main__":
    main()
