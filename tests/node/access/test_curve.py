"""The key files of a node: their modes, what is refused, and that nothing is replaced."""

import os
import stat
from pathlib import Path

import pytest

from node.access import curve
from node.access.users_file import auth_dir
from protocol.access.key_files import BadKey, key_file, parse_public
from protocol.errors import RefusedError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_keys_are_made_once_the_secret_closed_and_the_public_one_open(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert curve.server_keys(tmp_path) is None
        keys = curve.make_server_keys(tmp_path)
        folder = auth_dir(tmp_path)
        assert (mode(folder), mode(folder / "server.key_secret")) == (0o700, 0o600)
        assert mode(folder / "server.key") == 0o644
        assert parse_public((folder / "server.key").read_bytes(), "") == keys.public
        (folder / "server.key").unlink()  # as after a crash between the two
        assert curve.make_server_keys(tmp_path) == curve.server_keys(tmp_path) == keys
        assert (folder / "server.key").exists()
    finally:
        os.umask(before)


@pytest.mark.parametrize("suffix", [".key_secret", ".key"])
def test_a_pair_replaces_no_file(tmp_path: Path, suffix: str) -> None:
    place = tmp_path / f"me{suffix}"
    place.symlink_to("/nowhere")
    with pytest.raises(RefusedError, match="is there already"):
        curve.write_pair(tmp_path, "me")
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    keys = curve.write_pair(tmp_path, "you")
    assert curve.read_pair(tmp_path / "you.key_secret") == keys
    assert (mode(tmp_path / "you.key_secret"), mode(tmp_path / "you.key")) == (0o600, 0o644)


def test_a_node_does_not_start_with_a_secret_that_is_none(tmp_path: Path) -> None:
    keys = curve.make_server_keys(tmp_path)
    path = auth_dir(tmp_path) / "server.key_secret"
    path.chmod(0o640)
    with pytest.raises(BadKey, match="0640"):
        curve.server_keys(tmp_path)
    path.chmod(0o600)
    assert curve.server_keys(tmp_path) == keys
    path.write_bytes(key_file(curve.new_pair().public, keys.secret))
    with pytest.raises(BadKey, match="are not a pair"):
        curve.server_keys(tmp_path)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    with pytest.raises(BadKey, match="is a link"):
        curve.server_keys(tmp_path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(BadKey, match="is not a file"):
        curve.server_keys(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    curve.make_server_keys(tmp_path)
    os.chown(auth_dir(tmp_path) / "server.key_secret", 65534, 65534)
    with pytest.raises(BadKey, match="belongs to another user"):
        curve.server_keys(tmp_path)
