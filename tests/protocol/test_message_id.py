"""Addresses and the two kinds of message id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest
from protocol.ids import Host, offset_message_id, parse_host, parse_offset_message_id, unique_key
from tests.protocol.records import HOSTS, I64

IPS = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))


@given(IPS, st.integers(0, 2**31 - 1))
def test_an_address_reads_back_from_its_text(ip: bytes, port: int) -> None:
    host = Host(ip, port)
    assert parse_host(str(host)) == host
    assert host.is_v6 == (len(ip) == 16)
    assert host.to_bytes() == ip + port.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("text", "ip", "port"),
    [
        ("1.2.3.4", "01020304", 0),
        ("1.2.3.4:5", "01020304", 5),
        ("::1", "00000000000000000000000000000001", 0),
        ("[::1]", "00000000000000000000000000000001", 0),
        ("[::1]:9", "00000000000000000000000000000001", 9),
        ("::ffff:1.2.3.4", "00000000000000000000ffff01020304", 0),
    ],
)
def test_an_address_may_lack_its_port(text: str, ip: str, port: int) -> None:
    assert parse_host(text) == Host(bytes.fromhex(ip), port)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "1.2.3", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:-1", "1.2.3.4: 5", "1.2.3.4:1_0"),
        *("[::1", "[::1]x5", "[::1]5", "[1.2.3.4]:5", "[]:5", "::1]:5", "localhost:80"),
        *("1.2.3.4:2147483648", "1.2.3.4:99999999999", "1.2.3.4:٣", "1.2.3.4\n", "1.2.3.4:5\n"),
        *("\ud800", "1.2.3.256", "01.2.3.4", "9" * 5_000, "1.2.3.4:" + "9" * 5_000),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_host(text)
    assert caught.value.hint
    caught.value.reason.encode()


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_bad_request(text: str) -> None:
    try:
        host = parse_host(text)
    except BadRequest:
        return
    assert len(host.ip) in (4, 16)


@given(HOSTS, I64)
def test_an_offset_message_id_reads_back(host: Host, offset: int) -> None:
    text = offset_message_id(host, offset)
    assert len(text) == (56 if host.is_v6 else 32)
    assert text == text.upper()
    assert parse_offset_message_id(text) == (host, offset)
    assert parse_offset_message_id(text.lower()) == (host, offset)


def test_the_offset_message_id_of_rocketmqs_example() -> None:
    text = "0A00000500002A9F0000000000000000"
    assert offset_message_id(Host(bytes([10, 0, 0, 5]), 10911), 0) == text


@pytest.mark.parametrize(
    "text",
    ["", "0A", "0" * 31, "0" * 33, "0" * 40, "0" * 57, "G" * 32, "é" * 32, "0A 0" * 8, "00 " * 16],
)
def test_what_is_no_offset_message_id_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no message id"):
        parse_offset_message_id(text)


@given(st.text(max_size=60))
def test_any_text_is_a_message_id_or_a_bad_request(text: str) -> None:
    try:
        parse_offset_message_id(text)
    except BadRequest:
        return
    assert len(text) in (32, 56)


def test_a_unique_key_is_address_process_client_time_and_counter() -> None:
    key = unique_key(bytes([127, 0, 0, 1]), 0x10A2B, 0x18B4AAC2, 0, 1)
    assert key == "7F0000010A2B18B4AAC2000000000001"


@given(IPS, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 99))
def test_a_unique_key_has_a_fixed_shape(
    ip: bytes, process: int, instance: int, month_ms: int, counter: int
) -> None:
    key = unique_key(ip, process, instance, month_ms, counter)
    assert len(key) == 2 * len(ip) + 24
    assert bytes.fromhex(key)[: len(ip)] == ip
    assert key == key.upper()
    assert key.endswith(f"{counter:04X}")
