"""A user's name and secret, with which a client of RocketMQ's protocol signs its requests.

RocketMQ's settings write them as JSON (SessionCredentials; initAuthenticationUser).

Nothing here shows a secret: not the text of a value, and no error.
"""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.access.signature import ACCESS_KEY, SIGNATURE, Body, signature
from protocol.access.users import check_name, check_secret
from protocol.errors import BadRequest

if TYPE_CHECKING:  # it brings numpy, which the supervisor does without
    from protocol.remoting.headers import RemotingHeader


@dataclass(frozen=True, slots=True)
class Credentials:
    """Whom a client says it is, and what proves that."""

    access_key: str
    secret: str = field(repr=False)


def signed(who: Credentials, header: "RemotingHeader", body: Body) -> "RemotingHeader":
    """The header of a request with the two fields that say and prove who sends it."""
    fields = {**header.ext, ACCESS_KEY: who.access_key}
    fields.pop(SIGNATURE, None)
    fields[SIGNATURE] = signature(who.secret, fields, body, header.version)
    return header._replace(ext=fields)


@dataclass(frozen=True, slots=True)
class CredentialsForm:
    """The names of the two values in one of RocketMQ's settings."""

    name: str
    secret: str

    def parse(self, data: bytes) -> Credentials:
        """The credentials that a text of JSON holds. Raises BadRequest, NotAllowed."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(type(one) is str for one in found.values()):
            raise BadRequest("it is not a JSON object of texts", f"write {self.example}")
        if unknown := found.keys() - {self.name, self.secret}:
            raise BadRequest(f"it has a field {min(unknown)[:40]!a}", f"write {self.example}")
        if missing := {self.name, self.secret} - found.keys():
            raise BadRequest(f"it has no field {min(missing)}", f"write {self.example}")
        check_name(found[self.name])
        check_secret(found[self.secret])
        return Credentials(found[self.name], found[self.secret])

    def text(self, credentials: Credentials) -> bytes:
        """The JSON of credentials."""
        pairs = {self.name: credentials.access_key, self.secret: credentials.secret}
        return json.dumps(pairs).encode() + b"\n"

    @property
    def example(self) -> str:
        """How a file is to look."""
        return f'{{"{self.name}": "NAME", "{self.secret}": "8 characters or more"}}'


INNER_FORM = CredentialsForm("accessKey", "secretKey")
"""innerClientAuthenticationCredentials."""
FIRST_USER_FORM = CredentialsForm("username", "password")
"""initAuthenticationUser."""
