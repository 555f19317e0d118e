"""The operations `users` and `change_users` of the process that owns a store."""

import logging
from typing import Any

from node.access.audit import DONE, REFUSED, AuditEvent, AuditLog
from node.access.rights import Caller
from node.access.user_table import OwnedUserTable
from node.runtime.event_log import fields
from protocol import requests
from protocol.access.changes import DELETE_ACL, Change
from protocol.access.copied_users import MasterUsers
from protocol.access.users import AccessTable, User, acl_info
from protocol.errors import MqError, NotAllowed
from protocol.remoting.auth_bodies import AclInfo
from protocol.wire.frames import Header, answer

log = logging.getLogger("keelog.access")

USER_OPERATIONS = ("users", "change_users")
PAGE_USERS_MAX = 200
PAGE_ENTRIES_MAX = 2_000
"""One page of `users` ends with the user whose list reaches it."""


class UserDesk:
    """Replies to them; writes each change, and each that was refused, to the audit log."""

    def __init__(self, table: OwnedUserTable, audit: AuditLog) -> None:
        self.table = table
        self.audit = audit

    def answer(
        self, operation: str, header: Header, number: int, now_ms: int, caller: Caller | None
    ) -> Header:
        """The good answer. Raises BadRequest, NotAllowed, and as `OwnedUserTable.change`.

        `caller`: the user whose request it is; None for one over a local socket, whose sender says
        in whose name.
        """
        if operation == "users":
            return answer(number, **users_page(self.table.current(), *requests.USERS.parse(header)))
        asked = requests.CHANGE_USERS.parse(header)
        if caller is not None:
            if asked.by not in (None, caller.user):
                raise NotAllowed(f"user {caller.user} asks in another's name", "leave out `by`")
            asked = asked._replace(by=caller.user, address=caller.address)
        wanted = Change(asked.change, asked.name, asked.info, asked.policy, asked.resource)
        before = self.table.table
        try:
            after = self.table.change(wanted, asked.by, now_ms)
        except MqError as error:
            self._note(asked, caller, REFUSED, error.reason, now_ms)
            raise
        self._note(asked, caller, DONE, "", now_ms)
        return answer(number, changed=after is not before, revision=after.revision)

    def follow(self, found: MasterUsers, now_ms: int) -> None:
        """Takes the users and lists of a master, in the place of all that is there. Raises as
        `OwnedUserTable.follow`."""
        if not self.table.follow(found, now_ms):
            return
        extra = fields(users=len(found.users), lists=len(found.lists))
        log.info("users of the master taken over", extra=extra)
        for one in found.left_out:
            log.warning("not taken over of the master's users", extra=fields(what=one))
        event = AuditEvent("replica", "", "", "follow_users", f"{len(found.users)} users", DONE)
        self.audit.write(event, now_ms)

    def _note(
        self,
        asked: requests.ChangeUsersFields,
        caller: Caller | None,
        outcome: str,
        reason: str,
        now_ms: int,
    ) -> None:
        end, user = ("command", "") if asked.by is None else ("remoting", asked.by)
        end = end if caller is None else "zeromq"
        what = f"{asked.name} {asked.resource}" if asked.change == DELETE_ACL else asked.name
        event = AuditEvent(end, user, asked.address, asked.change, what.strip(), outcome, reason)
        self.audit.write(event, now_ms)

    def close(self) -> None:
        """Closes the audit log."""
        self.audit.close()


def users_page(table: AccessTable, name: str | None, after: str) -> dict[str, Any]:
    """One user, or a page of all after a name, each with the list; never a secret."""
    chosen = [name] if name is not None else [one for one in sorted(table.users) if one > after]
    rows: list[dict[str, Any]] = []
    entries = 0
    for one in chosen:
        if len(rows) >= PAGE_USERS_MAX or entries >= PAGE_ENTRIES_MAX:
            return {"users": rows, "revision": table.revision, "next": rows[-1]["name"]}
        user = table.users.get(one)
        if user is not None:
            held = table.list_of(one)
            entries += len(held.custom) + len(held.default)
            rows.append(_row(user, acl_info(one, held)))
    return {"users": rows, "revision": table.revision}


def _row(user: User, info: AclInfo) -> dict[str, Any]:
    return {
        "name": user.name,
        "type": str(user.type),
        "status": str(user.status),
        "has_secret": bool(user.secret),
        "public_keys": list(user.public_keys),
        "changed_ms": user.changed_ms,
        "entries": [
            {
                "policy": policy.policy_type,
                "resource": entry.resource,
                "actions": list(entry.actions or ()),
                "sources": list(entry.source_ips or ()),
                "decision": entry.decision,
            }
            for policy in info.policies or ()
            for entry in policy.entries or ()
        ],
    }
