"""Whom a node follows, as `--follow` says it."""

import re
from typing import NamedTuple

from protocol.errors import BadRequest

NAME_SERVERS_PREFIX = "namesrv:"
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/;\s]+):([0-9]{1,5})")
_PORT_MAX = 65_535
_HINT = (
    "write --follow HOST:PORT, with the master's replication port (10912 in RocketMQ), or "
    "--follow 'namesrv:HOST:PORT;HOST:PORT/BROKERNAME'"
)


class MasterSource(NamedTuple):
    """Either `ha`, the master's replication address, or name servers that know the master of
    `broker`."""

    ha: str = ""
    name_servers: tuple[str, ...] = ()
    broker: str = ""

    def __str__(self) -> str:
        return self.ha or f"{NAME_SERVERS_PREFIX}{';'.join(self.name_servers)}/{self.broker}"


def parse_follow(text: str) -> MasterSource:
    """Reads the setting `follow`. Raises BadRequest for what names no master."""
    if not text.startswith(NAME_SERVERS_PREFIX):
        return MasterSource(ha=_checked(text, text))
    places, slash, broker = text.removeprefix(NAME_SERVERS_PREFIX).rpartition("/")
    servers = tuple(place for one in places.split(";") if (place := one.strip()))
    if not slash or not broker or not servers:
        raise BadRequest(f"follow names {text[:80]!a}, not a master", _HINT)
    return MasterSource("", tuple(_checked(one, text) for one in servers), broker)


def split_place(place: str) -> tuple[str, int]:
    """The host, without brackets, and the port of a HOST:PORT that was checked before."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def remoting_beside(ha: str) -> str:
    """Where a master of RocketMQ's defaults takes requests: at the port below that of its
    replication (haListenPort); nothing where there is none."""
    host, _, port = ha.rpartition(":")
    return f"{host}:{int(port) - 1}" if int(port) > 1 else ""


def check_place(name: str, place: str) -> None:
    """Raises BadRequest unless the setting `name` holds a HOST:PORT."""
    match = _PLACE.fullmatch(place)
    if match is None or not 0 < int(match[2]) <= _PORT_MAX:
        raise BadRequest(f"{name} is {place[:80]!a}", "write HOST:PORT, as 192.0.2.7:10911")


def _checked(place: str, text: str) -> str:
    match = _PLACE.fullmatch(place)
    if match is None or not 0 < int(match[2]) <= _PORT_MAX:
        raise BadRequest(f"follow names {text[:80]!a}, not a master", _HINT)
    return place
