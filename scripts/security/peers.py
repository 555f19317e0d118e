"""The smallest client of each protocol that a node speaks, and in a word what it got."""

import base64
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from typing import Any, NamedTuple

import zmq

from protocol import ha
from protocol.access.signature import ACCESS_KEY, SIGNATURE, signature
from protocol.errors import MqError
from protocol.remoting.codes import Language, RequestCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader
from protocol.wire import frames, zmtp

ANSWER_S = 10.0
"""How long a node may take for an answer, or for the end of a connection."""
SILENT_S = 3.0
"""After so long without a word there will be none."""
NOT_ALLOWED = 16
"""RocketMQ's code of a refusal for want of a login or a right."""
Place = tuple[str, int]


class PeerVerdict(StrEnum):
    """What became of a request."""

    SERVED = "served"
    REFUSED = "refused"
    CLOSED = "closed"
    SILENT = "no answer"


class PeerOutcome(NamedTuple):
    """The verdict, and what the node said."""

    verdict: PeerVerdict
    words: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.words}" if self.words else str(self.verdict)


class CurveKeys(NamedTuple):
    """What a ZeroMQ client with keys needs, as Z85."""

    public: str
    secret: str
    server: str


class PeerLogin(NamedTuple):
    """All that a client may come with. Empty: it is a stranger."""

    user: str = ""
    password: str = ""
    keys: CurveKeys | None = None
    tls: ssl.SSLContext | None = None


STRANGER = PeerLogin()


def connected(place: Place, login: PeerLogin) -> socket.socket:
    """A connection, by TLS if the client has a context. Raises OSError."""
    plain = socket.create_connection(place, timeout=ANSWER_S)
    if login.tls is None:
        return plain
    try:
        return login.tls.wrap_socket(plain, server_hostname=place[0])
    except OSError:
        plain.close()
        raise


class RemotingClient:
    """One connection of a client as RocketMQ's, which signs if it has a user."""

    def __init__(self, place: Place, login: PeerLogin = STRANGER) -> None:
        """Raises OSError."""
        self.socket = connected(place, login)
        self._login = login
        self._reader = FrameReader()
        self._came: dict[int, tuple[RemotingHeader, bytes]] = {}
        self._opaque = 0

    def send(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> int:
        """Sends a request, and returns its number."""
        self._opaque += 1
        fields = {name: str(value) for name, value in ext.items()}
        version = RemotingHeader(code, 0).version
        if self._login.user:
            fields[ACCESS_KEY] = self._login.user
            fields[SIGNATURE] = signature(self._login.password, fields, body, version)
        header = RemotingHeader(code, self._opaque, 0, fields, language=Language.JAVA)
        self.socket.sendall(frame_head(header, len(body)) + body)
        return self._opaque

    def answer_to(self, opaque: int) -> tuple[RemotingHeader, bytes]:
        """The answer to a request. Raises ConnectionResetError when the node ends the connection,
        TimeoutError."""
        while opaque not in self._came:
            size = self.socket.recv_into(self._reader.room())
            if not size:
                raise ConnectionResetError("the node has closed the connection")
            for header, body in self._reader.received(size):
                if header.is_answer:
                    self._came[header.opaque] = header, bytes(body)
        return self._came.pop(opaque)

    def ask(
        self, code: int, ext: Mapping[str, object], body: bytes = b""
    ) -> tuple[RemotingHeader, bytes]:
        """Sends a request and waits for its answer. Raises as `answer_to`."""
        return self.answer_to(self.send(code, ext, body))

    def store(self, topic: str, body: bytes = b"x") -> PeerOutcome:
        """Sends one message."""
        return self._outcome(RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)

    def read(self, topic: str, group: str, hold_ms: int = 0) -> PeerOutcome:
        """Pulls the first messages of the first queue."""
        return self._outcome(RequestCode.PULL_MESSAGE, pull_fields(topic, group, hold_ms))

    def _outcome(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> PeerOutcome:
        try:
            return outcome_of(self.ask(code, ext, body)[0])
        except TimeoutError:
            return PeerOutcome(PeerVerdict.SILENT)
        except OSError:
            return PeerOutcome(PeerVerdict.CLOSED)

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()


def outcome_of(header: RemotingHeader) -> PeerOutcome:
    """What an answer by remoting says. A pull that finds nothing is served."""
    if header.code == NOT_ALLOWED:
        return PeerOutcome(PeerVerdict.REFUSED, header.remark or "")
    return PeerOutcome(PeerVerdict.SERVED, "" if not header.code else f"code {header.code}")


def send_fields(topic: str) -> dict[str, object]:
    """Of 310, by their letters."""
    return {
        "a": "producers", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0,
        "g": int(time.time() * 1000), "h": 0, "i": "", "j": 0, "k": "false", "m": "false",
    }  # fmt: skip


def pull_fields(topic: str, group: str, hold_ms: int = 0, offset: int = 0) -> dict[str, object]:
    """Of 11, with the subscription in the header. `hold_ms`: how long the pull may wait."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 6 if hold_ms else 4, "commitOffset": 0,
        "suspendTimeoutMillis": hold_ms, "subscription": "*", "subVersion": 0,
    }  # fmt: skip


def remoting(place: Place, login: PeerLogin, topic: str, group: str) -> PeerOutcome:
    """A send, then a pull, of one topic."""
    try:
        client = RemotingClient(place, login)
    except OSError as error:
        return PeerOutcome(PeerVerdict.CLOSED, words_of(error))
    with closing(client):
        sent = client.store(topic)
        return client.read(topic, group) if sent.verdict is PeerVerdict.SERVED else sent


def own(place: Place, login: PeerLogin, operation: str, **fields: Any) -> PeerOutcome:
    """One request of Keelog's own protocol, by ZeroMQ; with keys where the client has some."""
    header = {"v": frames.VERSION, "op": operation, "id": 1, **fields}
    if login.keys is None:
        return _own_plainly(place, frames.pack(header))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, login.keys.public.encode())
        dealer.setsockopt(zmq.CURVE_SECRETKEY, login.keys.secret.encode())
        dealer.setsockopt(zmq.CURVE_SERVERKEY, login.keys.server.encode())
        with dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) as monitor:
            dealer.connect(f"tcp://{place[0]}:{place[1]}")
            dealer.send(frames.pack(header))
            poller = zmq.Poller()
            for one in (dealer, monitor):
                poller.register(one, zmq.POLLIN)
            ready = dict(poller.poll(int(SILENT_S * 1000)))
            found = dealer.recv_multipart() if dealer in ready else None
            dealer.disable_monitor()
        if found is not None:
            return _own_outcome(found[0])
        return (
            PeerOutcome(PeerVerdict.REFUSED, "unknown key")
            if ready
            else PeerOutcome(PeerVerdict.SILENT)
        )


def _own_plainly(place: Place, request: bytes) -> PeerOutcome:
    """By a raw peer of ZMTP with the mechanism NULL: ZeroMQ itself would try again and again."""
    connection = zmtp.Connection(b"DEALER", frames.PAYLOAD_BYTES_MAX, time.monotonic())
    greeting, ready = connection.hello[: zmtp.GREETING_BYTES], zmtp.ready(b"DEALER")
    # One after the other: ZeroMQ closes a connection on which all of it comes at once.
    unsent = [ready, b"".join(map(bytes, zmtp.message(request, None)))]
    heard = b""
    try:
        with socket.create_connection(place, timeout=SILENT_S) as plain:
            plain.sendall(greeting)
            while count := plain.recv_into(room := connection.room()):
                heard += bytes(room[:count])
                for message in connection.received(count, time.monotonic()):
                    return _own_outcome(bytes(message[0]))
                if len(heard) >= zmtp.GREETING_BYTES and unsent and unsent[0] is ready:
                    plain.sendall(unsent.pop(0))
                if connection.is_ready and len(unsent) == 1:
                    plain.sendall(unsent.pop())
    except TimeoutError:
        return PeerOutcome(PeerVerdict.SILENT)
    except (OSError, zmtp.NotZmtp):
        pass  # closed with a reset; or by us, for a mechanism that is not NULL
    mechanism = heard[12:32].rstrip(b"\0").decode("ascii", "replace")
    return PeerOutcome(PeerVerdict.CLOSED, f"it wants {mechanism}" if mechanism else "")


def _own_outcome(answer: bytes) -> PeerOutcome:
    header = frames.unpack_answer(answer)
    if header["ok"]:
        return PeerOutcome(PeerVerdict.SERVED)
    refused = frames.refusal_error(header)
    is_of_login = refused.code == NOT_ALLOWED
    words = refused.reason if is_of_login else f"{type(refused).__name__}: {refused.reason}"
    return PeerOutcome(PeerVerdict.REFUSED if is_of_login else PeerVerdict.SERVED, words)


def follow(place: Place, login: PeerLogin) -> PeerOutcome:
    """Says hello as a slave with an empty log, and waits for bytes of the node's."""
    try:
        with connected(place, login) as wire:
            wire.settimeout(SILENT_S)
            wire.sendall(ha.encode_report(0))
            reader = ha.LogFrameReader()
            while count := wire.recv_into(reader.room()):
                for frame in reader.take(count):
                    if len(frame.body):
                        return PeerOutcome(PeerVerdict.SERVED, "it gets the log")
    except TimeoutError:
        return PeerOutcome(PeerVerdict.SILENT)
    except (OSError, MqError) as error:
        return PeerOutcome(PeerVerdict.CLOSED, words_of(error))
    return PeerOutcome(PeerVerdict.CLOSED)


def http(place: Place, login: PeerLogin, path: str) -> PeerOutcome:
    """GET, with Basic if the client has a user."""
    scheme = "http" if login.tls is None else "https"
    asked = urllib.request.Request(f"{scheme}://{place[0]}:{place[1]}{path}")
    if login.user:
        proof = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        asked.add_header("Authorization", f"Basic {proof}")
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_S, context=login.tls) as answer:
            return PeerOutcome(PeerVerdict.SERVED, _seen(answer.read()))
    except urllib.error.HTTPError as error:
        with error:
            is_refused = error.code in (401, 403)
            words = str(error.code) if is_refused else f"{error.code}, {_seen(error.read())}"
            return PeerOutcome(PeerVerdict.REFUSED if is_refused else PeerVerdict.SERVED, words)
    except OSError as error:
        return PeerOutcome(PeerVerdict.CLOSED, words_of(error))


def _seen(body: bytes) -> str:
    """How much a page says: whether it names topics, or files, or only gives its verdict."""
    try:
        rows = json.loads(body)
    except ValueError:
        return f"{len(body.splitlines())} lines"
    return f"fields {', '.join(sorted(rows))}" if isinstance(rows, dict) else type(rows).__name__


def words_of(error: BaseException) -> str:
    """An error of a connection in few words."""
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        return words_of(inner)
    return str(inner or getattr(error, "strerror", None) or error).lower()
