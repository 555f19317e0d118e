"""`keelog key`: files of keys, what is printed, and contexts that name them."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from keelog.cli import contexts
from keelog.cli.contexts import load, path_of
from keelog.cli.main import run
from node.access.curve import new_pair, read_pair, server_keys
from protocol.names import KEELOG_DIR


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_store_gets_keys_once_and_shows_the_public_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert run(["key", "show", str(store)]) == 3
    made = printed(capsys, "key", "init", str(store))
    keys = server_keys(store)
    assert keys is not None
    assert made == {
        "public_key": keys.public,
        "file": str(store / KEELOG_DIR / "auth" / "server.key"),
    }
    assert printed(capsys, "key", "init", str(store)) == made
    assert printed(capsys, "key", "show", str(store)) == made


def test_a_new_pair_is_two_files_and_no_secret_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["key", "new", "billing"]) == 0
    said = capsys.readouterr()
    keys = read_pair(tmp_path / "billing.key_secret")
    assert keys.secret not in said.out + said.err
    assert keys.public in said.out
    modes = [
        stat.S_IMODE((tmp_path / name).stat().st_mode)
        for name in ("billing.key", "billing.key_secret")
    ]
    assert [oct(mode) for mode in modes] == ["0o644", "0o600"]
    assert run(["key", "new", "billing"]) == 1
    assert run(["key", "new", "../billing"]) == 2
    assert "there already" in capsys.readouterr().err


def test_a_context_names_the_files_and_commands_come_with_these_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(["key", "new", "me"]) == 0
    server = new_pair().public
    words = ["context", "add", "prod", "--node", "tcp://db7:1", "--use"]
    assert run([*words, "--key", "me.key_secret"]) == 2
    assert run([*words, "--key", "me.key", "--server-key", server]) == 1
    assert run([*words, "--key", "me.key_secret", "--server-key", server]) == 0
    path = path_of(os.environ)
    assert path is not None
    found = load(path).named["prod"]
    assert (found.key, found.server_key) == (str(tmp_path / "me.key_secret"), server)
    assert read_pair(tmp_path / "me.key_secret").secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    came: list[tuple[str, str | None, str | None]] = []

    def connect(node: str, _timeout: float | None, key: str | None, server_key: str | None) -> None:
        came.append((node, key, server_key))
        raise ConnectionRefusedError

    monkeypatch.setattr("keelog.connect", connect)
    assert run(["status"]) == run(["-c", "prod", "topic", "ls"]) == 1
    assert run(["status", "--node", "tcp://db7:1"]) == 1
    assert came == [("tcp://db7:1", found.key, server)] * 2 + [("tcp://db7:1", None, None)]


def test_a_store_directory_in_the_place_of_an_address_is_its_local_socket(tmp_path: Path) -> None:
    (tmp_path / KEELOG_DIR / "run").mkdir(parents=True)
    control = tmp_path / KEELOG_DIR / "run" / "control"
    where = contexts.resolve
    control.write_text("ipc://@keelog-1")
    assert where(f"{tmp_path}/", None, {}, contexts.Contexts).url == "ipc://@keelog-1"
    control.write_text("tcp://10.0.0.7:1")
    assert run(["status", "--node", f"{tmp_path}/"]) == 3
