"""Key pairs of CURVE, ZeroMQ's encryption, as text: czmq's certificates.

A key is 32 bytes, written as 40 characters of Z85 (ZeroMQ RFC 32). `NAME.key_secret` has both keys
of a pair, `NAME.key` the public one alone. czmq, pyzmq (`zmq.auth`) and others read these files.
Nothing here shows a secret key: not the text of a pair, and no error.
"""

import re
from typing import NamedTuple

from protocol.errors import RefusedError

SECRET_SUFFIX, PUBLIC_SUFFIX = ".key_secret", ".key"
KEY_CHARS = 40
KEY_FILE_BYTES_MAX = 4096
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644
_OTHERS = 0o077
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {sign: value for value, sign in enumerate(_Z85)}
_LINE = re.compile(r'^\s*(public-key|secret-key)\s*=\s*"([^"\n]*)"\s*$', re.MULTILINE)


class KeyPair(NamedTuple):
    """A public key and its secret one, in Z85."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, ***)"


class BadKey(RefusedError):
    """A key, or a file that should hold one, cannot be used: `reason` says which, and why."""


def is_key(text: str) -> bool:
    """Whether a text is a key in Z85."""
    fives = (text[at : at + 5] for at in range(0, len(text), 5))
    return len(text) == KEY_CHARS and all(map(_is_number, fives))


def check_key(text: str, what: str) -> str:
    """Returns the text if it is a key in Z85. Raises BadKey, which names `what` alone."""
    if not is_key(text):
        raise BadKey(f"{what} is not a key of {KEY_CHARS} characters", "keelog key new NAME")
    return text


def _is_number(five: str) -> bool:
    """Whether five digits of Z85 are a number of four bytes."""
    number = 0
    for sign in five:
        if sign not in _DIGITS:
            return False
        number = number * 85 + _DIGITS[sign]
    return number < 1 << 32


def key_file(public: str, secret: str = "") -> bytes:
    """The text of a file: of `NAME.key`, or with the secret key of `NAME.key_secret`."""
    head = [
        "# The secret key of a program or a node. Only its owner may read it."
        if secret
        else "# A public key: anybody may have it."
    ]
    keys = [f'    public-key = "{public}"', *([f'    secret-key = "{secret}"'] if secret else [])]
    return "\n".join([*head, "", "metadata", "curve", *keys, ""]).encode()


def parse_public(data: bytes, place: str) -> str:
    """The public key of either file. `place` names it in errors. Raises BadKey."""
    return _parsed(data, place)["public-key"]


def parse_pair(data: bytes, place: str) -> KeyPair:
    """Both keys of a `.key_secret`. Raises BadKey."""
    found = _parsed(data, place)
    if "secret-key" not in found:
        raise BadKey(f"{place} holds no secret key", f"name the file that ends in {SECRET_SUFFIX}")
    return KeyPair(found["public-key"], found["secret-key"])


def _parsed(data: bytes, place: str) -> dict[str, str]:
    found: dict[str, str] = dict(_LINE.findall(data.decode("ascii", "replace")))
    if "public-key" not in found:
        raise BadKey(f"{place} holds no key", "keelog key new NAME  makes a pair of files")
    return {name: check_key(key, f"the {name} of {place}") for name, key in found.items()}


def check_secret_file(mode: int, owner: int, user: int, place: str) -> None:
    """Raises BadKey for a file with a secret that others may read, or that is another user's.

    `mode` and `owner` are the file's, `user` is who reads it. It may be root's.
    """
    if mode & _OTHERS:
        hint = f"chmod 600 {place}"
        raise BadKey(f"{place} is open to other users, with mode {mode & 0o777:04o}", hint)
    if owner not in (user, 0):
        raise BadKey(f"{place} belongs to another user, {owner}", f"chown {user} {place}")
