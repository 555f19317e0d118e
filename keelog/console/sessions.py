"""Sessions of browsers, the key that opens one, and the numbers that let a form count once.

The key is new at each start of the console, in a file that the owner of the store alone can read.
Guesses of it, or of a password, are slowed by address. Everything here lives in memory, bounded.
"""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from node.runtime import disk
from node.runtime.state_page import run_dir

KEY_FILE = "console.key"
KEY_BYTES = 24
SESSION_S = 8 * 3600.0
SESSIONS_MAX = 200
"""Beyond it the oldest ends."""
FORMS_MAX = 200
"""Forms of one session that may still be sent; of older ones the page has to be loaded again."""
TRIES_MAX = 5
TRY_WINDOW_S = 60.0
"""An address that was wrong TRIES_MAX times in a minute waits for the next one."""
ADDRESSES_MAX = 1_000
"""With wrong tries that are remembered."""


def write_key(root: Path) -> str:
    """Makes a new key, and the file that holds it. Raises OSError."""
    key = secrets.token_urlsafe(KEY_BYTES)
    disk.replace_unsynced(run_dir(root) / KEY_FILE, f"{key}\n".encode())
    return key


@dataclass(slots=True)
class Session:
    """One browser that has shown the key, or logged in."""

    id: str
    user: str
    """Empty for the operator."""
    secret: str = field(repr=False)
    """The password with which the user came: another one ends the session."""
    until: float
    forms: OrderedDict[str, None] = field(default_factory=OrderedDict)


class Sessions:
    """Of one console. Times are seconds of the monotonic clock."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def is_key(self, given: str) -> bool:
        """Whether it is the key of this start; it takes as long for every other text."""
        return hmac.compare_digest(self._key.encode(), given.strip().encode())

    def may_try(self, address: str, now: float) -> bool:
        """Whether this address may try a key or a password now."""
        tries = [one for one in self._wrong.get(address, ()) if now - one < TRY_WINDOW_S]
        return len(tries) < TRIES_MAX

    def note_wrong(self, address: str, now: float) -> None:
        """Counts a try that was wrong."""
        tries = [one for one in self._wrong.pop(address, ()) if now - one < TRY_WINDOW_S]
        self._wrong[address] = [*tries[-TRIES_MAX:], now]
        if len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)

    def begin(self, user: str, secret: str, now: float) -> Session:
        """A new session; its id is for the cookie alone."""
        session = Session(secrets.token_urlsafe(KEY_BYTES), user, secret, now + SESSION_S)
        self._open[session.id] = session
        if len(self._open) > SESSIONS_MAX:
            self._open.popitem(last=False)
        return session

    def find(self, given: str, now: float) -> Session | None:
        """The session with this id, if it has not ended."""
        session = self._open.get(given)
        if session is None or now >= session.until:
            self._open.pop(given, None)
            return None
        return session

    def end(self, given: str) -> None:
        """Ends a session, if it is there."""
        self._open.pop(given, None)

    def new_form(self, session: Session) -> str:
        """A number for one form of a page of this session."""
        number = secrets.token_urlsafe(12)
        session.forms[number] = None
        if len(session.forms) > FORMS_MAX:
            session.forms.popitem(last=False)
        return number

    @staticmethod
    def take_form(session: Session, number: str) -> bool:
        """Whether a form with this number may be carried out: once."""
        return session.forms.pop(number, 0) is None
