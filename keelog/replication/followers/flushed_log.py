"""What followers may get: the log up to where its writer has flushed it.

A master of RocketMQ sends what it has appended, so that a power cut can leave a slave ahead of it.
Bytes that are flushed here are here after a power cut too.
"""

import os
from contextlib import suppress
from pathlib import Path

from node.runtime.state_page import RECOVERING, STARTING, LogPage, LogState
from node.runtime.store_paths import open_regular
from protocol.names import COMMIT_LOG_DIR, offset_file_name


class FlushedLog:
    """Follows the writer's page. Offsets are as `look` found them last; zeros before."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._page: LogPage | None = None
        self.epoch = 0
        self.cut_at = 0
        """Where the current epoch began: nothing above is as it was before."""
        self.begin = 0
        self.end = 0
        """The end of what is flushed."""
        self.appended = 0
        self.segment_bytes = 0
        self._is_current = False
        """Whether the last look took in what the page says."""

    @property
    def is_known(self) -> bool:
        """Whether a writer has said yet how far the log reaches."""
        return self.epoch > 0 and self.segment_bytes > 0

    @property
    def has_grown(self) -> bool:
        """Whether more is flushed than `look` has found."""
        return self._is_current and self._page is not None and self._page.flushed > self.end

    @property
    def wants_acknowledged(self) -> int:
        """The log offset for which the writer wants a ring; 0: none."""
        return 0 if self._page is None else self._page.wants_acknowledged

    def look(self) -> None:
        """Takes in what the writer says. Keeps what is known while the writer starts: until it
        has recovered the log, its page may say less than there is."""
        state = self._state()
        self._is_current = (
            state is not None and state.epoch > 0 and state.state not in (STARTING, RECOVERING)
        )
        if state is None or not self._is_current:
            return
        self.epoch, self.cut_at = state.epoch, state.epoch_start
        self.begin, self.end = state.min_offset, min(state.flushed, state.appended)
        self.appended, self.segment_bytes = state.appended, state.segment_bytes

    def _state(self) -> LogState | None:
        with suppress(FileNotFoundError):
            if self._page is None:
                self._page = LogPage.open(self._root)
            return self._page.read()
        self.close()
        return None

    def look_for_page(self) -> None:
        """Lets go of a page whose name another file has by now. Call it now and then."""
        if self._page is not None and self._page.is_replaced:
            self.close()

    def open_segment(self, offset: int) -> tuple[int, int]:
        """Opens the segment that holds an offset: its descriptor, and where it begins.

        Raises OSError.
        """
        start = offset - offset % self.segment_bytes
        path = self._root / COMMIT_LOG_DIR / offset_file_name(start)
        return open_regular(path, os.O_RDONLY), start

    def close(self) -> None:
        """Gives the map back."""
        if self._page is not None:
            self._page.close()
            self._page = None
