"""What Spark's processes log in with at a node with keys: options `key` and `serverKey`.

Only the path of the client's secret key is an option. It goes to the executors with the plan, and
each process that connects reads the file there: plans, Spark's pages and its event log show a path.
"""

import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from keelog.client.transport.keys import ClientKeys, client_keys, public_key
from keelog.pipeline.errors import BadKeyFile, BadOption
from protocol.access.key_files import BadKey, is_key

KEY, SERVER_KEY = "key", "serverKey"


class NodeKeys(NamedTuple):
    """Where the secret key of the client is on every machine, and the public key of the node."""

    key: str
    server_key: str

    def read(self) -> ClientKeys:
        """The keys, from the file on this machine. Raises BadKeyFile."""
        try:
            found = client_keys(self.key, self.server_key)
        except BadKey as error:
            raise _bad(error) from None
        assert found is not None
        return found


def parse_node_keys(key: str | None, server_key: str | None) -> NodeKeys | None:
    """The keys that both options name; None where neither is there. On the driver's machine: the
    secret key must be there, too, and a file of `server_key` needs to be there alone.

    Raises BadOption where one of both is missing, or names no file; BadKeyFile.
    """
    if key is None and server_key is None:
        return None
    if key is None or server_key is None:
        raise BadOption(
            f"{KEY if key is None else SERVER_KEY} is missing: a node with keys needs both",
            f"option('{KEY}', '/etc/keelog/me.key_secret') and option('{SERVER_KEY}', …), which"
            " keelog key show DIR prints",
        )
    try:
        found = NodeKeys(_file(KEY, key), public_key(_file(SERVER_KEY, server_key), SERVER_KEY))
    except BadKey as error:
        raise _bad(error) from None
    found.read()
    return found


def _file(name: str, text: str) -> str:
    """A path as an absolute one, `file:` in front of it allowed; the text of a key as it is."""
    if is_key(text) and not Path(text).exists():
        if name == KEY:
            # It may be the secret key, which no error shows.
            raise BadKeyFile(f"{KEY} is a key itself", "the path of the .key_secret")
        return text
    parts = urlsplit(text) if text.startswith("file:") else None
    if parts is not None and parts.netloc in ("", "localhost"):
        text = unquote(parts.path)
    elif "://" in text:
        raise BadOption(f"{name} is an address", "a file that is on the machine of every executor")
    return str(Path(text).absolute())


def _bad(error: BadKey) -> BadKeyFile:
    hint = f"{error.hint}; driver and executors each need the file, for their own user"
    return BadKeyFile(f"{error.reason} (on {socket.gethostname()})", hint)
