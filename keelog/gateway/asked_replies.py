"""Who asked for a reply: requests of RocketMQ's producers (`producer.request`) that came by here.

A reply names its receiver by an id that anybody may write. So where users log in, the node
remembers who has asked: the user, the id to which the reply goes, the number that the reply
repeats, and the topic of the request, which whoever replies must be allowed to read. It remembers
a request as long as its sender waits for the reply (TTL), and knows nothing of one that another
node of the cluster took.
"""

from dataclasses import dataclass, field

from protocol.record.properties import decode_properties
from protocol.remoting.header_fields import SendMessageHeader

REPLY_TO_CLIENT, CORRELATION_ID, TTL = "REPLY_TO_CLIENT", "CORRELATION_ID", "TTL"
"""Properties of a request, which its reply has too (MessageConst)."""
WAIT_S = 3.0
"""How long a request is remembered that does not say how long its sender waits (sendMsgTimeout)."""
WAIT_S_MAX = 900.0
"""How long one is remembered at most."""
REQUESTS_OF_USER_MAX = 16_384
"""For one more of a user the oldest is forgotten."""
REQUESTS_MAX = 65_536
"""Of all users; beyond it no more are remembered."""
LOOK_EVERY_S = 1.0
"""How often all are looked through for those that are late, when there are too many."""
CHARS_MAX = 512
"""Of the id and the number together; longer ones are not remembered."""

Asked = tuple[str, str]
"""The id of the client that waits, and the number of its request."""


@dataclass(slots=True, eq=False)
class AskedReplies:
    """One for each gateway, in the thread of its loop. Times are seconds of a monotonic clock."""

    _of: dict[str, dict[Asked, tuple[str, float]]] = field(default_factory=dict)
    """By user: topic of each request and until when it waits, in the order in which they came. A
    user who has asked once stays; users are few."""
    _count: int = 0
    _look_at: float = 0.0

    def note(self, user: str, wanted: SendMessageHeader, now: float) -> None:
        """A user sends a message, which may be a request."""
        if REPLY_TO_CLIENT not in wanted.properties:
            return
        found = decode_properties(wanted.properties.encode())
        asked = reply_place(found)
        if not all(asked) or sum(map(len, asked)) > CHARS_MAX:
            return
        mine = self._of.setdefault(user, {})
        self._drop(mine, now, asked)
        if self._count >= REQUESTS_MAX and now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._drop_late(now)
        if self._count < REQUESTS_MAX:
            mine[asked] = wanted.topic, now + _wait_s(found.get(TTL, ""))
            self._count += 1

    def topic_of(self, user: str, asked: Asked, now: float) -> str | None:
        """The topic of a request of this user that waits for its reply; None for no such one."""
        topic, until = self._of.get(user, {}).get(asked, ("", 0.0))
        return topic if now < until else None

    def _drop(self, mine: dict[Asked, tuple[str, float]], now: float, asked: Asked) -> None:
        """Drops one that is asked again, the oldest that are late, and one too many."""
        self._count -= mine.pop(asked, None) is not None
        while mine:
            first, (_, until) = next(iter(mine.items()))
            if now < until and len(mine) < REQUESTS_OF_USER_MAX:
                return
            del mine[first]
            self._count -= 1

    def _drop_late(self, now: float) -> None:
        """Drops all that nobody waits for any more."""
        for mine in self._of.values():
            for asked in [one for one, (_, until) in mine.items() if now >= until]:
                del mine[asked]
                self._count -= 1


def reply_place(properties: dict[str, str]) -> Asked:
    """Whose reply it is, and of which request; empty texts where properties do not say it."""
    return properties.get(REPLY_TO_CLIENT, ""), properties.get(CORRELATION_ID, "")


def _wait_s(text: str) -> float:
    ms = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return min(ms / 1000, WAIT_S_MAX) if ms else WAIT_S
