"""Certificates of authorities that tests make, as files, and TLS without sockets."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, cast

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PASSED = datetime(2020, 1, 1, tzinfo=UTC)
HERE = ("127.0.0.1", "localhost")


class Pair(NamedTuple):
    """PEM files: a certificate with those above it, and its key (0600)."""

    cert: Path
    key: Path

    @property
    def server(self) -> tuple[str, str]:
        """The settings of a port."""
        return f"tls_server_cert_path={self.cert}", f"tls_server_key_path={self.key}"

    @property
    def client(self) -> tuple[str, str]:
        """The settings of connections that are made."""
        return f"tls_client_cert_path={self.cert}", f"tls_client_key_path={self.key}"


class Authority:
    """Signs certificates, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._ca = trustme.CA(organization_name=name)
        self._folder = folder
        self.trust = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.trust))

    def pair(self, name: str, *hosts: str, ends: datetime | None = None) -> Pair:
        """Makes a pair, in the place of an older one of this name."""
        made = self._ca.issue_cert(*(hosts or HERE), not_after=ends)
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
        pair.key.touch(0o600)
        pair.key.write_bytes(made.private_key_pem.bytes())
        return pair

    def revoke(self, pair: Pair) -> None:
        """Adds a list with this certificate to the file of the authority."""
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        issuer = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        revoked = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        now = datetime.now(UTC)
        row = x509.RevokedCertificateBuilder().serial_number(revoked.serial_number)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(issuer.subject)
            .last_update(now - timedelta(days=1))
            .next_update(now + timedelta(days=1))
            .add_revoked_certificate(row.revocation_date(now).build())
            .sign(cast(ec.EllipticCurvePrivateKey, key), hashes.SHA256())
        )
        with self.trust.open("ab") as file:
            file.write(made.public_bytes(serialization.Encoding.PEM))

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority and may show a certificate."""
        context = ssl.create_default_context(cafile=str(self.trust))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake in memory, the server's first. Raises SSLError of either."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client.wrap_bio(to_client, to_server, server_hostname=host)
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    waits = {theirs, ours}
    for _ in range(20):
        for one in list(waits):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waits.discard(one)
        if not waits:
            return ours, theirs
    raise AssertionError("the handshake has no end")
