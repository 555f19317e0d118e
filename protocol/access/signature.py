"""The signature of a request: who knows the secret of the user that it names.

RocketMQ's clients put `AccessKey` and `Signature` among the fields of the header
(AclClientRPCHook). The signature is over the values of all other fields, in the order of their
names, and over the body (DefaultAuthenticationContextBuilder). It says nothing of the request's
code or time.
"""

import base64
import hmac
from collections.abc import Mapping

Body = bytes | bytearray | memoryview
ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
_UNSIGNED_BY_OLD = "_UNIQUE_KEY_QUERY"
LAST_OLD_VERSION = 399
"""V4_9_3: clients up to it do not sign `_UNIQUE_KEY_QUERY`."""


def access_key(fields: Mapping[str, str]) -> str:
    """The name of the user that a request is from; empty for none.

    The C++ client sends an empty one where it has no credentials.
    """
    return fields.get(ACCESS_KEY, "")


def signature(secret: str, fields: Mapping[str, str], body: Body, version: int) -> str:
    """The signature that a request must have. `fields` are those of the header as they came, and
    `version` is the header's."""
    names = sorted(fields)
    if not "".join(names).isascii():
        names.sort(key=_java_order)
    left_out = {SIGNATURE, _UNSIGNED_BY_OLD} if version <= LAST_OLD_VERSION else {SIGNATURE}
    text = "".join([fields[name] for name in names if name not in left_out])
    content = text.encode("utf-8", "replace") + body
    key = secret.encode("utf-8", "replace")
    return base64.b64encode(hmac.digest(key, content, "sha1")).decode()


def is_signed(secret: str, fields: Mapping[str, str], body: Body, version: int) -> bool:
    """Whether a request has the signature of who knows the secret. Takes as long for every other
    signature of the same length. An empty secret signs nothing."""
    if not secret:
        return False
    wanted = signature(secret, fields, body, version)
    given = fields.get(SIGNATURE, "")
    return hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace"))


def _java_order(name: str) -> bytes:
    """By UTF-16 units, as String#compareTo does."""
    return name.encode("utf-16-be", "surrogatepass")
