"""A controller in the process of the tests: it follows RocketMQ's rules for one group, and elects
when a test says so, or when a heart-beat's connection ends."""

import socketserver
import threading
from collections.abc import Mapping
from typing import Self

from protocol.remoting.codes import BrokenFrame
from protocol.remoting.controller import (
    ControllerCode,
    ControllerReply,
    SyncStateSet,
    encode_sync_state_set,
    parse_sync_state_set,
)
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader

FENCED, EQUAL, NO_MASTER = 2001, 2013, 2012
Answer = tuple[int, Mapping[str, str], bytes]


class FakeController:
    """One that always leads (ReplicasInfoManager)."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.places: dict[int, str] = {}
        self.codes: dict[int, str] = {}
        self.alive: set[int] = set()
        self.master = 0
        self.epoch = 0
        self.in_sync = SyncStateSet(frozenset(), 0)
        self.beats: dict[int, Mapping[str, str]] = {}
        """The last heart-beat of each id."""
        controller = self

        class Connection(socketserver.BaseRequestHandler):
            """One connection, in a thread of its own."""

            def handle(self) -> None:
                """Replies until it ends."""
                frames, beats = FrameReader(), set[int]()
                try:
                    while count := self.request.recv_into(frames.room()):
                        for header, body in frames.received(count):
                            code, ext, reply = controller.serve(header, bytes(body))
                            if header.code == ControllerCode.BROKER_HEARTBEAT:
                                beats.add(int(header.ext["brokerId"]))
                            answer = header.answer(code, ext, None if code == 0 else "refused")
                            self.request.sendall(frame_head(answer, len(reply)) + reply)
                except (BrokenFrame, OSError):
                    pass
                finally:
                    controller.lost(beats)

        class Server(socketserver.ThreadingTCPServer):
            """Threads that nobody waits for."""

            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Connection)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def lost(self, ids: set[int]) -> None:
        """The connection of their heart-beats has ended."""
        with self.lock:
            self.alive -= ids
            if self.master in ids:
                self._elect()

    def elect(self, broker_id: int) -> None:
        """Makes that one the master, as an operator may."""
        with self.lock:
            self._make_master(broker_id)

    def _elect(self) -> None:
        found = sorted(self.in_sync.members & self.alive)
        if found:
            self._make_master(max(found, key=lambda one: int(self.beats[one]["maxOffset"])))
        else:
            self.master = 0

    def _make_master(self, broker_id: int) -> None:
        self.master, self.epoch = broker_id, self.epoch + 1
        self.in_sync = SyncStateSet(frozenset({broker_id}), self.in_sync.epoch + 1)

    def serve(self, header: RemotingHeader, body: bytes) -> Answer:
        """The answer to one request."""
        with self.lock:
            return self._serve(header.code, header.ext, body)

    def _serve(self, code: int, ext: Mapping[str, str], body: bytes) -> Answer:
        match code:
            case ControllerCode.GET_METADATA_INFO:
                return 0, {"controllerLeaderAddress": self.place}, b""
            case ControllerCode.GET_NEXT_BROKER_ID:
                return 0, {"nextBrokerId": str(len(self.places) + 1)}, b""
            case ControllerCode.APPLY_BROKER_ID:
                return self._apply(int(ext["appliedBrokerId"]), ext["registerCheckCode"])
            case ControllerCode.REGISTER_BROKER:
                number = int(ext["brokerId"])
                if number not in self.places:
                    return ControllerReply.BROKER_NEED_TO_BE_REGISTERED, {}, b""
                self.places[number] = ext["brokerAddress"]
                return 0, {}, encode_sync_state_set(self.in_sync)
            case ControllerCode.BROKER_HEARTBEAT:
                number = int(ext["brokerId"])
                self.alive.add(number)
                self.beats[number] = dict(ext)
                return 0, {}, b""
            case ControllerCode.GET_REPLICA_INFO:
                return self._group()
            case ControllerCode.ELECT_MASTER:
                return self._asked_to_elect(int(ext["brokerId"]))
            case ControllerCode.ALTER_SYNC_STATE_SET:
                return self._alter(int(ext["masterEpoch"]), body)
        return 3, {}, b""

    def _apply(self, number: int, check_code: str) -> Answer:
        if self.codes.get(number, check_code) != check_code:
            return ControllerReply.BROKER_ID_INVALID, {}, b""
        self.codes[number] = check_code
        self.places[number] = check_code.partition(";")[0]
        return 0, {}, b""

    def _group(self) -> Answer:
        if not self.places:
            return ControllerReply.BROKER_METADATA_NOT_EXIST, {}, b""
        ext = {"masterEpoch": str(self.epoch)}
        if self.master:
            ext["masterBrokerId"] = str(self.master)
            ext["masterAddress"] = self.places[self.master]
        return 0, ext, encode_sync_state_set(self.in_sync)

    def _asked_to_elect(self, number: int) -> Answer:
        if self.master and self.master in self.alive:
            return ControllerReply.MASTER_STILL_EXIST, {}, b""
        if not self.epoch:
            self._make_master(number)
        else:
            self._elect()
        return (0 if self.master else NO_MASTER), {}, b""

    def _alter(self, epoch: int, body: bytes) -> Answer:
        wanted = parse_sync_state_set(body)
        if epoch != self.epoch or wanted.epoch != self.in_sync.epoch:
            return FENCED, {}, b""
        if wanted.members == self.in_sync.members or not wanted.members <= self.alive:
            return EQUAL, {}, b""
        self.in_sync = SyncStateSet(wanted.members, wanted.epoch + 1)
        return 0, {}, encode_sync_state_set(self.in_sync)
