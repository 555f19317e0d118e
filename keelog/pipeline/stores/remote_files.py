"""Files that are read by ranges from elsewhere: a node, or an object store.

They take the place of a store's open files (`node.store.file_cache`), so that one decoder reads
both. Nothing is mapped, nothing is kept but the windows that a task is about to read.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from node.store.file_cache import OpenFile, OpenFiles, Run
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.errors import StoreDamaged

_PROBE_BYTES = UNIT_BYTES
_HINT = "load() again to plan with what is there now"


Pending = Callable[[], bytes]
"""A request that is under way: waits for its bytes, fewer where the file, or what may be read of
it, ends. Raises FileVanished, StoreDamaged, NotConnected, StoreUnreadable."""


@dataclass(frozen=True, slots=True)
class RangeSource:
    """Reads ranges of files, several at a time. `gap_bytes`: a smaller gap is read along.

    `request` asks for bytes of a file: its path, a position, and how many, at most `window_bytes`.
    """

    window_bytes: int
    in_flight: int
    gap_bytes: int
    request: Callable[[Path, int, int], Pending]


class _Window(NamedTuple):
    path: Path
    start: int
    end: int


class RemoteFile(OpenFile):
    """One file of a source. `size` is what it should have."""

    def __init__(self, path: Path, size: int, files: "RemoteFiles") -> None:
        self.path = path
        self.size = size
        self._of = files

    def check(self) -> None:
        """Raises FileVanished when it is gone."""
        self._of.source.request(self.path, 0, min(_PROBE_BYTES, self.size))()

    def check_linked(self) -> None:
        """Nothing stays open that could be gone."""

    def check_readable(self) -> None:
        """Nothing is mapped."""

    def read(self, position: int, count: int) -> bytes:
        """Exactly `count` bytes. Raises StoreDamaged when they are not all there, FileVanished."""
        assert 0 <= position <= position + count <= self.size
        return self._of.read(self.path, position, count)

    def expect(self, start: int, end: int) -> None:
        """Begins to read ahead."""
        self._of.expect(self.path, start, min(end, self.size))

    def view(self) -> NoReturn:
        """There is nothing to map."""
        raise AssertionError(f"{self.path} cannot be mapped")

    def close(self) -> None:
        """Nothing is open."""


class RemoteFiles(OpenFiles):
    """The files of one source; what is expected is asked for before it is read."""

    joins_pieces = False

    def __init__(self, source: RangeSource) -> None:
        super().__init__(maps=False)
        self.source = source
        self.gap_bytes = source.gap_bytes
        # Units must not be cut: positions in queue files are multiples of their size.
        self._step = source.window_bytes - source.window_bytes % UNIT_BYTES
        self._wanted: deque[_Window] = deque()
        self._started: deque[tuple[_Window, Pending]] = deque()

    def _open(self, path: Path, size: int) -> OpenFile:
        return RemoteFile(path, size, self)

    def expect(self, path: Path, start: int, end: int) -> None:
        """These bytes will be read, in order; what was expected before will not."""
        self._wanted.clear()
        self._started.clear()
        self._wanted.extend(self._windows(path, start, end))
        self._go_on()

    def _windows(self, path: Path, start: int, end: int) -> list[_Window]:
        cuts = range(start, end, self._step)
        return [_Window(path, at, min(at + self._step, end)) for at in cuts]

    def _request(self, window: _Window) -> Pending:
        return self.source.request(window.path, window.start, window.end - window.start)

    def _go_on(self) -> None:
        while self._wanted and len(self._started) < self.source.in_flight:
            window = self._wanted.popleft()
            self._started.append((window, self._request(window)))

    def read(self, path: Path, position: int, count: int) -> bytes:
        """Exactly `count` bytes, from what was expected or asked for now."""
        pieces: list[bytes | memoryview] = []
        end = position + count
        while position < end:
            data = self._expected(path, position, end)
            if data is None:
                pieces += self._ask(self._windows(path, position, end))
                break
            pieces.append(data)
            position += len(data)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def _expected(self, path: Path, position: int, end: int) -> memoryview | None:
        """Bytes from `position` on out of the window that has it; those before it are done."""
        if not any(_has(window, path, position) for window, _ in self._started):
            return None
        while not _has(self._started[0][0], path, position):
            self._started.popleft()
        window, pending = self._started[0]
        data = _whole(window, pending)
        self._go_on()
        return memoryview(data)[position - window.start : end - window.start]

    def read_runs(self, runs: Sequence[Run]) -> list[bytes]:
        """Several runs of bytes, asked for together."""
        cut = [self._windows(run.path, run.position, run.position + run.count) for run in runs]
        parts = iter(self._ask([window for windows in cut for window in windows]))
        return [b"".join([next(parts) for _ in windows]) for windows in cut]

    def _ask(self, windows: Sequence[_Window]) -> list[bytes]:
        asked: deque[tuple[_Window, Pending]] = deque()
        found: list[bytes] = []
        for window in windows:
            if len(asked) >= self.source.in_flight:
                found.append(_whole(*asked.popleft()))
            asked.append((window, self._request(window)))
        return found + [_whole(window, pending) for window, pending in asked]

    def close(self) -> None:
        """Forgets what is under way."""
        self._wanted.clear()
        self._started.clear()
        super().close()


def _has(window: _Window, path: Path, position: int) -> bool:
    return window.path == path and window.start <= position < window.end


def _whole(window: _Window, pending: Pending) -> bytes:
    data = pending()
    if len(data) < window.end - window.start:
        raise StoreDamaged(str(window.path), window.start + len(data), "ends here", _HINT)
    return data
