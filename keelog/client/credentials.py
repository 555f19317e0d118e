"""The credentials of a consumer of a group, which logs in as RocketMQ's own clients do: the name of
a user, and the password from a file that nobody else may read.

A program may have the password from elsewhere: `keelog.Credentials(access_key, secret)`. It is
never an argument of a command, nor a variable, which others can read.
"""

import os
import stat
from pathlib import Path

from keelog.client.transport.keys import PathText
from protocol.access.credentials import Credentials
from protocol.access.users import SECRET_CHARS_MAX
from protocol.errors import BadRequest

_FILE_BYTES_MAX = 4 * SECRET_CHARS_MAX + 2
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def credentials_of(access_key: str, secret_file: PathText) -> Credentials:
    """The credentials of a user whose password is the first line of a file.

    >>> keelog.credentials_of("billing", "billing.password")  # doctest: +SKIP
    Credentials(access_key='billing')

    Raises BadRequest for a file that is not there, that others may read, or that is empty.
    """
    path = Path(secret_file)
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        hint = "name the file with the password of the user"
        raise BadRequest(f"the secret file {path}: {error.strerror}", hint) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadRequest(f"the secret file {path} is not a file")
        if found.st_mode & _OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            raise BadRequest(
                f"the secret file {path} is open to other users, with mode {mode:04o}",
                f"chmod 600 {path}  and, if others could read it, change the password",
            )
        if found.st_uid not in (0, os.geteuid()):
            raise BadRequest(
                f"the secret file {path} belongs to another user, {found.st_uid}",
                f"chown {os.geteuid()} {path}",
            )
        data = os.read(descriptor, _FILE_BYTES_MAX)
    finally:
        os.close(descriptor)
    secret = data.decode("utf-8", "replace").split("\n")[0].removesuffix("\r")
    if not secret.strip():
        raise BadRequest(f"the first line of the secret file {path} is empty", "write the password")
    return Credentials(access_key, secret)
