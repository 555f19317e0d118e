"""Which queues of a topic each member of a group takes.

All members decide by the same rule from the same two lists, Java's among them, so that each queue
has one owner without anybody saying so.
"""

from collections.abc import Iterable

from protocol.remoting.bodies import MessageQueue


def averagely(
    queues: Iterable[MessageQueue], members: Iterable[str], own: str
) -> list[MessageQueue]:
    """The queues of the member `own` (RocketMQ: AllocateMessageQueueAveragely).

    Each gets a run of neighbours, the first ones one more. A member that is not among `members`
    gets none. Where an id is there twice, the queues of its second entry stay without an owner.
    """
    ids = sorted(members, key=_java_order)
    if own not in ids:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(ids))
    index = ids.index(own)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


def _java_order(text: str) -> bytes:
    """Java compares texts by their UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
