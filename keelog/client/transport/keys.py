"""The keys of a client (CURVE): its own pair, and the public key of the node that it trusts.

Only the path of the secret key is ever given to a client, never the key: arguments and variables of
a process can be read by others, and stay in the history of shells.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

import zmq

from protocol.access.key_files import (
    KEY_CHARS,
    KEY_FILE_BYTES_MAX,
    BadKey,
    KeyPair,
    check_key,
    check_secret_file,
    is_key,
    parse_pair,
    parse_public,
)
from protocol.errors import BadRequest

PathText = str | os.PathLike[str]


class ClientKeys(NamedTuple):
    """What a connection to a node with keys needs."""

    own: KeyPair
    server: str

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """What this socket connects to from now on must have the node's secret key."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret.encode())


def client_keys(key: PathText | None, server_key: PathText | None) -> ClientKeys | None:
    """The keys in these files; None without. `server_key` may be the public key itself, too.

    Raises BadRequest where one of both is missing, BadKey for a file that is not what it should be.
    """
    if key is None and server_key is None:
        return None
    if key is None or server_key is None:
        raise BadRequest(
            f"{'key' if key is None else 'server_key'} is missing: a client with keys needs both",
            "key='me.key_secret', server_key='server.key' (keelog key new me, keelog key show DIR)",
        )
    return ClientKeys(_pair(Path(key)), public_key(server_key, "server_key"))


def _pair(path: Path) -> KeyPair:
    if len(str(path)) == KEY_CHARS and is_key(str(path)) and not path.exists():
        # It may be the secret key itself, which no error shows.
        raise BadKey("key is a key itself, not the path of a file", "name the .key_secret")
    data, found = _read(path)
    check_secret_file(found.st_mode, found.st_uid, os.geteuid(), str(path))
    keys = parse_pair(data, str(path))
    if zmq.curve_public(keys.secret.encode()).decode() != keys.public:
        raise BadKey(f"the keys of {path} are not a pair", "keelog key new NAME  makes a pair")
    return keys


def public_key(given: PathText, what: str) -> str:
    """A public key, or that in a file. `what` names it in errors. Raises BadKey."""
    text = os.fspath(given)
    if len(text) == KEY_CHARS and not Path(text).exists():
        return check_key(text, what)
    return parse_public(_read(Path(text))[0], text)


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    """A file of keys, which no link leads to. Raises BadKey."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise BadKey(f"the key file {path} cannot be read: {why}", "name the file itself") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadKey(f"{path} is not a file", "name a file that keelog key new has made")
        return os.read(descriptor, KEY_FILE_BYTES_MAX), found
    finally:
        os.close(descriptor)
