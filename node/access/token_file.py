"""A token in a file of its own, by which a program is known: `http_token_file`."""

from node.access.tls_settings import check_secret, read_tls_file
from protocol.errors import BadRequest

TOKEN_CHARS_MIN = 16


def read_token(path: str) -> str:
    """The token. Raises TlsRefused for a file that others may read, or that is not there, and
    BadRequest for a token that could be guessed."""
    check_secret(path, "http_token_file")
    token = read_tls_file(path, "http_token_file").decode("utf-8", "replace").strip()
    if len(token) < TOKEN_CHARS_MIN or not token.isascii() or not token.isprintable():
        raise BadRequest(
            f"http_token_file: {path} holds no token of {TOKEN_CHARS_MIN} ASCII characters or more",
            f"(umask 077; openssl rand -hex 32 > {path})",
        )
    return token
