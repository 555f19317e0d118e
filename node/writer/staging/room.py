"""How much may be staged, and which abandoned batches go first when the disk needs room.

Staged bytes are nobody's messages yet, so no acknowledged message may go for them. All that is
staged must fit a second time below the ratio at which messages would go: its publication copies it
into the log before the stages go.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import room_below
from node.store.checkpoints import own_dir
from node.store.staging_files import StagedBatch
from node.writer.retention import LOOK_EVERY_S, staging_ratio
from protocol.errors import NotAllowed, ServiceNotAvailable
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR

log = logging.getLogger("keelog.staging")

DROPPED_AT_ONCE_MAX = 100
"""Abandoned batches that one turn of the writer's loop drops."""
_BLOCK_BYTES = 4096
"""A frame may begin a block more than its bytes fill: counted until the next look at the disk."""


class Idle(NamedTuple):
    """A batch whose publication has not begun, and when it was last written to."""

    touched_ms: int
    batch: StagedBatch
    bytes: int


def first_to_go(idle: Sequence[Idle], wanted: int) -> list[StagedBatch]:
    """The batches that were untouched for longest, until they have `wanted` bytes together."""
    chosen: list[StagedBatch] = []
    freed = 0
    for one in sorted(idle)[:DROPPED_AT_ONCE_MAX]:
        if freed >= wanted:
            break
        chosen.append(one.batch)
        freed += one.bytes
    return chosen


def room_left(root: Path, settings: Settings) -> int:
    """The bytes that the fullest file system of a store has left below the staging ratio."""
    places = (own_dir(root), root / COMMIT_LOG_DIR, root / CONSUME_QUEUE_DIR)
    ratio = staging_ratio(settings)
    return min(room_below(place, ratio) for place in places if place.is_dir())


class StagingRoom:
    """Looks at the disk once a second, and counts what was staged since."""

    def __init__(
        self,
        settings: Settings,
        look: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.look = look
        self.missing = 0
        """The bytes that must go before a refused frame fits; 0 when none was refused."""
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._look_at = float("-inf")
        self._room = 0
        self._is_refusing = False

    def check(self, staged: int, size: int) -> None:
        """Raises NotAllowed above `staging_bytes_max`, ServiceNotAvailable where the disk lacks
        room. `staged`: the bytes of all stages."""
        limit = self._settings.staging_bytes_max
        if limit and staged + size > limit:
            raise NotAllowed(
                f"{staged} bytes are staged, staging_bytes_max is {limit}",
                "publish or drop what is staged, or raise the setting",
            )
        now = self._monotonic_s()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._room = self.look()
        missing = staged + size - (self._room + staged) // 2
        if missing <= 0:
            self._note(None)
            return
        self.missing = max(self.missing, missing)
        why = (
            f"disk_full: {staged} bytes are staged, {max(self._room, 0)} are left below"
            f" {staging_ratio(self._settings)} % of the disk: {size} more could not be published"
        )
        self._note(why)
        raise ServiceNotAvailable(
            why, "free space, or publish or drop what is staged; staging then goes on by itself"
        )

    def take(self, size: int) -> None:
        """Counts a frame that was staged."""
        self._room -= size + _BLOCK_BYTES

    def _note(self, why: str | None) -> None:
        if why is not None and not self._is_refusing:
            log.warning("no more is staged", extra=fields(why=why))
        elif why is None and self._is_refusing:
            log.info("staging has room again")
        self._is_refusing = why is not None
