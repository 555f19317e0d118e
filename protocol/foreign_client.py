"""Who came to the wrong port, by the first bytes of a connection."""

from typing import NamedTuple


class ForeignClient(NamedTuple):
    """Whose client speaks, and what to do about it."""

    what: str
    hint: str


KEELOG = ForeignClient(
    "a client of Keelog", "give it the address after the word ready, as tcp://HOST:7850"
)
TLS = ForeignClient(
    "a client with TLS, as RocketMQ 5's gRPC clients",
    "use RocketMQ's remoting client (rocketmq-client), without TLS",
)
GRPC = ForeignClient(
    "a gRPC client, as those of RocketMQ 5", "use RocketMQ's remoting client (rocketmq-client)"
)
HTTP = ForeignClient("an HTTP client", "pages for browsers and probes are at the address of --http")
REMOTING = ForeignClient("a client of RocketMQ", "give it the address of --remoting")

_ZMTP_SIZE_AT = slice(1, 9)
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ")
_JSON_HEADER_AT = 8


def foreign_client(first: bytes) -> ForeignClient | None:
    """Who begins a connection so; None for anybody else. A dozen bytes say it."""
    if first[:1] == b"\xff" and not any(first[_ZMTP_SIZE_AT][:7]) and first[9:10] == b"\x7f":
        return KEELOG
    if first[:2] == b"\x16\x03":
        return TLS
    if first.startswith(b"PRI * HTTP/2"):
        return GRPC
    if first.startswith(_METHODS):
        return HTTP
    if first[_JSON_HEADER_AT:].startswith(b'{"'):
        return REMOTING
    return None
