"""The events of a ZeroMQ socket, as its monitor says them (zmq_socket_monitor(3)).

pyzmq's own parser would bring asyncio and TLS into every process of a node: 50 ms of each start.
"""

import struct
from typing import NamedTuple

_EVENT = struct.Struct("=Hi")


class SocketEvent(NamedTuple):
    """`event` is one of zmq.EVENT_*; `value` is a descriptor or an error, by the event."""

    event: int
    value: int


def parse_socket_event(frame: bytes) -> SocketEvent:
    """Of a monitor's message: its first frame. The second one names the endpoint."""
    return SocketEvent(*_EVENT.unpack(frame))
