"""A node whose wall clock a test sets (see clock.c).

with RunningNode(root, env=clock.env) as node:
    clock.set(hours=-2)
"""

import mmap
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.faults.disk_faults import build_library

_SOURCE = Path(__file__).with_name("clock.c")
_MS = struct.Struct("q")


class ShiftedClock:
    """The clock of every process that was started with `env`; it may be set at any time."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where there is no C compiler."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "shift"
        path.write_bytes(_MS.pack(0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _MS.size)
        library = build_library(folder, _SOURCE)
        self.env = {"LD_PRELOAD": str(library), "SHIFT_FILE": str(path)}

    def set(self, *, hours: float = 0.0, seconds: float = 0.0) -> None:
        """It is ahead of the real time by so much."""
        self._map[:] = _MS.pack(int((hours * 3600 + seconds) * 1000))

    @property
    def shift_ms(self) -> int:
        """By how much it is ahead."""
        return int(_MS.unpack(self._map[:])[0])

    def now_ms(self) -> int:
        """What it says."""
        return time.time_ns() // 1_000_000 + self.shift_ms

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._map.close()
