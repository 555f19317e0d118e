"""The signature of a request: as RocketMQ's clients make it."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.signature import (
    LAST_OLD_VERSION,
    SIGNATURE,
    access_key,
    is_signed,
    signature,
)

V5_5_0 = 477
SEND = {"AccessKey": "rocketmq2", "a": "PG", "b": "TopicTest", "e": "0", "i": "TAGS\x01A\x02"}
ROUTE = {"AccessKey": "rocketmq2", "topic": "TBW102"}
BEAT = {"AccessKey": "ak", "SecurityToken": "tok"}
FIELDS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)


@pytest.mark.parametrize(
    ("fields", "body", "secret", "wanted"),
    [
        (SEND, b"hello", "12345678", "yIffwVNU/9wwssQ7sXeTpuj1Jwk="),
        (ROUTE, b"", "12345678", "/u5P/wZUbhjanu4LM/UzEdo2u2I="),
        (BEAT, b'{"clientID":"c"}', "sk", "ReZQucjQqfSEv7Vg8pSz9J8Iyvc="),
    ],
)
def test_a_request_is_signed_as_rocketmqs_own_hook_signs_it(
    fields: dict[str, str], body: bytes, secret: str, wanted: str
) -> None:
    assert signature(secret, fields, body, V5_5_0) == wanted
    assert is_signed(secret, {**fields, SIGNATURE: wanted}, body, V5_5_0)


@pytest.mark.attack(6, 7)
@pytest.mark.parametrize(
    "change",
    [
        {"b": "TopicOther"},
        {"added": "later"},
        {"AccessKey": "another"},
        {"i": "", "zz": "TAGS\x01A\x02 "},
    ],
)
def test_a_field_that_was_changed_or_added_after_signing_is_noticed(change: dict[str, str]) -> None:
    signed = {**SEND, SIGNATURE: signature("12345678", SEND, b"hello", V5_5_0)}
    assert is_signed("12345678", signed, b"hello", V5_5_0)
    assert not is_signed("12345678", {**signed, **change}, b"hello", V5_5_0)


@pytest.mark.attack(8)
def test_a_field_that_moves_in_the_order_of_names_is_noticed() -> None:
    signed = {**SEND, SIGNATURE: signature("12345678", SEND, b"hello", V5_5_0)}
    signed["z"] = signed.pop("a")
    assert not is_signed("12345678", signed, b"hello", V5_5_0)


@pytest.mark.attack(4, 5)
def test_another_body_or_secret_has_another_signature() -> None:
    signed = {**SEND, SIGNATURE: signature("12345678", SEND, b"hello", V5_5_0)}
    assert not is_signed("12345678", signed, b"hullo", V5_5_0)
    assert not is_signed("12345679", signed, b"hello", V5_5_0)


@pytest.mark.attack(9)
@pytest.mark.parametrize("given", [None, "", "no base64 \ud800 é", "x" * (1 << 20)])
def test_a_signature_that_is_missing_or_senseless_is_refused(given: str | None) -> None:
    fields = SEND if given is None else {**SEND, SIGNATURE: given}
    assert not is_signed("12345678", fields, b"hello", V5_5_0)


def test_a_user_without_a_secret_signs_nothing() -> None:
    fields = {**SEND, SIGNATURE: signature("", SEND, b"", V5_5_0)}
    assert not is_signed("", fields, b"", V5_5_0)


@pytest.mark.attack(10)
def test_clients_up_to_4_9_3_do_not_sign_the_mark_of_unique_keys() -> None:
    asked = {**ROUTE, "_UNIQUE_KEY_QUERY": "true"}
    unsigned = signature("12345678", ROUTE, b"", V5_5_0)
    assert is_signed("12345678", {**asked, SIGNATURE: unsigned}, b"", LAST_OLD_VERSION)
    assert not is_signed("12345678", {**asked, SIGNATURE: unsigned}, b"", LAST_OLD_VERSION + 2)
    signed = signature("12345678", asked, b"", LAST_OLD_VERSION + 2)
    assert is_signed("12345678", {**asked, SIGNATURE: signed}, b"", LAST_OLD_VERSION + 2)


def test_names_are_in_the_order_that_java_has_for_them() -> None:
    # As UTF-16 the second begins with 0xD83D, which is below 0xFF5E.
    fields = {"\uff5e": "last", "\U0001f600": "first"}
    raw = hmac.digest(b"secret12", b"firstlast", hashlib.sha1)
    assert signature("secret12", fields, b"", V5_5_0) == base64.b64encode(raw).decode()


def test_an_empty_access_key_is_none() -> None:
    assert access_key({}) == access_key({"AccessKey": ""}) == ""
    assert access_key(ROUTE) == "rocketmq2"


@given(FIELDS, st.binary(max_size=20), st.text(min_size=1, max_size=9), st.integers(0, 500))
def test_whatever_is_signed_is_found_signed(
    fields: dict[str, str], body: bytes, secret: str, version: int
) -> None:
    fields[SIGNATURE] = signature(secret, fields, body, version)
    assert is_signed(secret, fields, body, version)
