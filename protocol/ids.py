"""What names a message: its queue, its host, its ids.

The offset message id is the store host and the log offset in upper-case hex; UNIQ_KEY is made
by the client. They have the same lengths: only the context distinguishes them.
"""

import ipaddress
import re
import zlib
from functools import lru_cache
from typing import NamedTuple

from protocol.errors import BadRequest

IPV4_BYTES = 4
IPV6_BYTES = 16
PORT_BYTES = 4

_WITH_PORT = re.compile(r"(?:\[([0-9a-fA-F:.]*:[0-9a-fA-F:.]*)\]|([0-9.]+))(?::([0-9]{1,10}))?")


class Queue(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int


@lru_cache(maxsize=16_384)
def queue_of(topic: str, queue_id: int) -> Queue:
    """As `Queue(topic, queue_id)`, at a third of the cost, for code that needs one a message."""
    return Queue(topic, queue_id)


def shard_of(queue: Queue, shard_count: int) -> int:
    """The queue worker that owns `queue` when there are `shard_count` of them.

    CRC-32 and not `hash()`, which differs in each process.
    """
    return zlib.crc32(f"{queue.topic}-{queue.queue_id}".encode()) % shard_count


class Host(NamedTuple):
    """An address as a record stores it: 4 or 16 bytes of IP, and a port of 32 bits."""

    ip: bytes
    port: int

    @property
    def is_v6(self) -> bool:
        """Whether the address takes 20 bytes in the record."""
        return len(self.ip) == IPV6_BYTES

    def __str__(self) -> str:
        return _host_text(self)

    def to_bytes(self) -> bytes:
        """IP, then the port as a big-endian i32."""
        return self.ip + self.port.to_bytes(PORT_BYTES, "big", signed=True)


@lru_cache(maxsize=1024)
def _host_text(host: Host) -> str:
    text = str(ipaddress.ip_address(host.ip))
    return f"[{text}]:{host.port}" if host.is_v6 else f"{text}:{host.port}"


NO_HOST = Host(bytes(IPV4_BYTES), 0)


@lru_cache(maxsize=1024)
def parse_host(text: str) -> Host:
    """Reads `1.2.3.4:5` or `[::1]:5`; the port may be missing. Raises BadRequest."""
    found = _WITH_PORT.fullmatch(text)
    ip, number = (found[1] or found[2], int(found[3] or 0)) if found else (text, 0)
    try:
        packed = ipaddress.ip_address(ip).packed
    except ValueError:
        raise BadRequest(f"{text[:80]!a} is not an address", "write 1.2.3.4:5 or [::1]:5") from None
    if not 0 <= number < 2**31:
        raise BadRequest(f"port {number} is out of range", "use a port in [0, 65535]")
    return Host(packed, number)


def offset_message_id(store_host: Host, offset: int) -> str:
    """RocketMQ's offset message id: 32 characters for IPv4, 56 for IPv6."""
    return (store_host.to_bytes() + offset.to_bytes(8, "big", signed=True)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """The store host and log offset in an offset message id. Raises BadRequest."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    # fromhex also takes spaces, so the text's own length counts too.
    if len(data) not in {IPV4_BYTES + 12, IPV6_BYTES + 12} or len(text) != 2 * len(data):
        raise BadRequest(f"{text[:80]!a} is no message id", "ids have 32 or 56 hex digits")
    ip, port, offset = data[:-12], data[-12:-8], data[-8:]
    host = Host(ip, int.from_bytes(port, "big", signed=True))
    return host, int.from_bytes(offset, "big", signed=True)


def unique_key(ip: bytes, process_id: int, instance: int, month_ms: int, counter: int) -> str:
    """A UNIQ_KEY as RocketMQ's client makes it (MessageClientIDSetter).

    `instance` distinguishes clients of one process, `month_ms` counts from the first of the month.
    """
    parts = (
        ip,
        (process_id & 0xFFFF).to_bytes(2, "big"),
        (instance & 0xFFFFFFFF).to_bytes(4, "big"),
        (month_ms & 0xFFFFFFFF).to_bytes(4, "big"),
        (counter & 0xFFFF).to_bytes(2, "big"),
    )
    return b"".join(parts).hex().upper()
