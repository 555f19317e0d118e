"""Users and their access lists, as RocketMQ's tools ask for them and change them: 3001 to 3010.

A change goes to the writer, which owns the file (`change_users`), and says so in the audit log.
Questions are about the table of the gateway. Codes and texts are those of AdminBrokerProcessor.

Only Super users get here, and a user who asks about itself (`remoting_needs`). Where nobody must
log in, only clients of this machine may change users: the first one ends that everybody may do
everything, and who makes it has all rights then.
"""

from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from typing import Any

from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.users import change_users
from keelog.gateway.connection import Reply, Request
from keelog.gateway.guard import address_of
from node.access.user_table import UserTable
from protocol.access import changes
from protocol.access.changes import PUBLIC_KEYS, Change
from protocol.errors import NotAllowed
from protocol.ids import Host
from protocol.remoting.codes import BadCommand

INFO_BYTES_MAX = 1024 * 1024
"""The body of a change: a user, or an access list."""
CHANGES = {
    3001: (changes.CREATE_USER, "username"),
    3002: (changes.UPDATE_USER, "username"),
    3003: (changes.DELETE_USER, "username"),
    3006: (changes.CREATE_ACL, "subject"),
    3007: (changes.UPDATE_ACL, "subject"),
    3008: (changes.DELETE_ACL, "subject"),
}
"""By code: the change, and the field that says of whom."""


class UserHandlers:
    """One for each gateway, in the thread of its loop. `changed` is called after each change, and
    takes it into the table."""

    def __init__(self, core: ClientCore, table: UserTable, changed: Callable[[], None]) -> None:
        self._core = core
        self._table = table
        self._changed = changed

    # Changes

    def change(self, request: Request) -> Coroutine[Any, Any, Reply]:
        """3001 to 3003, 3006 to 3008. Raises NotAllowed, BadCommand; then what the writer
        refuses."""
        ext, peer = request.header.ext, request.connection.peer
        if len(request.body) > INFO_BYTES_MAX:
            raise BadCommand(f"{len(request.body)} bytes", f"send {INFO_BYTES_MAX}")
        if request.asker is None and not is_loopback(peer):
            raise NotAllowed(
                "nobody has to log in here, and then users are changed at the node itself",
                "keelog user create NAME --super",
            )
        what, name = CHANGES[request.header.code]
        policy, resource = ext.get("policyType", ""), ext.get("resource", "")
        body = bytes(request.body)  # it is read before the writer is asked
        wanted = Change(what, ext.get(name, ""), body, policy, resource)
        by = None if request.asker is None else request.asker.user.name
        return self._change(wanted, by, address_of(peer.ip))

    async def _change(self, wanted: Change, by: str | None, address: str) -> Reply:
        deadline = self._core.deadline(None)
        await run(self._core, change_users(wanted, deadline, by=by, address=address))
        self._changed()
        return Reply()

    # Questions

    def user(self, request: Request) -> Reply:
        """3004. Raises BadRequest."""
        name = request.header.ext.get("username", "")
        return _found(changes.user_answer(self._table.table, name, shows_secrets(request)))

    def users(self, request: Request) -> Reply:
        """3005: those with a text in their names. A replica of Keelog's asks for their public keys,
        too."""
        ext = request.header.ext
        part, keys = ext.get("filter", ""), ext.get(PUBLIC_KEYS) == "true"
        return _found(changes.users_answer(self._table.table, part, shows_secrets(request), keys))

    def acl(self, request: Request) -> Reply:
        """3009. Raises NotAllowed."""
        subject = request.header.ext.get("subject", "")
        return _found(changes.acl_answer(self._table.table, subject))

    def acls(self, request: Request) -> Reply:
        """3010: those with a text in their subjects, cut to entries with one in their resources."""
        ext = request.header.ext
        parts = ext.get("subjectFilter", ""), ext.get("resourceFilter", "")
        return _found(changes.acls_answer(self._table.table, *parts))


def shows_secrets(request: Request) -> bool:
    """Whether an answer has passwords: tools copy users so (copyUser). Only for a Super user who
    has logged in, and where nobody reads the answer on its way."""
    asker, connection = request.asker, request.connection
    is_private = connection.is_encrypted or is_loopback(connection.peer)
    return asker is not None and asker.user.is_super and is_private


def is_loopback(peer: Host) -> bool:
    """Whether a client is of this machine."""
    return ip_address(peer.ip).is_loopback


def _found(body: bytes | None) -> Reply:
    """Without a user or list there is no body, as at a broker."""
    return Reply(body=body or b"")
