"""Addresses: every name has one, and every one is its name again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.console.addresses import Links, has_address, name_in_path, name_of_path
from keelog.console.headers import is_own_host, is_own_request

NAMES = st.text("%|abzAZ09_-", min_size=1, max_size=255)


@given(NAMES)
def test_a_name_comes_back_from_its_address_and_needs_no_escapes(name: str) -> None:
    part = name_in_path(name)
    assert name_of_path(part) == name
    assert "%" not in part
    assert "|" not in part


def test_a_message_has_the_address_of_its_place() -> None:
    links = Links("/keelog")
    assert links.message("%DLQ%billing", 0, 17) == "/keelog/topics/~DLQ~billing/0/17"
    assert links.topic("%") == "/keelog/topics/~"
    assert links.page("/find", q="a b&c", topic="") == "/keelog/find?q=a+b%26c"


def test_a_group_whose_name_is_no_part_of_an_address_leads_to_the_list() -> None:
    assert not has_address("a/b")
    assert Links().group("a/b") == "/groups?q=a%2Fb"
    assert Links().group("%a|b") == "/groups/~a!b"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7856", "[::1]:7856", "[::1]", "localhost", "LOCALHOST:1",
     "a.localhost:7856", "192.0.2.7", "keelog.example.org:443"],
)  # fmt: skip
def test_addresses_localhost_and_given_names_are_hosts_of_the_console(host: str) -> None:
    assert is_own_host(host, {"keelog.example.org"})


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:7856", "127.0.0.1.evil.example", "localhost.evil.org",
     "127.0.0.1@evil.example", "::1", "[127.0.0.1]", "127.0.0.1:99999999", "a b", "localhost, x",
     "1e100.net", "0x7f.1", "keelog.example.org.", "xlocalhost"],
)  # fmt: skip
def test_other_hosts_are_none(host: str | None) -> None:
    assert not is_own_host(host, {"keelog.example.org"})


HOST = (b"host", b"127.0.0.1:7856")


@pytest.mark.parametrize(
    "headers",
    [
        [HOST, (b"sec-fetch-site", b"same-origin")],
        [HOST, (b"origin", b"http://127.0.0.1:7856")],
        [(b"host", b"k.example"), (b"origin", b"https://k.example")],  # a proxy with TLS
        [(b"host", b"k.example"), (b"origin", b"http://k.example:80")],
    ],
)
def test_a_form_of_the_console_itself_is_taken(headers: list[tuple[bytes, bytes]]) -> None:
    assert is_own_request(headers, "http")


@pytest.mark.parametrize(
    "headers",
    [
        [HOST],
        [HOST, (b"sec-fetch-site", b"cross-site")],
        [HOST, (b"sec-fetch-site", b"same-site")],
        [HOST, (b"sec-fetch-site", b"none")],
        [HOST, (b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"cross-site")],
        [HOST, (b"sec-fetch-site", b"cross-site"), (b"origin", b"http://127.0.0.1:7856")],
        [HOST, (b"origin", b"null")],
        [HOST, (b"origin", b"")],
        [HOST, (b"origin", b"http://localhost:7856")],
        [HOST, (b"origin", b"http://127.0.0.1:7857")],
        [HOST, (b"origin", b"http://evil.example")],
        [HOST, (b"origin", b"ftp://127.0.0.1:7856")],
        [HOST, (b"origin", b"http://127.0.0.1:7856"), (b"origin", b"http://127.0.0.1:7856")],
        [(b"origin", b"http://127.0.0.1:7856")],
    ],
)
def test_a_request_from_anywhere_else_is_not(headers: list[tuple[bytes, bytes]]) -> None:
    assert not is_own_request(headers, "http")
