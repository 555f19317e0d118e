"""TLS as settings and RocketMQ's `tls.properties` ask for it: modes, files, who may read them.

Nothing here loads OpenSSL, which costs a process without TLS 50 ms of its start: `server_tls` and
`client_tls` bring `node.access.tls` where it is needed.
"""

import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from node.runtime.settings import STORE, Settings, changed
from protocol.errors import BadRequest, RefusedError
from protocol.java_properties import java_properties
from protocol.status import Fact

if TYPE_CHECKING:
    from node.access.tls import ClientTls, ServerTls

FILE_BYTES_MAX = 1024 * 1024
"""Of a file that TLS is set by."""
FIRST_BYTE = b"\x16"
"""Of every TLS connection: a record of the handshake. No protocol of RocketMQ begins so (RocketMQ:
TlsModeHandler)."""
HANDSHAKE_S_MAX = 10.0
"""How long a client may take for its first byte, and for the handshake."""
_SERVER_PASSWORD, _CLIENT_PASSWORD = "tls.server.keyPassword", "tls.client.keyPassword"
_CIPHERS = "tls.ciphers"
_SETTINGS = {
    "tls.server.keyPath": "tls_server_key_path",
    "tls.server.certPath": "tls_server_cert_path",
    "tls.server.trustCertPath": "tls_server_trust_cert_path",
    "tls.server.need.client.auth": "tls_server_need_client_auth",
    "tls.client.keyPath": "tls_client_key_path",
    "tls.client.certPath": "tls_client_cert_path",
    "tls.client.trustCertPath": "tls_client_trust_cert_path",
    "tls.client.authServer": "tls_client_auth_server",
    "tls.protocols": "tls_protocols",
}
"""The lines of `tls.properties`, and our settings (RocketMQ: TlsSystemConfig)."""
_TEST_MODE = "tls.test.mode.enable"
_AUTH_CLIENT = "tls.server.authClient"
"""Without it RocketMQ asks for a certificate of the client and takes any. A node verifies each that
it asks for, so the line changes nothing."""
_NOT_OF_THE_FILE = {"tls.server.mode": "tls_server_mode", "tls.enable": "tls_enable"}
"""RocketMQ has these as properties of its JVM alone, and passes over such a line."""
_OTHERS_MAY_READ = stat.S_IRWXG | stat.S_IRWXO
_OF_ROOT = _OTHERS_MAY_READ & ~stat.S_IRGRP


class TlsRefused(RefusedError):
    """A file of TLS is missing, is open to others, or does not fit the rest."""


class TlsMode(StrEnum):
    """What a port takes (RocketMQ: TlsMode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether a client comes with a certificate. One that comes is always verified."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class TlsState(NamedTuple):
    """The node's own certificate, and whether the files of TLS are in use as they are."""

    mode: Annotated[str, Fact("permissive or enforcing")]
    left_ms: Annotated[int, Fact("until the certificate ends", "keelog_certificate_left_seconds")]
    trouble: Annotated[str, Fact("why the files that are there now are not used; empty: they are")]


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """What settings and file say together. `settings` has the file's lines in it."""

    mode: TlsMode
    settings: Settings
    server_password: str = field(default="", repr=False)
    client_password: str = field(default="", repr=False)
    ciphers: str = ""
    """As RocketMQ writes them, separated by commas; empty: those that OpenSSL has."""

    @property
    def client_auth(self) -> ClientAuth:
        """Of RocketMQ's clients."""
        return ClientAuth(self.settings.tls_server_need_client_auth)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that any of it depends on."""
        names = [one for one in Settings.__dataclass_fields__ if one.startswith("tls_")]
        found = (getattr(self.settings, one) for one in names if one.endswith(("_path", "_file")))
        return tuple(filter(None, found))


def load_tls(settings: Settings) -> TlsConfig:
    """Reads the file, and checks what needs no OpenSSL. Raises BadRequest for settings that cannot
    be meant; TlsRefused for such a line of the file, too: whoever edits it may mend it, so a
    process that starts meanwhile is to be started again."""
    try:
        return _load(settings)
    except BadRequest as error:
        if not settings.tls_config_file:
            raise
        raise TlsRefused(error.reason, error.hint) from None


def _load(settings: Settings) -> TlsConfig:
    lines = _read_properties(settings.tls_config_file) if settings.tls_config_file else {}
    pairs = [f"{_SETTINGS[key]}={value}" for key, value in lines.items() if key in _SETTINGS]
    merged = changed(settings, pairs, STORE)
    has_pair = bool(merged.tls_server_cert_path and merged.tls_server_key_path)
    usual = TlsMode.ENFORCING if has_pair else TlsMode.DISABLED
    mode = TlsMode(merged.tls_server_mode or usual)
    if bool(merged.tls_server_cert_path) != bool(merged.tls_server_key_path):
        raise BadRequest(
            "tls_server_cert_path and tls_server_key_path go together, and one of them is empty",
            "name both, or neither",
        )
    if bool(merged.tls_client_cert_path) != bool(merged.tls_client_key_path):
        raise BadRequest(
            "tls_client_cert_path and tls_client_key_path go together, and one of them is empty",
            "name both, or neither",
        )
    if mode is not TlsMode.DISABLED and not has_pair:
        raise BadRequest(
            f"tls_server_mode is {mode}, and there is no certificate",
            "name tls_server_cert_path and tls_server_key_path (docs/tls.md)",
        )
    asks = merged.tls_server_need_client_auth != ClientAuth.NONE
    if asks and not merged.tls_server_trust_cert_path:
        raise BadRequest(
            f"tls_server_need_client_auth is {merged.tls_server_need_client_auth}, and nobody is"
            " named whose signature counts",
            "name tls_server_trust_cert_path",
        )
    return TlsConfig(
        mode, merged, lines.get(_SERVER_PASSWORD, ""), lines.get(_CLIENT_PASSWORD, ""),
        lines.get(_CIPHERS, ""),
    )  # fmt: skip


def _read_properties(path: str) -> dict[str, str]:
    # By latin-1, as java.util.Properties reads a file.
    text = read_tls_file(path, "tls_config_file").decode("latin-1")
    lines = {name: value.strip() for _, name, value in java_properties(text)}
    if lines.get(_SERVER_PASSWORD) or lines.get(_CLIENT_PASSWORD):
        check_secret(path, "tls_config_file, which holds a password,")
    if lines.get(_TEST_MODE, "").lower() == "true":
        raise BadRequest(
            f"{path} has {_TEST_MODE}=true, and a node has no test mode: it would trust anybody",
            "write false there, and name a certificate (docs/tls.md)",
        )
    known = {*_SETTINGS, _SERVER_PASSWORD, _CLIENT_PASSWORD, _CIPHERS, _TEST_MODE, _AUTH_CLIENT}
    for name in lines:
        if name in _NOT_OF_THE_FILE:
            raise BadRequest(
                f"{path} has {name}, which counts in no such file",
                f"say it as a setting: -X {_NOT_OF_THE_FILE[name]}={lines[name]}",
            )
        if name not in known:
            raise BadRequest(f"{path} has an unknown line, {name[:80]!a}", "is it misspelt?")
    return lines


def read_tls_file(path: str, setting_name: str) -> bytes:
    """A whole file. Raises TlsRefused, which names the setting that names it."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsRefused(f"{setting_name}: {path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise TlsRefused(f"{setting_name}: {path} has more than {FILE_BYTES_MAX} bytes")
    return data


def check_secret(path: str, setting_name: str) -> None:
    """Raises TlsRefused for a file that others than this process's user, root, or a group that root
    has given it to may read: by the rule of PostgreSQL for its ssl_key_file."""
    try:
        found = os.stat(path)  # noqa: PTH116  (it follows links, as those of certbot, by one name)
    except OSError as error:
        raise TlsRefused(f"{setting_name}: {path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise TlsRefused(f"{setting_name}: {path} is no file")
    if found.st_uid not in (0, os.geteuid()):
        raise TlsRefused(
            f"{setting_name} {path} belongs to the user {found.st_uid}, who may change it",
            "give it to the user of the node: chown",
        )
    if found.st_mode & (_OTHERS_MAY_READ if found.st_uid else _OF_ROOT):
        mode = stat.S_IMODE(found.st_mode)
        raise TlsRefused(
            f"{setting_name} {path} may be read or changed by others: its mode is {mode:04o}",
            f"chmod 600 {path}; a file of root may be read by its group: 640",
        )


def password_of(path: str, inline: str, setting_name: str) -> str:
    """The password of a key: of its file, else as `tls.properties` has it. Raises TlsRefused."""
    if not path:
        return inline
    check_secret(path, setting_name)
    try:
        return read_tls_file(path, setting_name).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise TlsRefused(f"{setting_name}: {path} is no text") from None


def server_tls(settings: Settings, client_auth: ClientAuth | None = None) -> "ServerTls | None":
    """For a port of this node; None where it takes no TLS. `client_auth` None: as RocketMQ's
    clients are asked. Raises TlsRefused and BadRequest."""
    if load_tls(settings).mode is TlsMode.DISABLED:
        return None
    from node.access.tls import ServerTls

    return ServerTls(settings, client_auth)


def client_tls(settings: Settings) -> "ClientTls | None":
    """For connections that this node makes; None where these are plain. Raises TlsRefused and
    BadRequest."""
    if not settings.tls_enable:
        return None
    from node.access.tls import ClientTls

    return ClientTls(settings)
