"""The addresses of a node: control at the port of --bind, the writer one above, then readers."""

import ipaddress
import re
from dataclasses import dataclass, replace

from protocol.errors import BadRequest

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):([0-9]{1,5}|\*)")
_HTTP = re.compile(r"(?:http://)?(?:(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):)?([0-9]{1,5})/?")
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class BindAddress:
    """The host and port of the control socket; `any_port`: the children take free ones too."""

    host: str
    port: int
    any_port: bool

    @property
    def is_loopback(self) -> bool:
        """True if only this host can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def takes_local(self) -> bool:
        """True if every client connects from 127.0.0.1, so that a message over a local socket has
        the same born host."""
        return self.is_loopback and not self.host.startswith("[")

    def with_port_of(self, endpoint: str) -> "BindAddress":
        """The same host with the port that was bound."""
        return replace(self, port=int(endpoint.rpartition(":")[2]))

    def child_endpoint(self, distance: int) -> str:
        """The endpoint of a child: `distance` ports above the control port, or any free port."""
        return f"tcp://{self.host}:{0 if self.any_port else self.port + distance}"


def parse_bind(text: str) -> BindAddress:
    """Reads `tcp://HOST:PORT`. Raises BadRequest for anything else."""
    match = _TCP.fullmatch(text)
    port = 0 if match is None or match[2] == "*" else int(match[2])
    if match is None or port > _PORT_MAX:
        raise BadRequest(f"bind {text[:80]!a} is no address", "write tcp://127.0.0.1:9870")
    return BindAddress(match[1], port, any_port=port == 0)


def parse_http(text: str) -> BindAddress | None:
    """Reads `PORT`, `HOST:PORT` or `http://HOST:PORT`; loopback without a host, None for nothing.

    Raises BadRequest for anything else.
    """
    if not text:
        return None
    match = _HTTP.fullmatch(text)
    if match is None or int(match[2]) > _PORT_MAX:
        raise BadRequest(f"http {text[:80]!a} is no address", "write 9875 or 127.0.0.1:9875")
    return BindAddress(match[1] or "127.0.0.1", int(match[2]), any_port=False)
