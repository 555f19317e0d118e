"""Where a worker's log comes from: a running writer's state page, or a store at rest."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from node.runtime.state_page import STOPPING, LogPage, PageAbsent
from node.store.checkpoints import load_epochs, load_floor, load_removed
from node.store.condition import read_condition
from node.store.file_cache import OpenFiles, see_all_damage
from node.store.log import reader
from node.store.log.end import find_tail
from node.store.log.reader import Bounds, Damage, LogReader
from node.store.log.segments import open_segments
from protocol.derived.removed import Removed
from protocol.errors import StoreDamaged
from protocol.names import COMMIT_LOG_DIR
from protocol.record.codec import Record, Torn
from protocol.record.columns import RecordColumns

WINDOW_BYTES = 8 << 20
"""Log read at once: what catches up writes to each queue once a window."""
SEGMENT_APPEARS_S_MAX = 2.0
"""The writer makes segments while we list them: how long a strange listing may last."""
FEW_RECORDS_MAX = 16
FEW_BYTES_MAX = 16 * 1024
"""So few records go faster one by one than as columns."""
FEED_FILES_MAX = 16
PAGE_LOOK_S = 1.0
"""How often a worker looks whether the writer's page is still that of this name."""


class LogBounds(NamedTuple):
    """How far the log reaches, as `LogState` has it."""

    epoch: int
    min_offset: int
    readable: int
    flushed: int
    is_ending: bool = False
    """The writer stops, and waits for the workers to vouch for everything."""
    removals: int = 0
    """The number of the note of removed topics."""


class Feed:
    """The log as a handler and the dispatch loop see it."""

    log: LogReader
    _limits: LogBounds
    removed: Removed
    """The topics that were removed, as of the last `limits`: their records get no units."""
    window_bytes = WINDOW_BYTES
    """Log read at once; a handler that writes seldom may choose one that fits the caches."""

    def __init__(self, root: Path, on_window: Callable[[], None]) -> None:
        """`on_window` is called before each window, to show life."""
        self._folder = root / COMMIT_LOG_DIR
        self._on_window = on_window
        self._files = OpenFiles(FEED_FILES_MAX)

    def limits(self) -> LogBounds:
        """The present ends; what is read afterwards stays within them."""
        return self._limits

    def peek(self) -> LogBounds:
        """The present ends, and nothing else changes: for another thread."""
        return self._limits

    def close(self) -> None:
        """Closes what is open."""
        self._files.close()

    def columns(self, start: int, stop: int) -> Iterator[RecordColumns]:
        """The records that start in [start, stop), verified; `log.stopped` is what ended it."""
        for columns in self.log.columns(start, stop, self.window_bytes):
            self._on_window()
            yield columns

    def past_damage(self, start: int, stop: int) -> Iterator[RecordColumns | Damage]:
        """As `columns`, but goes on after damage where the next record proves itself."""
        for part in reader.columns_past_damage(
            self.log, start, stop, window_bytes=self.window_bytes
        ):
            self._on_window()
            yield part

    def hole(self, damage: Torn, not_before: int) -> Damage | None:
        """The damaged bytes at which `columns` broke off; None where no later record proves itself.

        `not_before`: the store time of the record before them.
        """
        resumed = reader.next_record(self.log, damage.position + 1, not_before)
        if resumed is None:
            return None
        return Damage(str(self.path_at(damage.position)), damage, resumed)

    def holes(self, start: int, stop: int) -> list[Damage]:
        """The damage in [start, stop), in the middle of a walk by `columns`."""
        met = self.log.stopped
        try:
            return [one for one in self.past_damage(start, stop) if isinstance(one, Damage)]
        finally:
            self.log.stopped = met

    def few(self, start: int, stop: int) -> list[Record] | None:
        """The records of [start, stop), verified; None unless they are few and together."""
        if stop - start > FEW_BYTES_MAX:
            return None
        return self.log.few(start, stop, FEW_RECORDS_MAX, reader.whole_record)

    def check(self, hint: str = "") -> None:
        """Raises StoreDamaged where `columns` broke off."""
        damage = self.log.stopped
        if damage is not None:
            path = self.path_at(damage.position)
            found = hint + see_all_damage(path)
            raise StoreDamaged(str(path), damage.position, damage.why, found)

    def path_at(self, offset: int) -> Path:
        """The segment that holds an offset, for messages."""
        found = self.log.segments.find(offset)
        return self._folder if found is None else found.path


class RestingFeed(Feed):
    """A store that nobody writes to: its end is where its records end."""

    def __init__(self, root: Path, on_window: Callable[[], None] = lambda: None) -> None:
        super().__init__(root, on_window)
        segments = open_segments(self._folder, self._files)
        condition = read_condition(root)
        self.removed = condition.removed
        end = find_tail(segments, condition).end
        self.log = LogReader(segments, Bounds(segments.start, end))
        epochs = load_epochs(root)
        self._limits = LogBounds(
            epoch=epochs[-1].epoch if epochs else 0,
            min_offset=self.log.min_offset,
            readable=self.log.end,
            flushed=min(load_floor(root), self.log.end),
            removals=self.removed.number,
        )


class LiveFeed(Feed):
    """The log of a running writer. Raises FileNotFoundError while no writer ever ran."""

    def __init__(self, root: Path, on_window: Callable[[], None] = lambda: None) -> None:
        super().__init__(root, on_window)
        self._root = root
        self._page = LogPage.open(root)
        self._page_look_at = 0.0
        self._limits = LogBounds(0, 0, 0, 0)
        self.removed = load_removed(root)

    def peek(self) -> LogBounds:
        try:
            state = self._page.read()
        except PageAbsent:
            return self._limits
        if state.epoch == 0:
            return self._limits
        return LogBounds(
            epoch=state.epoch,
            min_offset=state.min_offset,
            readable=state.readable,
            flushed=state.flushed,
            is_ending=state.state == STOPPING,
            removals=state.removals,
        )

    def limits(self) -> LogBounds:
        self._look_at_page()
        limits = self.peek()
        if limits.epoch == 0:
            return limits
        if limits.removals != self.removed.number:
            self.removed = load_removed(self._root)
        if limits.epoch != self._limits.epoch:
            self._open(limits)
        elif limits.readable > self.log.segments.end or limits.min_offset > self._limits.min_offset:
            self._again(lambda: self.log.segments.refresh(limits.min_offset))
        self.log.bounds.start, self.log.bounds.end = limits.min_offset, limits.readable
        self._limits = limits
        return limits

    def _look_at_page(self) -> None:
        """Opens the writer's page again when another file has taken its name.

        The thread that flushes may still read the old one, which goes with its last user.
        """
        now = time.monotonic()
        if now >= self._page_look_at:
            self._page_look_at = now + PAGE_LOOK_S
            if self._page.is_replaced:
                with suppress(FileNotFoundError):
                    self._page = LogPage.open(self._root)

    def _open(self, limits: LogBounds) -> None:
        """A reader without memory: a segment of the last epoch may be another file by now."""
        self._files.close()

        def listed() -> None:
            segments = open_segments(self._folder, self._files, limits.min_offset)
            self.log = LogReader(segments, Bounds(limits.min_offset, limits.readable))

        self._again(listed)

    @staticmethod
    def _again(look: Callable[[], None]) -> None:
        """Looks until the folder makes sense: the writer may be making or deleting a segment."""
        deadline = time.monotonic() + SEGMENT_APPEARS_S_MAX
        while True:
            try:
                return look()
            except StoreDamaged:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.01)

    def close(self) -> None:
        self._page.close()
        super().close()
