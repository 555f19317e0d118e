"""The descriptors of a process: how many it must be allowed, and which it keeps for its store.

Connections take every descriptor that is free. So some are held open for nothing, and are given
back when the store needs them: see `node.serving.doors`.
"""

import os
import resource

from protocol.errors import ServiceNotAvailable

FILES_NEEDED = 56
"""The least RLIMIT_NOFILE for each process of a node, before queue workers and readers count."""
FILES_NEEDED_BY_CHILD = 4
"""Added for each queue worker and reader: its page and its bell, in writer and reader."""
STORE_SPARES = 12
"""Descriptors that are kept for the store's own files in a process that takes connections."""
ROOM = 4
"""While fewer descriptors are free, no connection is accepted."""
BACKLOG_SHARE = 16
"""RLIMIT_NOFILE over this is the most connections that may wait: these still come in when the
doors are closed."""
LIMITS_HINT = "raise the limit of open files (LimitNOFILE, ulimit -n)"


def files_needed(children: int = 0) -> int:
    """The least RLIMIT_NOFILE in a node with this number of queue workers and readers."""
    return FILES_NEEDED + FILES_NEEDED_BY_CHILD * children


def check_file_limit(children: int = 0) -> None:
    """Raises ServiceNotAvailable when a process may open fewer files than it needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(children)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise ServiceNotAvailable(
            f"no_resources: RLIMIT_NOFILE is {soft}, each process of this node needs {needed}",
            LIMITS_HINT,
        )


def backlog(most: int) -> int:
    """How many connections may wait to be accepted: `most`, or fewer if descriptors are few."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(ROOM, min(most, soft // BACKLOG_SHARE))


class Spares:
    """Descriptors that are held open for nothing. For one thread."""

    def __init__(self, count: int) -> None:
        """`count`: one at least."""
        self._count = count
        self._held: list[int] = []

    def take(self) -> bool:
        """Holds all of them, if ROOM more are free; else none, and returns False."""
        room: list[int] = []
        try:
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while len(room) < ROOM:
                room.append(os.dup(self._held[0]))  # cheaper than to open a file, at each look
        except OSError:
            return False
        finally:
            for descriptor in room:
                os.close(descriptor)
        return True

    def give_back(self) -> None:
        """From now on the store may use them."""
        while self._held:
            os.close(self._held.pop())
