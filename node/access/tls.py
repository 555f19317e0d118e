"""OpenSSL's contexts for a node: for its ports, and for connections that it makes.

TLS 1.2 and later, no renegotiation, no compression, no tickets. Files are looked at again and
again: new ones count for new connections. Files that do not fit each other, as while a key is
already new and its certificate is not, are never used: what was in use before stays.
"""

import logging
import os
import ssl
import time
from collections.abc import Mapping
from errno import EAGAIN
from typing import TYPE_CHECKING, Any

from node.access.tls_settings import (
    ClientAuth,
    TlsConfig,
    TlsRefused,
    TlsState,
    check_secret,
    load_tls,
    password_of,
    read_tls_file,
)
from node.runtime.event_log import fields, hangups_heard
from node.runtime.settings import Settings
from protocol.access.certificates import valid_until_ms
from protocol.errors import MqError, RefusedError

if TYPE_CHECKING:
    import socket

log = logging.getLogger("keelog.tls")

LOOK_S = 5.0
"""Between two looks at the files; after a SIGHUP the next look is at once."""
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}
_REVOKED = b"-----BEGIN X509 CRL-----"
_Stamps = Mapping[str, tuple[int, ...] | None]


class TlsSocket(ssl.SSLSocket):
    """As any other socket that does not block: BlockingIOError when nothing can be read or written
    now. OpenSSL keeps what it has begun: a `send` that raised has to be repeated with the same
    bytes, which may have become more."""

    def send(self, data: Any, flags: int = 0) -> int:
        """Takes no flags but MSG_MORE, which says nothing here."""
        try:
            return super().send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(EAGAIN, os.strerror(EAGAIN)) from None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """At most one record of TLS, of which nothing stays in OpenSSL if `buflen` is 16 KiB or
        more: then the next bytes make the descriptor readable."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(EAGAIN, os.strerror(EAGAIN)) from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """As `recv`."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(EAGAIN, os.strerror(EAGAIN)) from None


class ServerTls:
    """The context of a port. For one thread, but `context` may be taken by any."""

    def __init__(self, settings: Settings, client_auth: ClientAuth | None = None) -> None:
        """`client_auth` None: as RocketMQ's clients are asked. Raises TlsRefused and BadRequest."""
        self._settings = settings
        self._client_auth = client_auth
        config, self._stamps = _read(settings)
        self.mode = config.mode
        self._hangups = hangups_heard()
        self._look_at = 0.0
        self.trouble = ""
        """Why the files that are there now are not used; empty while they are."""
        self.context = server_context(config, client_auth)
        """For the next connection."""
        self.ends_ms = _end_of_certificate(config)
        """When the certificate ends, in ms since 1970."""
        self._trust = _trust_file(config)
        self.trust_changes = 0
        """How often it changed whose certificates are trusted: who came by one that was trusted
        before may be trusted no more."""

    def look(self, now: float) -> None:
        """Takes files that have changed, if it is time to look; `now` in seconds. Never raises for
        what they hold: the old ones stay in use, and a line of the log says so once."""
        hangups = hangups_heard()
        if now < self._look_at and hangups == self._hangups:
            return
        self._look_at, self._hangups = now + LOOK_S, hangups
        stamps = {path: _stamp(path) for path in self._stamps}
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            config, self._stamps = _read(self._settings)  # it may name other files by now
            context, ends_ms, trust = (
                server_context(config, self._client_auth),
                _end_of_certificate(config),
                _trust_file(config),
            )
        except MqError as error:
            if error.reason != self.trouble:
                self.trouble = error.reason
                details = fields(why=error.reason, hint=error.hint)
                log.warning("new files of TLS are not used, the old ones stay", extra=details)
            return
        self.context, self.ends_ms, self.trouble = context, ends_ms, ""
        self.trust_changes += trust != self._trust
        self._trust = trust
        log.info("new files of TLS are in use", extra=fields(days_left=self.days_left))

    @property
    def asks_all(self) -> bool:
        """Whether nobody comes by TLS without a certificate."""
        return self.context.verify_mode == ssl.CERT_REQUIRED

    @property
    def days_left(self) -> int:
        """Whole days until the certificate ends; negative afterwards."""
        return self.left_ms // 86_400_000

    @property
    def left_ms(self) -> int:
        """Until the certificate ends."""
        return self.ends_ms - time.time_ns() // 1_000_000

    def state(self) -> TlsState:
        """For status, health and metrics."""
        return TlsState(self.mode, self.left_ms, self.trouble)

    def wrap(self, connected: "socket.socket") -> TlsSocket:
        """A connection whose handshake is still to be done. It owns the descriptor from now on.
        Raises OSError."""
        made = self.context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
        assert isinstance(made, TlsSocket)
        return made


class ClientTls:
    """For connections that this node makes, in any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises TlsRefused and BadRequest."""
        self._settings = settings
        config, stamps = _read(settings)
        self._made = stamps, client_context(config)
        self.verifies = config.settings.tls_client_auth_server
        """Whether the other end is known to be who it says it is."""
        if not self.verifies:
            log.warning("servers are not verified: anybody may stand in the way")

    def context(self) -> ssl.SSLContext:
        """Of the files as they are now. Raises TlsRefused, BadRequest."""
        stamps, context = self._made
        if {path: _stamp(path) for path in stamps} != stamps:
            config, stamps = _read(self._settings)
            context = client_context(config)
            self._made = stamps, context
        return context

    def wrap(self, connected: "socket.socket", host: str) -> TlsSocket:
        """Does the handshake on a connection to a host, within the socket's timeout. The result
        owns the descriptor, which is closed after an error. Raises OSError."""
        try:
            made = self.context().wrap_socket(connected, server_hostname=host)
        except MqError as error:
            connected.close()
            raise OSError(None, error.reason) from None
        except OSError:
            connected.close()
            raise
        assert isinstance(made, TlsSocket)
        return made


def speaks_tls(connected: "socket.socket") -> bool:
    """Whether TLS is spoken at the other end, whoever that is. Nothing else may be sent on this
    connection; a descriptor that TLS took is closed. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(connected).close()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return False
    except ssl.SSLError as error:
        return error.reason != "WRONG_VERSION_NUMBER"  # a refusal is a word of TLS, too
    return True


def server_context(config: TlsConfig, client_auth: ClientAuth | None = None) -> ssl.SSLContext:
    """Raises TlsRefused."""
    context, settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config.settings
    _limit(context, config)
    password = password_of(
        settings.tls_server_key_password_file,
        config.server_password,
        "tls_server_key_password_file",
    )
    _load_pair(
        context, settings.tls_server_cert_path, settings.tls_server_key_path, password, "server"
    )
    if settings.tls_server_trust_cert_path:
        _trust(context, settings.tls_server_trust_cert_path, "tls_server_trust_cert_path")
    context.verify_mode = _VERIFY[config.client_auth if client_auth is None else client_auth]
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Raises TlsRefused."""
    context, settings = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config.settings
    _limit(context, config)
    context.check_hostname = settings.tls_client_auth_server and settings.tls_client_check_host
    if not settings.tls_client_auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif settings.tls_client_trust_cert_path:
        _trust(context, settings.tls_client_trust_cert_path, "tls_client_trust_cert_path")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if settings.tls_client_cert_path:
        password = password_of(
            settings.tls_client_key_password_file,
            config.client_password,
            "tls_client_key_password_file",
        )
        _load_pair(
            context, settings.tls_client_cert_path, settings.tls_client_key_path, password, "client"
        )
    return context


def _limit(context: ssl.SSLContext, config: TlsConfig) -> None:
    versions = {one.strip() for one in config.settings.tls_protocols.split(",")}
    allowed = [_VERSIONS[one] for one in sorted(versions)]
    context.minimum_version, context.maximum_version = allowed[0], allowed[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.sslsocket_class = TlsSocket
    if context.protocol == ssl.PROTOCOL_TLS_SERVER:
        # A connection lives for hours: a ticket would save nothing, and would outlive its files.
        context.num_tickets = 0
    if not config.ciphers:
        return
    named = {one.strip() for one in config.ciphers.split(",")}
    # Those of TLS 1.3, without `_WITH_`, OpenSSL has always.
    older = [_openssl_name(one) for one in named if "_WITH_" in one or "TLS_" not in one]
    try:
        if older:
            context.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise TlsRefused(
            f"tls.ciphers names none that OpenSSL has: {config.ciphers[:200]!a}",
            "leave the line out: OpenSSL takes good ones",
        ) from None


def _openssl_name(name: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256 there."""
    keys, has_with, cipher = name.strip().removeprefix("TLS_").partition("_WITH_")
    if not has_with:
        return name.strip()
    cipher = cipher.replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    return f"{keys}-{cipher}".replace("_CBC", "").replace("_", "-").removeprefix("RSA-")


def _load_pair(context: ssl.SSLContext, cert: str, key: str, password: str, side: str) -> None:
    """Raises TlsRefused for files that are missing, open to others, or of two pairs."""
    key_setting, cert_setting = f"tls_{side}_key_path", f"tls_{side}_cert_path"
    check_secret(key, key_setting)
    read_tls_file(key, key_setting)
    read_tls_file(cert, cert_setting)
    asked = []

    def answer() -> str:
        # Without a function OpenSSL would ask at the terminal.
        asked.append(True)
        return password

    try:
        context.load_cert_chain(cert, key, answer)
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            why, hint = f"the key {key} does not fit the certificate {cert}", "replace both"
        elif asked:
            why = f"the key {key} has a password, and it is {'another' if password else 'not said'}"
            hint = f"write it to the file that tls_{side}_key_password_file names"
        else:
            why = f"no key and certificate can be read from {key} and {cert}: {_words(error)}"
            hint = f"{key_setting} and {cert_setting} are PEM"
        raise TlsRefused(why, hint) from None


def _trust(context: ssl.SSLContext, path: str, setting_name: str) -> None:
    """A list of revoked certificates in the file counts, and then each authority needs one."""
    if _REVOKED in read_tls_file(path, setting_name):
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsRefused(
            f"{setting_name}: {path} holds no certificates: {_words(error)}", "it is PEM"
        ) from None


def _trust_file(config: TlsConfig) -> bytes:
    """What says whose certificates are trusted."""
    path = config.settings.tls_server_trust_cert_path
    return read_tls_file(path, "tls_server_trust_cert_path") if path else b""


def _words(error: Exception) -> str:
    return getattr(error, "reason", "") or str(error)


def _end_of_certificate(config: TlsConfig) -> int:
    path = config.settings.tls_server_cert_path
    text = read_tls_file(path, "tls_server_cert_path").decode("latin-1")
    try:
        return valid_until_ms(text)
    except RefusedError as error:
        raise TlsRefused(f"tls_server_cert_path: {path}: {error.reason}") from None


def _read(settings: Settings) -> tuple[TlsConfig, _Stamps]:
    """What is set, and its files as they were before they are read: a later change is seen."""
    path = settings.tls_config_file
    before = {path: _stamp(path)} if path else {}
    config = load_tls(settings)
    return config, {one: _stamp(one) for one in config.paths} | before


def _stamp(path: str) -> tuple[int, ...] | None:
    """Of what a name leads to, so that links may change, too; None where it leads to nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116  (one call for each file, each 5 s, in each process)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid
