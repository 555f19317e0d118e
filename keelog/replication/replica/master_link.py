"""Connections to a master: questions to its port for requests, and its log.

Questions are for a thread that may wait: `RemotingAsker` asks one after the other, `ask_facts` what
the master says of its log. The loop of a replica waits for nobody: a thread connects for it, then
frames come in and reports go out as far as they can (`MasterLink`).
"""

import select
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from keelog.client.consumer.remoting_exchange import RemotingAnswer
from node.access.own_credentials import NOT_KNOWN_THERE, OwnCredentials
from node.runtime.addresses import MasterSource, remoting_beside, split_place
from node.runtime.run_files import MasterPlace, read_master_place
from protocol import ha
from protocol.access.credentials import signed
from protocol.errors import BadRequest, MqError
from protocol.remoting.bodies import KVTable
from protocol.remoting.codes import BrokenFrame, Language, RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import read_body

if TYPE_CHECKING:
    from node.access.tls import ClientTls

ANSWER_S = 3.0
"""How long a connection to the port for requests, or an answer, may take."""
CONNECT_S = 5.0
"""How long a connection to the replication may take."""
READS_AT_ONCE = 16
"""Reads of one turn: then the loop looks at other things."""
_SEGMENT_SETTING = "mappedFileSizeCommitLog"


def connect_to(place: str, timeout_s: float, tls: "ClientTls | None") -> socket.socket:
    """Connects to HOST:PORT, and shakes hands where TLS is asked for. Raises OSError."""
    host, port = split_place(place)
    connected = socket.create_connection((host, port), timeout_s)
    return connected if tls is None else tls.wrap(connected, host)


class RemotingAsker:
    """One connection. All methods raise OSError, TimeoutError among them, when it is of no use."""

    def __init__(
        self,
        place: str,
        timeout_s: float,
        tls: "ClientTls | None" = None,
        credentials: OwnCredentials | None = None,
    ) -> None:
        """Connects to HOST:PORT. Each request is signed with the credentials."""
        self._credentials = None if credentials is None else credentials.now()
        self._socket = connect_to(place, timeout_s, tls)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._opaques = count(1)

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingAnswer:
        """The answer to a request; the time limit is for each part that arrives of it."""
        opaque = next(self._opaques)
        header = RemotingHeader(code, opaque, ext=ext or {}, language=Language.PYTHON)
        if self._credentials is not None:
            header = signed(self._credentials, header, body)
        self._socket.sendall(frame_head(header, len(body)) + body)
        while True:
            size = self._socket.recv_into(self._reader.room())
            if not size:
                raise ConnectionResetError("the connection was closed")
            try:
                for answer, data in self._reader.received(size):
                    if answer.is_answer and answer.opaque == opaque:
                        remark = answer.remark or ""
                        return RemotingAnswer(answer.code, answer.ext, remark, bytes(data))
            except BrokenFrame as error:
                raise ConnectionResetError(f"it sent a broken frame: {error.reason}") from None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MasterSays(Exception):
    """A node refused a request, or its answer is none."""


class NotLetIn(MasterSays):
    """A node does not let this one log in, or not as a user who may ask that."""


def refusal_of(answer: RemotingAnswer) -> MasterSays:
    """The words with which a node refused a request, and what to do about it."""
    text = f"its reply is code {answer.code}: {answer.remark[:200]}"
    if answer.code != ResponseCode.NO_PERMISSION:
        return MasterSays(text)
    return NotLetIn(f"{text}; {NOT_KNOWN_THERE}")


class MasterFacts(NamedTuple):
    """Log offsets, and the bytes of a segment; 0 where it does not say."""

    begin: int
    end: int
    segment_bytes: int = 0


class MasterRefuses(NamedTuple):
    """Somebody takes requests there, and refuses this one."""

    why: str


def ask_facts(
    place: str,
    with_segments: bool = True,
    tls: "ClientTls | None" = None,
    credentials: OwnCredentials | None = None,
) -> MasterFacts | MasterRefuses | None:
    """Asks the master at HOST:PORT (28, and 26 `with_segments`); None where nobody replies, or not
    in its words."""
    with (
        suppress(OSError, MqError, ValueError, KeyError),
        RemotingAsker(place, ANSWER_S, tls, credentials) as asker,
    ):
        answer = asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:
            return MasterRefuses(str(refusal_of(answer)))
        table = read_body(KVTable, answer.body).table
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        # An empty log of RocketMQ begins at -1.
        return MasterFacts(
            max(begin, 0), max(end, 0), _segment_bytes(asker) if with_segments else 0
        )
    return None


def _segment_bytes(asker: RemotingAsker) -> int:
    answer = asker.ask(RequestCode.GET_BROKER_CONFIG)
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == _SEGMENT_SETTING and value.strip().isdigit():
            return int(value)
    return 0


class MasterLink:
    """A connected socket, which this object owns and never blocks on. With a `broker_id` it speaks
    as where a controller elects the master: `greet` comes first then."""

    def __init__(
        self, connected: socket.socket, now: float, broker_id: int = 0, is_encrypted: bool = False
    ) -> None:
        self._socket = connected
        self._is_encrypted = is_encrypted
        self._broker_id = broker_id
        self._encode: Callable[[int], bytes] = (
            ha.encode_switch_report if broker_id else ha.encode_report
        )
        self._frames: ha.LogFrameReader = (
            ha.SwitchFrameReader() if broker_id else ha.LogFrameReader()
        )
        self.greeting = ha.GreetingReader() if broker_id else None
        """Of the master; None once it has come."""
        self._heard_at = now
        self._reported_at = now
        self._unsent = b""
        self._kept_bytes = 0
        """Of `_unsent`: what TLS has begun to send, which stays as it is."""

    @property
    def fd(self) -> int:
        """To wait for: readable when `receive` has something."""
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def greet(self) -> None:
        """Says who follows. Raises LinkLost."""
        self._unsent = ha.encode_greeting(self._broker_id)
        self._send()

    def receive_greeting(self, now: float) -> ha.MasterGreeting | None:
        """The master's greeting, once it is whole. Raises LinkLost."""
        assert self.greeting is not None
        data = self._read(now)
        try:
            found = self.greeting.feed(data)
        except BadRequest as error:
            raise LinkLost(error.reason) from None
        if found is not None:
            self.greeting = None
        return found

    def report(self, end: int, now: float) -> None:
        """Tells the master that our log is durable below `end`. Raises LinkLost."""
        self._reported_at = now
        # Of reports that wait for room only the last says anything; one that is half sent stays.
        begun = self._kept_bytes or len(self._unsent) % len(self._encode(0))
        self._unsent = self._unsent[:begun] + self._encode(end)
        self._send()

    def is_report_due(self, now: float) -> bool:
        """Whether a report is due though nothing is new: the master closes what is silent."""
        return now - self._reported_at >= ha.HEARTBEAT_S

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
                self._kept_bytes = 0
        except BlockingIOError:
            if self._is_encrypted:
                self._kept_bytes = self._kept_bytes or len(self._unsent)
        except OSError as error:
            raise LinkClosed(f"the connection was lost: {error.strerror or error}") from None

    def receive(self, now: float) -> list[ha.LogFrame]:
        """The frames of one read, whose bodies are valid until the next; none when nothing is
        there. Raises LinkLost, also when the master is silent for too long."""
        count = len(self._read(now))
        try:
            return list(self._frames.take(count)) if count else []
        except BadRequest as error:
            raise LinkLost(error.reason) from None

    def _read(self, now: float) -> memoryview:
        """What one read brings, in the room of the frames; nothing where nothing is there."""
        if self._unsent:
            self._send()
        room = self._frames.room()
        try:
            count = self._socket.recv_into(room)
        except BlockingIOError:
            if now - self._heard_at > ha.SILENCE_S:
                raise LinkLost(f"the master said nothing for {ha.SILENCE_S:.0f} s") from None
            return room[:0]
        except OSError as error:
            raise LinkClosed(f"the connection was lost: {error.strerror or error}") from None
        if not count:
            raise LinkClosed("the master closed the connection")
        self._heard_at = now
        return room[:count]

    def close(self) -> None:
        self._socket.close()


class LinkLost(Exception):
    """The connection has ended, or is of no use any more; a new one may do better."""


class LinkClosed(LinkLost):
    """The master ended it, or the network did."""


def find_master(root: Path, source: MasterSource, remoting: str) -> MasterPlace:
    """Where the master is now: an empty place where no name server has said it yet; its port for
    requests may be guessed. `remoting` is the setting `follow_remoting`."""
    if source.ha:
        return MasterPlace(remoting or remoting_beside(source.ha), source.ha)
    found = read_master_place(root)
    return MasterPlace(remoting or found.remoting, found.ha)


class ConnectJob:
    """A try: asks the master for facts, then connects."""

    def __init__(
        self,
        address: MasterPlace,
        tls: "ClientTls | None" = None,
        credentials: OwnCredentials | None = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._credentials = credentials
        self.facts: MasterFacts | None = None
        self.refused = ""
        """Why the master says nothing of its log, where it says that."""
        self.connected: socket.socket | None = None
        self.why = ""
        """Why the socket is not there."""

    def run(self) -> None:
        """Never raises: a master may be away."""
        address = self._address
        if address.remoting:
            said = ask_facts(address.remoting, tls=self._tls, credentials=self._credentials)
            if isinstance(said, MasterRefuses):
                self.refused = said.why
            else:
                self.facts = said
        try:
            self.connected = made = connect_to(address.ha, CONNECT_S, self._tls)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
        except OSError as error:
            self.why = f"cannot connect to {address.ha}: {error.strerror or error}"
            if self._tls is not None:
                self.why += "; tls_enable is set, and a broker's replication knows no TLS"
