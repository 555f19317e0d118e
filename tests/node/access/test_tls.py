"""OpenSSL's contexts: who gets through a handshake, and what happens when files change."""

import logging
import ssl
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from node.access import tls
from node.access.tls import ClientTls, ServerTls, client_context, server_context
from node.access.tls_settings import ClientAuth, TlsRefused, load_tls
from node.runtime.event_log import note_hangup
from node.runtime.settings import load_settings
from tests.support.certificates import PASSED, Authority, Pair, shake_hands

DAY_MS = 86_400_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


def port(pair: Pair, *settings: str, auth: ClientAuth | None = None) -> ssl.SSLContext:
    """The context of a port."""
    return server_context(load_tls(load_settings([*pair.server, *settings])), auth)


def client(*settings: str) -> ssl.SSLContext:
    """That of a connection which the node makes."""
    return client_context(load_tls(load_settings(["tls_enable=true", *settings])))


def test_a_client_that_trusts_the_authority_gets_through(authority: Authority, pair: Pair) -> None:
    ours, theirs = shake_hands(port(pair), authority.client())
    assert ours.version() == theirs.version() == "TLSv1.3"
    older = port(pair, "tls_protocols=TLSv1.2")
    assert shake_hands(older, authority.client())[0].version() == "TLSv1.2"


@pytest.mark.attack(50)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_older_versions_of_tls_are_refused(
    authority: Authority, pair: Pair, version: ssl.TLSVersion
) -> None:
    old = authority.client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = version
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        shake_hands(port(pair), old)


@pytest.mark.attack(50)
def test_there_is_no_renegotiation_no_compression_and_no_ticket(pair: Pair) -> None:
    context = port(pair)
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_TICKET):
        assert context.options & option
    assert context.num_tickets == 0


Show = Callable[[Authority, Authority], Pair | None]
SHOWN: dict[str, tuple[Show, bool]] = {
    "its own": (lambda ours, other: ours.pair("client", "c"), True),
    "none": (lambda ours, other: None, False),
    "of another authority": (lambda ours, other: other.pair("client", "c"), False),
    "one that has ended": (lambda ours, other: ours.pair("client", "c", ends=PASSED), False),
}


@pytest.mark.attack(51)
@pytest.mark.parametrize("shown", SHOWN)
def test_who_must_show_a_certificate_shows_one_of_the_authority(
    authority: Authority, pair: Pair, tmp_path: Path, shown: str
) -> None:
    (tmp_path / "other").mkdir()
    show, is_good = SHOWN[shown]
    shows = show(authority, Authority(tmp_path / "other", "stranger"))
    # RocketMQ would take any with authClient=false; here that changes nothing.
    asks = port(
        pair,
        "tls_server_need_client_auth=require",
        f"tls_server_trust_cert_path={authority.trust}",
    )
    if is_good:
        ours, _ = shake_hands(asks, authority.client(shows))
        assert ours.getpeercert()
    else:
        with pytest.raises(ssl.SSLError):
            shake_hands(asks, authority.client(shows))
    if shown == "none":  # who is not asked needs none, and where it is optional neither
        trust = f"tls_server_trust_cert_path={authority.trust}"
        shake_hands(port(pair, trust), authority.client())
        shake_hands(port(pair, trust, "tls_server_need_client_auth=optional"), authority.client())
    elif not is_good:  # one that comes is verified
        with pytest.raises(ssl.SSLError):
            shake_hands(
                port(
                    pair,
                    f"tls_server_trust_cert_path={authority.trust}",
                    "tls_server_need_client_auth=optional",
                ),
                authority.client(shows),
            )


def test_a_certificate_that_a_list_of_revoked_ones_names_is_refused_and_no_other(
    authority: Authority, pair: Pair
) -> None:
    gone, stays = authority.pair("gone"), authority.pair("stays")
    authority.revoke(gone)
    ours = port(pair, f"tls_server_trust_cert_path={authority.trust}", auth=ClientAuth.REQUIRE)
    shake_hands(ours, authority.client(stays))
    with pytest.raises(ssl.SSLError, match="certificate revoked"):
        shake_hands(ours, authority.client(gone))


def test_it_is_counted_when_others_are_trusted_and_not_when_the_pair_is_a_new_one(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    trust = f"tls_server_trust_cert_path={authority.trust}"
    server = ServerTls(load_settings([*pair.server, trust]))
    authority.pair("server")
    note_hangup()
    server.look(0.0)
    assert server.trust_changes == 0
    authority.revoke(authority.pair("gone"))
    note_hangup()
    server.look(0.0)
    assert server.trust_changes == 1
    authority.trust.write_text("nobody")
    note_hangup()
    server.look(0.0)
    assert (server.trust_changes, bool(server.trouble)) == (1, True)


def test_the_node_verifies_where_it_connects(authority: Authority, tmp_path: Path) -> None:
    server, trust = authority.pair("s", "10.0.0.1"), f"tls_client_trust_cert_path={authority.trust}"
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger").pair("s", "10.0.0.1")
    shake_hands(port(server), client(trust), "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(port(server), client(trust), "10.0.0.2")
    shake_hands(port(server), client(trust, "tls_client_check_host=false"), "10.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(port(stranger), client(trust, "tls_client_check_host=false"), "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(port(server), client(), "10.0.0.1")  # whom the system trusts
    shake_hands(port(stranger), client("tls_client_auth_server=false"), "10.0.0.9")


def test_the_node_shows_its_certificate(authority: Authority, pair: Pair) -> None:
    trust = f"tls_client_trust_cert_path={authority.trust}"
    asks = port(pair, f"tls_server_trust_cert_path={authority.trust}", auth=ClientAuth.REQUIRE)
    ours, _ = shake_hands(asks, client(trust, *authority.pair("own", "replica").client))
    assert ours.getpeercert()
    with pytest.raises(ssl.SSLError):
        shake_hands(asks, client(trust))


def encrypted(pair: Pair, password: bytes) -> None:
    """The key gets a password, in the form that RocketMQ asks for (PKCS#8)."""
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(password)
        )
    )


def test_a_key_with_a_password_has_it_in_a_file(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    encrypted(pair, b"canary")
    with pytest.raises(TlsRefused, match="it is not said"):
        port(pair)
    file = tmp_path / "password"
    file.touch(0o600)
    named = f"tls_server_key_password_file={file}"
    file.write_text("wrong\n")
    with pytest.raises(TlsRefused, match="it is another"):
        port(pair, named)
    file.write_text("canary\n")
    shake_hands(port(pair, named), authority.client())
    file.chmod(0o644)
    with pytest.raises(TlsRefused, match="0644"):
        port(pair, named)


@pytest.mark.attack(54)
def test_files_that_are_no_pair_are_refused_by_name(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    other = authority.pair("other")
    with pytest.raises(TlsRefused, match=r"other\.key does not fit .*server\.crt"):
        port(Pair(pair.cert, other.key))
    with pytest.raises(TlsRefused, match="tls_server_cert_path"):
        port(Pair(tmp_path / "none.crt", pair.key))
    pair.key.chmod(0o644)
    with pytest.raises(TlsRefused, match="0644"):
        port(pair)
    pair.key.chmod(0o600)
    pair.key.write_text("no key")
    with pytest.raises(TlsRefused, match="no key and certificate can be read"):
        port(pair)
    with pytest.raises(TlsRefused, match="holds no certificates"):
        client(f"tls_client_trust_cert_path={pair.key}")


def test_rocketmqs_names_of_ciphers_are_known(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    file = tmp_path / "tls.properties"
    wanted = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    file.write_text(f"tls.protocols=TLSv1.2\ntls.ciphers={wanted},TLS_AES_128_GCM_SHA256\n")
    ours, _ = shake_hands(port(pair, f"tls_config_file={file}"), authority.client())
    cipher = ours.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    file.write_text("tls.ciphers=TLS_RSA_WITH_ROT13\n")
    with pytest.raises(TlsRefused, match="ROT13"):
        port(pair, f"tls_config_file={file}")


def serial(context: ssl.SSLContext, authority: Authority) -> object:
    """The number of the certificate that a new connection gets."""
    _, theirs = shake_hands(context, authority.client())
    certificate = theirs.getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


@pytest.mark.attack(53)
def test_a_pair_that_is_swapped_file_by_file_is_used_when_it_fits_and_never_before(
    authority: Authority, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keelog.tls")
    server = ServerTls(load_settings(pair.server))
    old = serial(server.context, authority)
    living, client_end = shake_hands(server.context, authority.client())
    (tmp_path / "new").mkdir()
    new = authority.pair("new", *("127.0.0.1", "localhost"))
    now = 100.0
    server.look(now)
    new.key.rename(pair.key)
    server.look(now + tls.LOOK_S - 1)
    assert server.trouble == ""  # it is not time yet
    for step in range(1, 4):
        server.look(now + step * tls.LOOK_S)
        assert "does not fit" in server.trouble
        assert serial(server.context, authority) == old
    new.cert.rename(pair.cert)
    server.look(now + 5 * tls.LOOK_S)
    assert server.trouble == ""
    assert serial(server.context, authority) != old
    words = [one.getMessage() for one in caplog.records]
    assert words == [
        "new files of TLS are not used, the old ones stay",
        "new files of TLS are in use",
    ]
    # What is connected stays so.
    assert living.write(b"still here") == 10
    assert client_end is not None


def test_after_a_hangup_the_files_are_looked_at_at_once(authority: Authority, pair: Pair) -> None:
    server = ServerTls(load_settings(pair.server))
    server.look(100.0)
    old = serial(server.context, authority)
    authority.pair("server")
    server.look(100.1)
    assert serial(server.context, authority) == old
    note_hangup()
    server.look(100.2)
    assert serial(server.context, authority) != old


@pytest.mark.parametrize("harm", ["missing", "open to others", "cut off"])
def test_files_that_become_bad_leave_the_node_its_certificate(
    authority: Authority, pair: Pair, harm: str
) -> None:
    server = ServerTls(load_settings(pair.server))
    if harm == "missing":
        pair.cert.unlink()
    elif harm == "open to others":
        pair.key.chmod(0o644)
    else:
        pair.cert.write_bytes(pair.cert.read_bytes()[:100])
    server.look(100.0)
    assert server.trouble
    assert server.state().trouble == server.trouble
    shake_hands(server.context, authority.client())
    if harm == "open to others":
        pair.key.chmod(0o600)
        server.look(100.0 + tls.LOOK_S)
        assert server.trouble == ""


def test_a_node_says_how_long_its_certificate_lasts(authority: Authority, pair: Pair) -> None:
    server = ServerTls(load_settings(pair.server))
    assert server.days_left > 365
    ended = authority.pair("ended", ends=PASSED)
    server = ServerTls(load_settings(ended.server))
    assert server.ends_ms == int(PASSED.timestamp() * 1000)
    assert server.days_left < 0
    assert server.left_ms == pytest.approx(server.ends_ms - time.time() * 1000, abs=60_000)


def test_a_connection_that_is_made_uses_the_files_of_its_time(
    authority: Authority, tmp_path: Path
) -> None:
    copy = tmp_path / "trusted.pem"
    copy.write_bytes(authority.trust.read_bytes())
    own = ClientTls(load_settings(["tls_enable=true", f"tls_client_trust_cert_path={copy}"]))
    first = own.context()
    assert own.context() is first
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    copy.write_bytes(stranger.trust.read_bytes())
    shake_hands(port(stranger.pair("s")), own.context())
    copy.unlink()
    with pytest.raises(TlsRefused, match="tls_client_trust_cert_path"):
        own.context()
