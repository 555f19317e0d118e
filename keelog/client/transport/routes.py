"""Where the processes of a node listen, as its control socket reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.addresses import fill_host, host_of
from protocol.errors import MqError
from protocol.names import DEFAULT_MAX_MESSAGE_BYTES
from protocol.wire.frames import raise_refusal


@dataclass(frozen=True, slots=True)
class Routes:
    """The answer to `routes`. `writer` is None while there is none, for the reason `writer_error`.

    `crc` says whether appended records must leave room for the whole-record checksum.
    """

    writer: str | None
    readers: tuple[str, ...]
    crc: bool
    max_message_bytes: int
    epoch: int
    node: str
    writer_error: MqError | None = None
    local: Mapping[str, str] = field(default_factory=dict)
    """Sockets that reach the same processes from this machine, by their endpoints."""
    bulk: Mapping[str, str] = field(default_factory=dict)
    """As `local`, for many large answers."""
    remoting: str | None = None
    """The gateway, where RocketMQ's clients connect; empty while it is not up, None without one."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Routes":
        """From the header of the answer; what is missing gets the node's defaults."""
        return cls(
            writer=fields.get("writer") or None,
            readers=tuple(endpoint for endpoint in fields.get("readers") or () if endpoint),
            crc=bool(fields.get("crc", True)),
            max_message_bytes=int(fields.get("max_message_size") or DEFAULT_MAX_MESSAGE_BYTES),
            epoch=int(fields.get("epoch") or 0),
            node=str(fields.get("node", "")),
            writer_error=_error(fields.get("writer_error")),
            local=_local(fields.get("local")),
            bulk=_local(fields.get("bulk")),
            remoting=fields.get("remoting"),
        )

    def endpoints(self) -> set[str]:
        """Every address that is in use."""
        return {*self.readers, *([self.writer] if self.writer else [])}


def fill_in(header: dict[str, Any], asked: str) -> None:
    """Puts the host of `asked`, the control address, into the addresses of an answer to `routes` or
    `status` that leave it out."""
    host = host_of(asked)
    for fields, name in (
        (header, "writer"),
        (header, "http"),
        (header, "remoting"),
        *_rows(header),
    ):
        if isinstance(fields.get(name), str):
            fields[name] = fill_host(fields[name], host)
    if isinstance(header.get("readers"), list):
        header["readers"] = [
            fill_host(one, host) if isinstance(one, str) else one for one in header["readers"]
        ]


def _rows(header: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    rows = header.get("processes")
    found = rows if isinstance(rows, list) else []
    return [(row, "endpoint") for row in found if isinstance(row, dict)]


def _local(fields: Any) -> dict[str, str]:
    """Empty for nodes of earlier versions, which have none."""
    found = fields if isinstance(fields, dict) else {}
    return {str(endpoint): str(local) for endpoint, local in found.items()}


def _error(fields: Any) -> MqError | None:
    if not isinstance(fields, dict):
        return None
    try:
        raise_refusal({"ok": False, "error": fields})
    except MqError as error:
        return error
    return None


NO_ROUTES = Routes.of({})
"""The defaults, until the node has sent its routes."""
