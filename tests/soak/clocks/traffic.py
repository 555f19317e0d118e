"""The programs at a node whose clock is set: one sends, others watch what comes."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from keelog import Retry
from keelog.client.client import Client, connect
from protocol.errors import IllegalMessage, MqError
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.gateway.test_transactions import COMMIT, answer_question, half_fields, producer
from tests.soak.clocks.account import Kind, Waited
from tests.support.clock.shifted_clock import ShiftedClock
from tests.support.node import RunningNode
from tests.support.remoting import RemotingPeer, remoting_place

TOPIC, RETRIED, GROUP, PRODUCERS = "came", "retried", "again", "shop"
LEVELS_S = (1.0, 3.0, 2.0)
"""Of which a message that is handed back gets the third."""
WINDOW_S = 5.0
REUSE_S = 3 * WINDOW_S
"""A unique key is used again this long after its first use: longer than a window after a start."""
OUTAGE = (MqError, OSError, AssertionError, IndexError)
"""Of a node that was killed: its client and its peers try again."""


class Traffic:
    """What was sent and what came, for all threads. `node` may be another one after a while."""

    def __init__(self, node: RunningNode, clock: ShiftedClock, seed: int) -> None:
        self.node = node
        self.sent: dict[str, Waited] = {}
        self.came: dict[str, list[float]] = {}
        self.reuse_from_s = 0.0
        """A window begins anew when the writer does: no key is used again until then."""
        self._clock = clock
        self._random = random.Random(seed)
        self._number = 0
        self._keys: list[tuple[str, float]] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        programs = (self._watch, self._consume, self._answer)
        self._threads = [threading.Thread(target=self._again, args=(one,)) for one in programs]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the programs."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def connect(self) -> Client:
        """A client of the node as it is now."""
        return connect(self.node.endpoint, timeout=20.0, retry=Retry(once=True))

    # -- sends --------------------------------------------------------------------------------

    def send_some(self, client: Client) -> None:
        """One message of each kind."""
        level = self._random.randrange(2)
        self._send(client, Kind.LEVEL, LEVELS_S[level], delay_level=level + 1)
        delay_s = self._random.choice((1.0, 2.0, 4.0))
        self._send(client, Kind.DELAY, delay_s, delay=delay_s)
        self._send(client, Kind.AT, deliver_at=self._clock.now_ms() + 2_000)
        self._cancel(client)
        self._send_once(client)
        name = self._name(Kind.RETRY)
        one = self.sent[name] = Waited(Kind.RETRY, time.monotonic(), LEVELS_S[2])
        with suppress(MqError):
            client.send(RETRIED, name.encode())
            one.acked_s = time.monotonic()
        self._send_half()

    def _name(self, kind: Kind) -> str:
        self._number += 1
        return f"{kind} {self._number}"

    def _send(
        self, client: Client, kind: Kind, delay_s: float = 0.0, **options: object
    ) -> str | None:
        """Returns the name where it is stored for certain."""
        name = self._name(kind)
        one = self.sent[name] = Waited(kind, time.monotonic(), delay_s)
        try:
            receipt = client.send(TOPIC, name.encode(), **options)  # type: ignore[arg-type]
        except MqError:
            return None
        one.acked_s = time.monotonic()
        if receipt.deliver_ms:
            one.deliver_s = receipt.deliver_ms / 1000
        return name

    def _cancel(self, client: Client) -> None:
        """A message that is taken back before it is due by any clock must not come."""
        name = self._name(Kind.CANCELLED)
        one = Waited(Kind.DELAY, time.monotonic(), 4.0)
        self.sent[name] = one
        try:
            receipt = client.send(TOPIC, name.encode(), delay=4.0)
            one.acked_s = time.monotonic()
            one.deliver_s = receipt.deliver_ms / 1000
            client.cancel(receipt)
        except IllegalMessage:
            return  # it is due
        except MqError:
            one.acked_s = None  # nobody knows whether it was taken back
            return
        if time.monotonic() < one.began_s + 3.0:
            one.kind = Kind.CANCELLED
        else:
            one.acked_s = None

    def _send_once(self, client: Client) -> None:
        """A key that comes twice is stored once; one of long ago is stored anew."""
        now = time.monotonic()
        if self._keys and self._keys[0][1] < now - REUSE_S and now > self.reuse_from_s:
            self._send(client, Kind.ONCE, unique_key=self._keys.pop(0)[0])
        key = f"key{self._number}"
        first = self._send(client, Kind.ONCE, unique_key=key)
        if first is None:
            return
        self._keys.append((key, time.monotonic()))
        with suppress(MqError):
            client.send(TOPIC, first.encode(), unique_key=key)

    def _send_half(self) -> None:
        name = self._name(Kind.HALF)
        one = self.sent[name] = Waited(Kind.HALF, time.monotonic())
        with suppress(*OUTAGE), closing(RemotingPeer(remoting_place(self.node.stderr))) as peer:
            fields = half_fields(TOPIC, PRODUCERS, f"H{self._number}", e=0, g=self._clock.now_ms())
            sent = peer.ask(RequestCode.SEND_MESSAGE_V2, fields, name.encode())
            if sent.code == ResponseCode.SUCCESS:
                one.acked_s = time.monotonic()

    # -- what comes ---------------------------------------------------------------------------

    def _again(self, program: Callable[[], None]) -> None:
        while not self._ended.is_set():
            with suppress(*OUTAGE):
                program()
            self._ended.wait(0.2)

    def _note(self, name: str) -> None:
        with self._lock:
            self.came.setdefault(name, []).append(time.monotonic())

    _offset = 0

    def _watch(self) -> None:
        node = self.node
        with self.connect() as client:
            while not self._ended.is_set() and node is self.node:
                found = client.pull(TOPIC, 0, self._offset, wait=0.5, max_messages=500)
                for message in found.messages:
                    self._note(message.body.decode())
                self._offset = found.next_begin_offset

    def _consume(self) -> None:
        """Hands each message back once: it waits for the level of a first retry."""
        node = self.node
        with self.connect() as client, client.consumer(GROUP, RETRIED, start="earliest") as group:
            while not self._ended.is_set() and node is self.node:
                message = group.get(0.5)
                if message is None:
                    continue
                name = message.body.decode()
                if message.reconsume_times:
                    self._note(name)
                    message.ack()
                else:
                    message.retry()

    def _answer(self) -> None:
        """Commits each transaction that the node asks for."""
        node = self.node
        with closing(producer(node, PRODUCERS)) as peer:
            peer.socket.settimeout(5.0)
            while not self._ended.is_set() and node is self.node:
                asked = peer.request(RequestCode.CHECK_TRANSACTION_STATE)
                answer_question(peer, asked, PRODUCERS, COMMIT)
