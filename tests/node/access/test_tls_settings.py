"""TLS as settings and RocketMQ's `tls.properties` ask for it: what holds, and what is refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from node.access.tls_settings import (
    FILE_BYTES_MAX,
    ClientAuth,
    TlsMode,
    TlsRefused,
    check_secret,
    client_tls,
    load_tls,
    read_tls_file,
    server_tls,
)
from node.runtime.settings import Settings, load_settings
from protocol.errors import BadRequest
from tests.support.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


def test_without_a_certificate_a_node_has_no_tls_and_loads_none() -> None:
    assert load_tls(Settings()).mode is TlsMode.DISABLED
    assert server_tls(Settings()) is None
    assert client_tls(Settings()) is None


def test_with_a_certificate_plain_connections_are_refused_unless_permissive_is_said(
    pair: Pair,
) -> None:
    assert load_tls(load_settings(pair.server)).mode is TlsMode.ENFORCING
    for mode in TlsMode:
        said = load_settings([*pair.server, f"tls_server_mode={mode}"])
        assert load_tls(said).mode is mode
        assert (server_tls(said) is None) == (mode is TlsMode.DISABLED)


def test_the_file_of_rocketmq_is_read_as_it_is(tmp_path: Path, pair: Pair) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "# as a broker has it\n"
        "tls.test.mode.enable=false\n"
        "tls.server.need.client.auth=require\n"
        f"tls.server.keyPath={pair.key}\n"
        "tls.server.keyPassword=canary\n"
        f"tls.server.certPath: {pair.cert}\n"
        "tls.server.authClient=false\n"
        f"tls.server.trustCertPath={pair.cert}\n"
        f"tls.client.keyPath={pair.key}\n"
        "tls.client.keyPassword=other\n"
        f"tls.client.certPath={pair.cert}\n"
        "tls.client.authServer=false\n"
        f"tls.client.trustCertPath={pair.cert}\n"
        "tls.protocols=TLSv1.3\n"
        "tls.ciphers=TLS_AES_128_GCM_SHA256\n"
    )
    file.chmod(0o600)
    found = load_tls(load_settings([f"tls_config_file={file}", "tls_server_cert_path=/other"]))
    merged = found.settings
    assert (found.mode, found.client_auth) == (TlsMode.ENFORCING, ClientAuth.REQUIRE)
    assert (merged.tls_server_key_path, merged.tls_server_cert_path) == (
        str(pair.key),
        str(pair.cert),
    )
    assert (found.server_password, found.client_password) == ("canary", "other")
    assert not merged.tls_client_auth_server
    assert merged.tls_protocols == "TLSv1.3"
    assert set(found.paths) == {str(file), str(pair.key), str(pair.cert)}
    assert "canary" not in repr(found)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tls.test.mode.enable=true", "no test mode"),
        ("tls.server.mode=enforcing", "-X tls_server_mode=enforcing"),
        ("tls.enable=true", "-X tls_enable=true"),
        ("tls.server.keypath=/k", "unknown line"),
        ("tls.protocols=TLSv1.1,TLSv1.2", "use TLSv1.2, TLSv1.3"),
        ("tls.server.need.client.auth=always", "none, optional, require"),
        ("tls.server.keyPath=server.key", "the whole path"),
        ("tls.server.keyPath=/k", "go together"),
        ("tls.client.certPath=/c", "go together"),
        ("tls.client.authServer=perhaps", "true or false"),
        ("tls.server.need.client.auth=require", "tls_server_trust_cert_path"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(line + "\n")
    # Not BadRequest, after which a process would not be started again when the file is mended.
    with pytest.raises(TlsRefused) as refused:
        load_tls(load_settings([f"tls_config_file={file}"]))
    assert why in f"{refused.value.reason} {refused.value.hint}"


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_mode_with_tls_needs_a_certificate(mode: str) -> None:
    with pytest.raises(BadRequest, match="no certificate"):
        load_tls(load_settings([f"tls_server_mode={mode}"]))


@pytest.mark.parametrize(
    "setting",
    ["tls_server_mode=on", "tls_server_mode=disabled,enforcing", "tls_server_cert_path=a.pem"],
)
def test_a_word_that_is_none_is_refused_with_those_that_are(setting: str) -> None:
    with pytest.raises(BadRequest):
        load_settings([setting])


@pytest.mark.attack(54)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620, 0o601])
def test_a_key_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    key = tmp_path / "key"
    key.touch()
    key.chmod(mode)
    if mode == 0o640 and os.geteuid() == 0:
        check_secret(str(key), "k")  # of root, whose group may read it
        return
    with pytest.raises(TlsRefused, match=f"its mode is {mode:04o}"):
        check_secret(str(key), "k")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_for_its_owner_alone_is_taken_also_behind_a_link(tmp_path: Path, mode: int) -> None:
    key, link = tmp_path / "key", tmp_path / "link"
    key.touch()
    key.chmod(mode)
    link.symlink_to(key)
    check_secret(str(link), "k")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    os.chown(key, 12345, 12345)
    with pytest.raises(TlsRefused, match="12345"):
        check_secret(str(key), "k")


def test_a_file_with_a_password_is_a_secret_too(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.keyPassword=canary\n")
    file.chmod(0o644)
    with pytest.raises(TlsRefused) as refused:
        load_tls(load_settings([f"tls_config_file={file}"]))
    assert "canary" not in str(refused.value)
    file.chmod(0o600)
    assert load_tls(load_settings([f"tls_config_file={file}"])).client_password == "canary"


def test_a_file_that_is_missing_or_too_long_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(TlsRefused, match=re.escape(f"s: {tmp_path}/none: No such file")):
        read_tls_file(f"{tmp_path}/none", "s")
    with pytest.raises(TlsRefused, match="Is a directory"):
        read_tls_file(str(tmp_path), "s")
    with pytest.raises(TlsRefused, match="no file"):
        check_secret(str(tmp_path), "s")
    long = tmp_path / "long"
    long.write_bytes(bytes(FILE_BYTES_MAX + 1))
    with pytest.raises(TlsRefused, match=str(FILE_BYTES_MAX)):
        read_tls_file(str(long), "s")


def test_processes_without_tls_load_no_openssl() -> None:
    """It would cost each of them 50 ms of its start."""
    modules = (
        "keelog.replication.followers.loop",
        "keelog.replication.replica.loop",
        "keelog.replication.keeper.loop",
        "node.supervisor.loop",
    )
    script = f"import sys, {', '.join(modules)}; assert 'ssl' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
