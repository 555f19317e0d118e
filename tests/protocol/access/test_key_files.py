"""Files of CURVE keys: czmq's form, what is refused, and that nothing shows a secret."""

from pathlib import Path

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.key_files import (
    BadKey,
    KeyPair,
    check_key,
    check_secret_file,
    key_file,
    parse_pair,
    parse_public,
)

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())


def test_a_pair_comes_back_as_it_was_written_and_pyzmq_reads_it(tmp_path: Path) -> None:
    both, one = tmp_path / "a.key_secret", tmp_path / "a.key"
    both.write_bytes(key_file(PUBLIC, SECRET))
    one.write_bytes(key_file(PUBLIC))
    assert parse_pair(both.read_bytes(), "a") == (PUBLIC, SECRET)
    assert parse_public(one.read_bytes(), "a") == parse_public(both.read_bytes(), "a") == PUBLIC
    assert zmq.auth.load_certificate(both) == (PUBLIC.encode(), SECRET.encode())
    assert zmq.auth.load_certificate(one) == (PUBLIC.encode(), None)
    assert SECRET not in one.read_text()


def test_files_that_pyzmq_wrote_are_read(tmp_path: Path) -> None:
    public, secret = zmq.auth.create_certificates(tmp_path, "b")
    keys = parse_pair(Path(secret).read_bytes(), "b")
    assert zmq.auth.load_certificate(secret) == tuple(key.encode() for key in keys)
    assert parse_public(Path(public).read_bytes(), "b") == keys.public


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_keys_or_one_error(data: bytes) -> None:
    for parse in (parse_public, parse_pair):
        with pytest.raises(BadKey, match="the file"):
            parse(data, "the file")


@pytest.mark.parametrize(
    "wrong",
    ["", PUBLIC[1:], PUBLIC + "0", "~" * 40, "#" * 40, " " * 40],
    ids=["empty", "short", "long", "no letters", "too large", "blank"],
)
def test_a_key_has_forty_characters_of_numbers_that_fit(wrong: str) -> None:
    with pytest.raises(BadKey, match="this one is not a key"):
        check_key(wrong, "this one")
    assert check_key(PUBLIC, "this one") == PUBLIC


def test_no_text_and_no_error_shows_a_secret() -> None:
    assert SECRET not in f"{KeyPair(PUBLIC, SECRET)} {KeyPair(PUBLIC, SECRET)!r}"
    with pytest.raises(BadKey) as found:
        parse_pair(key_file(PUBLIC, SECRET + "0"), "a")
    assert SECRET not in f"{found.value!r} {found.value.hint}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o644, 0o666])
def test_a_secret_that_others_may_use_is_refused_with_the_command_that_closes_it(mode: int) -> None:
    with pytest.raises(BadKey, match="open to other users") as found:
        check_secret_file(mode, 7, 7, "/k")
    assert found.value.hint == "chmod 600 /k"
    check_secret_file(0o600, 7, 7, "/k")
    check_secret_file(0o400, 0, 7, "/k")


@pytest.mark.parametrize("user", [0, 7])
def test_a_secret_of_another_user_is_refused(user: int) -> None:
    with pytest.raises(BadKey, match="belongs to another user"):
        check_secret_file(0o600, 8, user, "/k")
