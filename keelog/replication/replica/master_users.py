"""The users of a master for its replica: asked for with the rest of the master's tables.

A master gives passwords to Super users alone. They come here only where nobody can read them on
their way, and only from who is known to be the master.
"""

from typing import TYPE_CHECKING

from keelog.replication.replica.master_link import MasterSays, RemotingAsker, refusal_of
from node.access.own_credentials import OwnCredentials
from node.runtime.addresses import split_place
from protocol.access.changes import PUBLIC_KEYS
from protocol.access.copied_users import MasterUsers, master_users
from protocol.addresses import is_loopback
from protocol.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from node.access.tls import ClientTls

LIST_USERS = 3005


def fetch_users(
    place: str,
    timeout_s: float,
    tls: "ClientTls | None",
    credentials: OwnCredentials | None,
) -> MasterUsers:
    """All users and lists of the master at HOST:PORT (3005, 3010). Raises MasterSays, NotAllowed,
    OSError."""
    if credentials is None:
        raise MasterSays("nobody gets the users of a master without a login")
    if not is_loopback(split_place(place)[0]) and (tls is None or not tls.verifies):
        raise MasterSays(
            "passwords come by TLS alone, from a master that is verified: set tls_enable, and not"
            " tls_client_auth_server=false (docs/tls.md)"
        )
    with RemotingAsker(place, timeout_s, tls, credentials) as asker:
        users = _ask(asker, LIST_USERS, {PUBLIC_KEYS: "true"})
        lists = _ask(asker, RequestCode.AUTH_LIST_ACL, {})
        again = _ask(asker, LIST_USERS, {PUBLIC_KEYS: "true"})
    if again != users:
        raise MasterSays("its users have just changed, so the lists may be those of others")
    return master_users(users, lists, credentials.now())


def _ask(asker: RemotingAsker, code: int, ext: dict[str, str]) -> bytes:
    """Raises MasterSays, OSError."""
    answer = asker.ask(code, ext)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    return answer.body
