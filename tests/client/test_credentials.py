"""The credentials of a program's consumers: the file of the password, and what is signed."""

import os
from pathlib import Path

import pytest

import keelog
from keelog.client.consumer.options import consumer_settings
from keelog.client.consumer.remoting_exchange import RemotingExchange
from keelog.client.credentials import credentials_of
from protocol.access.signature import is_signed
from protocol.errors import BadRequest
from protocol.remoting.frame_reader import FrameReader
from protocol.remoting.headers import RemotingHeader

CANARY = "canary-secret"


def secret_file(folder: Path, text: str = f"{CANARY}\nmore\n", mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", [CANARY, f"{CANARY}\n", f"{CANARY}\r\n", f"{CANARY}\nmore\n"])
def test_the_first_line_of_the_file_is_the_password(tmp_path: Path, text: str) -> None:
    found = credentials_of("billing", secret_file(tmp_path, text))
    assert found == keelog.Credentials("billing", CANARY)
    assert CANARY not in repr(found)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadRequest, match=f"with mode {mode:04o}") as caught:
        keelog.credentials_of("billing", secret_file(tmp_path, mode=mode))
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("kind", ["none", "folder", "empty", "blank", "pipe"])
def test_a_file_without_a_password_is_refused_and_nobody_waits(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    match kind:
        case "folder":
            path.mkdir(0o700)
        case "empty" | "blank":
            path.touch(0o600)
            path.write_text("" if kind == "empty" else f"  \n{CANARY}\n")
        case "pipe":
            os.mkfifo(path, 0o600)
    with pytest.raises(BadRequest, match="the secret file") as caught:
        credentials_of("billing", path)
    assert CANARY not in caught.value.reason


def sent(exchange: RemotingExchange) -> list[tuple[RemotingHeader, bytes]]:
    reader = FrameReader()
    reader.room()[: len(exchange.unsent)] = exchange.unsent
    return [(header, bytes(body)) for header, body in reader.received(len(exchange.unsent))]


def test_each_request_is_signed_whether_it_gets_an_answer_or_not() -> None:
    exchange = RemotingExchange(keelog.Credentials("billing", CANARY))
    exchange.ask(11, {"topic": "orders"}, 1.0, lambda *_: None)
    exchange.notify(15, {"consumerGroup": "g"}, b"body")
    for header, body in sent(exchange):
        assert header.ext["AccessKey"] == "billing"
        assert is_signed(CANARY, header.ext, body, header.version)


def test_without_credentials_nothing_is_added() -> None:
    exchange = RemotingExchange()
    exchange.ask(11, {"topic": "orders"}, 1.0, lambda *_: None)
    ((header, _),) = sent(exchange)
    assert header.ext == {"topic": "orders"}


def test_no_settings_of_a_consumer_show_a_secret() -> None:
    settings = consumer_settings(
        "g", "t", {"credentials": keelog.Credentials("billing", CANARY)}, 1
    )
    assert settings.credentials is not None
    assert CANARY not in repr(settings)
