"""Who came to the wrong port, by the first bytes that its client sends."""

import pytest

from protocol.addresses import (
    GRPC_CLIENT,
    HTTP_CLIENT,
    KEELOG_CLIENT,
    REMOTING_CLIENT,
    TLS_CLIENT,
    ForeignClient,
    foreign_client,
)
from protocol.ha import encode_report
from protocol.remoting.codes import RequestCode
from protocol.remoting.frame_reader import frame_head
from protocol.remoting.headers import RemotingHeader
from protocol.wire.zmtp import Connection


@pytest.mark.parametrize(
    ("first", "client"),
    [
        (Connection(b"DEALER", 1_000, 0.0).hello, KEELOG_CLIENT),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f", KEELOG_CLIENT),  # all that libzmq sends at first
        (bytes.fromhex("16030102000100"), TLS_CLIENT),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", GRPC_CLIENT),
        (b"GET /metrics HTTP/1.1\r\n", HTTP_CLIENT),
        (frame_head(RemotingHeader(RequestCode.HEART_BEAT, 1), 0), REMOTING_CLIENT),
    ],
)
def test_a_client_is_known_by_its_first_bytes(first: bytes, client: ForeignClient) -> None:
    assert foreign_client(first) == client


@pytest.mark.parametrize("first", [b"", b"\xff", b"\0" * 16, b"hello", encode_report(2**40)])
def test_anybody_else_is_not(first: bytes) -> None:
    assert foreign_client(first) is None
