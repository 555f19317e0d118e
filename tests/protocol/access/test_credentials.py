"""Credentials: signed requests, and the JSON in which settings of RocketMQ write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.credentials import (
    FIRST_USER_FORM,
    INNER_FORM,
    Credentials,
    CredentialsForm,
    signed,
)
from protocol.access.signature import is_signed
from protocol.errors import RefusedError
from protocol.remoting.headers import RemotingHeader

CANARY = "canary-secret"
OWN = Credentials("rocketmq2", "12345678")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_a_request_is_signed_as_rocketmqs_hook_signs_it() -> None:
    header = RemotingHeader(310, 7, ext={"a": "PG", "b": "TopicTest", "e": "0", "i": "TAGS\1A\2"})
    made = signed(OWN, header, b"hello")
    assert made.ext["Signature"] == "yIffwVNU/9wwssQ7sXeTpuj1Jwk="
    assert made.ext["AccessKey"] == "rocketmq2"
    assert (made.code, made.opaque) == (310, 7)
    assert "AccessKey" not in header.ext


@given(st.dictionaries(TEXTS, TEXTS, max_size=6), st.binary(max_size=40), TEXTS)
def test_every_signed_request_is_good_and_with_another_secret_none_is(
    ext: dict[str, str], body: bytes, secret: str
) -> None:
    made = signed(Credentials("me", f"x{secret}"), RemotingHeader(11, 1, ext=ext), body)
    assert is_signed(f"x{secret}", made.ext, body, made.version)
    assert not is_signed(f"y{secret}", made.ext, body, made.version)
    assert not is_signed(f"x{secret}", made.ext, body + b"x", made.version)


@pytest.mark.parametrize("form", [INNER_FORM, FIRST_USER_FORM])
def test_credentials_come_back_as_they_were_written(form: CredentialsForm) -> None:
    mine = Credentials("the-node", CANARY)
    assert form.parse(form.text(mine)) == mine
    assert form.parse(b"\n" + form.text(mine) + b"\n") == mine


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"accessKey": 1, "secretKey": "canary-secret"}', "not a JSON object of texts"),
        ('{"accessKey": "a"}', "no field secretKey"),
        ('{"username": "a", "password": "canary-secret"}', "a field 'password'"),
        ('{"accessKey": "a", "secretKey": "canary-secret", "securityToken": "t"}', "securityToken"),
        ('{"accessKey": "a b", "secretKey": "canary-secret"}', "not a name of a user"),
        ('{"accessKey": "", "secretKey": "canary-secret"}', "not a name of a user"),
        ('{"accessKey": "a", "secretKey": "canary"}', "6 characters"),
    ],
)
def test_what_is_none_is_refused_with_a_word_and_without_the_secret(text: str, why: str) -> None:
    with pytest.raises(RefusedError) as caught:
        INNER_FORM.parse(text.encode())
    shown = f"{caught.value.reason} {caught.value.hint} {caught.value!r}"
    assert why in shown
    assert "canary" not in shown


def test_nothing_shows_a_secret() -> None:
    assert CANARY not in f"{Credentials('a', CANARY)!r} {Credentials('a', CANARY)}"
    assert json.loads(INNER_FORM.example)["secretKey"] == "8 characters or more"
