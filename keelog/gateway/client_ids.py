"""Whose a client id is: where users log in, one that is in use belongs to its user.

Ids are chosen by clients. Replies (326) and questions of tools go to the client of an id, and locks
are kept under it, so nobody may name that of another user while its connection lives.
"""

from keelog.gateway.connection import RemotingConnection, Request
from protocol.errors import NotAllowed

CLIENT_IDS_MAX = 100_000
"""That are in use; a heart-beat with a further one is refused."""


class ClientIds:
    """One for each gateway, in the thread of its loop. Without logins it knows of none."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, set[RemotingConnection]]] = {}
        """By id: the user, and the connections on which it has beaten: a client may open two."""
        self._of: dict[RemotingConnection, set[str]] = {}

    def check(self, client_id: str, request: Request) -> None:
        """Raises NotAllowed for an id that another user has in use."""
        user, _ = self._owners.get(client_id, ("", None))
        asker = request.asker
        if asker is not None and user not in ("", asker.user.name):
            named = f"{client_id[:80]!a}"
            raise asker.refused(f"client {named}", f"the client id {named} is another user's")

    def bind(self, client_id: str, request: Request) -> None:
        """The client of a connection beats with an id. Raises NotAllowed, as `check`, and for one
        too many."""
        if request.asker is None:
            return
        self.check(client_id, request)
        if client_id not in self._owners and len(self._owners) >= CLIENT_IDS_MAX:
            raise NotAllowed(f"{CLIENT_IDS_MAX} client ids are in use already")
        connection, user = request.connection, request.asker.user.name
        self._owners.setdefault(client_id, (user, set()))[1].add(connection)
        self._of.setdefault(connection, set()).add(client_id)

    def went(self, connection: RemotingConnection) -> None:
        """A connection is gone: ids that no other one has are free."""
        for client_id in self._of.pop(connection, ()):
            _, connections = self._owners[client_id]
            connections.discard(connection)
            if not connections:
                del self._owners[client_id]
