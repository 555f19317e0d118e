"""The users of a node and their access lists, for the command line: asking, and changing them."""

from typing import Any

from keelog.client.client import Client, run
from keelog.client.operations import Operation, given
from keelog.client.transport.exchange import Call, NodeRole
from protocol.access.changes import Change


def users_of(client: Client, name: str | None) -> list[dict[str, Any]]:
    """All users, or the one of this name, each with the entries of the list; no secrets."""
    core = client._core
    return run(core, users(name, core.deadline(None)))


def change_at(client: Client, change: Change) -> bool:
    """Applies one change; False where it was so already. Raises NotAllowed, BadRequest."""
    core = client._core
    return run(core, change_users(change, core.deadline(None)))


def users(name: str | None, deadline: float) -> Operation[list[dict[str, Any]]]:
    """See `users_of`."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        fields = given(name=name, after=after)
        header = (yield Call(NodeRole.WRITER, "users", fields, deadline)).header
        found += header["users"]
        after = header.get("next")
    return found


def change_users(change: Change, deadline: float, **more: str | None) -> Operation[bool]:
    """See `change_at`. `more`: `by` and `address` of a user who asks by way of the gateway."""
    what, name, info, policy, resource = change
    fields = {"change": what, "name": name, "info": info, "policy": policy, "resource": resource}
    # A user who was made is refused the second time, which would hide that the first succeeded.
    fields |= given(**more)
    call = Call(NodeRole.WRITER, "change_users", fields, deadline, repeatable=False)
    return bool((yield call).header["changed"])
