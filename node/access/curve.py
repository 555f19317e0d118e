"""CURVE at a node: its key pair, and which clients its ZeroMQ sockets let in.

A node whose store has `keelog/auth/server.key_secret` encrypts all that comes over TCP, and lets in
clients whose public key belongs to a user. Without that file nothing is asked of anybody. Local
sockets need no keys: they take the node's own user and root alone.

ZeroMQ asks a handler once for each connection (ZAP, its RFC 27), so a key that was taken away stays
connected: `CurveGate.user_of` is asked again for each request. A routing id says nothing about who
sent a request, because clients choose their own and may choose that of another.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from node.access.audit import DONE, REFUSED, AuditEvent, AuditLog
from node.access.users_file import auth_dir
from node.runtime import disk
from node.runtime.process import now_ms
from node.runtime.store_paths import held_open
from protocol.access.key_files import (
    KEY_FILE_BYTES_MAX,
    PUBLIC_MODE,
    PUBLIC_SUFFIX,
    SECRET_SUFFIX,
    BadKey,
    KeyPair,
    check_secret_file,
    key_file,
    parse_pair,
)
from protocol.errors import RefusedError, ServiceNotAvailable

SERVER = "server"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"keelog"
KEY_PROPERTY = "Keelog-Key"
"""Of each message: the public key of its connection, which the handler has put there. What a client
calls so itself does not count: ZeroMQ keeps the handler's."""
ZAP_AT_ONCE = 64
"""Connections that one turn lets in or refuses."""
_ZAP_FRAMES, _ADDRESS_AT = 9, 5
_NOBLOCK = int(zmq.NOBLOCK)

Context = zmq.Context[zmq.Socket[bytes]]
UserOfKey = Callable[[str], str | None]
"""The name of the user that has this public key (Z85) now; None for nobody's, and for that of a
user who is disabled."""


class CurveGate(NamedTuple):
    """What a server needs to let clients in by their keys."""

    keys: KeyPair
    user_of_key: UserOfKey
    audit: AuditLog | None = None
    """Gets a line for each connection that was let in, or refused."""


def new_pair() -> KeyPair:
    """A new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def server_keys(root: Path) -> KeyPair | None:
    """The key pair of a node; None for one that asks for no keys. Raises BadKey, OSError."""
    try:
        return read_pair(auth_dir(root) / f"{SERVER}{SECRET_SUFFIX}")
    except FileNotFoundError:
        return None


def gate_of(root: Path, user_of_key: UserOfKey, audit: AuditLog | None = None) -> CurveGate:
    """What the servers of a node with keys ask of clients.

    Raises BadKey where the keys are gone, or may be known to others, OSError.
    """
    keys = server_keys(root)
    if keys is None:
        raise BadKey(f"{auth_dir(root)} has no keys any more", f"keelog key init {root}")
    return CurveGate(keys, user_of_key, audit)


def make_server_keys(root: Path) -> KeyPair:
    """The key pair of a node, which is made where it has none. The public key gets a file of its
    own, to be given to clients. Raises BadKey, OSError."""
    folder = auth_dir(root)
    disk.make_durable_dir(folder)
    folder.chmod(disk.FOLDER_MODE)
    keys = server_keys(root)
    if keys is None:
        keys = new_pair()
        disk.write_atomically(folder / f"{SERVER}{SECRET_SUFFIX}", key_file(*keys))
    public = folder / f"{SERVER}{PUBLIC_SUFFIX}"
    if not public.exists():
        disk.write_atomically(public, key_file(keys.public))
        public.chmod(PUBLIC_MODE)
    return keys


def write_pair(folder: Path, name: str) -> KeyPair:
    """Makes `NAME.key_secret` and `NAME.key` in a folder that is there, and replaces neither.

    Raises RefusedError where one is there already, OSError.
    """
    keys = new_pair()
    secret, public = folder / f"{name}{SECRET_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    for path in (secret, public):
        if os.path.lexists(path):
            raise RefusedError(f"{path} is there already", "give the new pair another name")
    disk.write_atomically(secret, key_file(*keys))
    disk.write_atomically(public, key_file(keys.public))
    public.chmod(PUBLIC_MODE)
    return keys


def read_pair(path: Path) -> KeyPair:
    """The pair in a `.key_secret`, which no link leads to and only its owner may read.

    Raises BadKey, FileNotFoundError and other OSErrors.
    """
    if path.is_symlink():
        raise BadKey(f"{path} is a link", "put the file itself there")
    # Not blocking: a FIFO in its place would wait for a writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with held_open(os.open(path, flags)) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadKey(f"{path} is not a file", "move it away")
        check_secret_file(found.st_mode, found.st_uid, os.geteuid(), str(path))
        keys = parse_pair(os.read(descriptor, KEY_FILE_BYTES_MAX), str(path))
    if zmq.curve_public(keys.secret.encode()).decode() != keys.public:
        raise BadKey(f"the keys of {path} are not a pair", "keelog key new NAME  makes a pair")
    return keys


def ask_for_keys(socket: "zmq.Socket[bytes]", keys: KeyPair) -> None:
    """What this socket binds from now on takes CURVE alone.

    ZeroMQ lets in every key where no domain is set or nobody handles it, unless a domain is both
    set and enforced: then nobody is let in without a handler.
    """
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


class ZapHandler:
    """Says which connections of a context are let in. For the thread of the server's loop."""

    def __init__(self, context: Context, gate: CurveGate) -> None:
        """Make it before the server's socket is bound. Raises ServiceNotAvailable where the context
        has another one."""
        self._gate = gate
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        try:
            self.socket.bind(ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            self.socket.close(0)
            raise ServiceNotAvailable(
                f"nobody can look at the keys of clients: {error.strerror}", "restart the node"
            ) from None

    def turn(self) -> None:
        """Lets in, or refuses, those that wait, ZAP_AT_ONCE at most. It never waits."""
        for _ in range(ZAP_AT_ONCE):
            try:
                request = self.socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(request), _NOBLOCK)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """`peer, "", version, id, domain, address, identity, mechanism, key` and its answer."""
        *_, mechanism, key = request
        text, user = z85.encode(key).decode() if len(key) == 32 else "", None
        if len(request) == _ZAP_FRAMES and mechanism == b"CURVE" and text:
            user = self._gate.user_of_key(text)
        head = [*request[:2], b"1.0", request[3]]
        self._note(user, request)
        if not user:
            return [*head, b"400", b"unknown key", b"", b""]
        name, value = KEY_PROPERTY.encode(), text.encode()
        # Metadata of ZMTP: lengths of one byte and of four before name and value.
        known = bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        return [*head, b"200", b"OK", user.encode(), known]

    def _note(self, user: str | None, request: list[bytes]) -> None:
        if self._gate.audit is None or len(request) <= _ADDRESS_AT:
            return
        address = request[_ADDRESS_AT].decode("ascii", "replace").removeprefix("::ffff:")
        outcome, why = (DONE, "") if user else (REFUSED, "unknown key")
        event = AuditEvent("zeromq", user or "", address, "login", "", outcome, why)
        # A log that cannot be written keeps nobody out: each request is looked at.
        with suppress(OSError):
            self._gate.audit.write(event, now_ms())

    def close(self) -> None:
        """Nobody is let in any more."""
        self.socket.close(0)
