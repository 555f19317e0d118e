"""What people see of an address that holds credentials."""

import pickle

import pytest

from protocol.addresses import with_scheme, without_credentials
from protocol.errors import BadRequest, CorruptError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://me:abc@host/x", "at https://***@host/x"),
        ("tcp://:abc@host:1 and s3://bucket/x", "tcp://***@host:1 and s3://bucket/x"),
        ("'s3://KEY:a@b@bucket/x' is no path", "'s3://***@bucket/x' is no path"),
        ("s3://KEY:ab/cd@bucket/x does not exist", "s3://***@bucket/x does not exist"),
        ("s3a:/KEY:abc@bucket/x", "s3a:/***@bucket/x"),
        ('{"a": "s3://K:S@b", "b": "tcp://u:p@h"}', '{"a": "s3://***@b", "b": "tcp://***@h"}'),
        ("s3://k:s@b,tcp://u:p@h", "s3://***@b,tcp://***@h"),
        ("s3://b/x?secret_key=a%2Fb&region=eu", "s3://b/x?secret_key=***&region=eu"),
        ("abfss://c/x?sas_token=abc&sig=d", "abfss://c/x?sas_token=***&sig=***"),
    ],
)
def test_credentials_in_an_address_are_not_shown(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/day@2026/x",
        "http://minio:9000/bucket/a@b",
        "file:///a/b@c/d and /a@b/c",
        "ask me@host.org",
        "topic token=7 has no queue 1; key=a",
        "s3://bucket/x?region=eu&scheme=http",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert without_credentials(text) == text


@pytest.mark.parametrize("place", ["localhost:7850", "db7.example.org:1", "192.0.2.7:1", "[::1]:1"])
def test_a_bare_host_with_a_port_is_an_address_of_a_node(place: str) -> None:
    assert with_scheme(place) == f"tcp://{place}"


@pytest.mark.parametrize(
    "other", ["tcp://h:1", "ipc://h:1", "localhost", "a/b:1", "file:1x", "h:", "::1", "me@h:1"]
)
def test_any_other_address_stays_as_it_is(other: str) -> None:
    assert with_scheme(other) == other


def test_no_error_shows_the_credentials_of_an_address() -> None:
    refused = BadRequest(
        "tcp://me:abc@h:1 is not an address", "keelog health --node tcp://me:abc@h:1"
    )
    damaged = CorruptError("s3://KEY:abc@bucket/0", 7, "bad magic")
    for error in (refused, damaged, pickle.loads(pickle.dumps(refused))):
        assert "abc" not in f"{error} {error!r} {error.reason} {error.hint}"
    assert refused.reason == "tcp://***@h:1 is not an address"
