"""What a disk may hold of a file or folder that was written to: page by page, name by name.

A page that was written since its last sync has versions. Any of them may be on disk, whatever the
other pages hold; so may each length and each meaning of a name. A sync makes durable what had been
written when it began. One that fails clears the dirty marks all the same, as Linux does.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

PAGE_BYTES = 4096


class Page:
    """A page that may differ between cache and disk: `base`, then a version for each write."""

    __slots__ = ("base", "dirty", "versions")

    def __init__(self, base: bytes) -> None:
        self.base = base
        self.versions: list[bytes] = []
        self.dirty = True

    def version(self, number: int) -> bytes:
        """0: what is durable; then as the writes left it."""
        return self.versions[number - 1] if number else self.base


class SyncBegun(NamedTuple):
    """What a sync that has begun will make durable."""

    versions: dict[int, int]
    lengths: int


class SimFile:
    """A file: `live` is what processes read, the rest tells what a power loss may leave."""

    def __init__(self, content: bytes = b"") -> None:
        self.live = bytearray(content)
        self.length = len(content)
        self.lengths: list[int] = []
        """The lengths that it got since `length` was durable."""
        self.pages: dict[int, Page] = {}

    def write(self, position: int, data: bytes) -> None:
        """A write is seen at once by everybody; on disk it is when a sync says so."""
        end = position + len(data)
        touched = self._touch(position, end)
        if end > len(self.live):
            self.live.extend(bytes(end - len(self.live)))
            self.lengths.append(end)
        self.live[position:end] = data
        self._note(touched)

    def set_length(self, length: int) -> None:
        """Cut, or grown by zeros."""
        old = len(self.live)
        if length == old:
            return
        touched = self._touch(length, old) if length < old else ()
        if length < old:
            del self.live[length:]
        else:
            self.live.extend(bytes(length - old))
        self.lengths.append(length)
        self._note(touched)

    def _touch(self, start: int, end: int) -> range:
        numbers = range(start // PAGE_BYTES, -(-end // PAGE_BYTES))
        for number in numbers:
            if number not in self.pages:
                self.pages[number] = Page(self._page(number))
        return numbers

    def _note(self, numbers: range | tuple[()]) -> None:
        for number in numbers:
            page = self.pages[number]
            page.versions.append(self._page(number))
            page.dirty = True

    def _page(self, number: int) -> bytes:
        start = number * PAGE_BYTES
        return bytes(self.live[start : start + PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")

    def begin_sync(self) -> SyncBegun:
        """What is written from now on stays for the next one."""
        dirty = {n: len(page.versions) for n, page in self.pages.items() if page.dirty}
        return SyncBegun(dirty, len(self.lengths))

    def end_sync(self, begun: SyncBegun, succeeded: bool) -> None:
        """A sync that failed leaves everything in doubt, and nothing marked as dirty."""
        for number, count in begun.versions.items():
            page = self.pages[number]
            if not succeeded:
                page.dirty = len(page.versions) > count
                continue
            page.base = page.version(count)
            del page.versions[:count]
            if not page.versions:
                del self.pages[number]
        if succeeded and begun.lengths:
            self.length = self.lengths[begun.lengths - 1]
            del self.lengths[: begun.lengths]

    def lost_pages(self) -> list[int]:
        """Pages whose write-back failed: clean in the cache, who knows what on disk."""
        return [number for number, page in self.pages.items() if not page.dirty]

    def evict(self, number: int, version: int) -> None:
        """The cache forgets a clean page: from now on all read what the disk has."""
        page = self.pages.pop(number)
        start = number * PAGE_BYTES
        stop = min(start + PAGE_BYTES, len(self.live))
        self.live[start:stop] = page.version(version)[: stop - start]


Node = "SimFile | SimDir"


@dataclass
class SimDir:
    """A folder: what each name stands for, and what it may stand for after a power loss."""

    live: "dict[str, SimFile | SimDir]" = field(default_factory=dict)
    history: "dict[str, list[SimFile | SimDir | None]]" = field(default_factory=dict)
    """For names that changed: what they stood for, durably first, now last. None: nothing."""

    def change(self, name: str, node: "SimFile | SimDir | None") -> None:
        """A name gets another meaning."""
        self.history.setdefault(name, [self.live.get(name)]).append(node)
        if node is None:
            del self.live[name]
        else:
            self.live[name] = node

    def sync(self) -> None:
        """All names are durable."""
        self.history.clear()


class Rename(NamedTuple):
    """One that may not be durable yet. Afterwards a file has its old name or its new one."""

    source: SimDir
    old: str
    target: SimDir
    new: str
    node: "SimFile | SimDir"


def walk(
    folder: SimDir, prefix: str = "", seen: set[int] | None = None
) -> "Iterator[tuple[str, SimDir, str, SimFile | SimDir]]":
    """(path, folder, name, node) of all that stands or may stand below a folder, in order.

    A node with several names comes with each of them.
    """
    seen = seen if seen is not None else set()
    for name in sorted({*folder.live, *folder.history}):
        nodes = [*folder.history.get(name, ()), folder.live.get(name)]
        unique = {id(node): node for node in nodes if node is not None}
        for node in unique.values():
            yield prefix + name, folder, name, node
            if isinstance(node, SimDir) and id(node) not in seen:
                seen.add(id(node))
                yield from walk(node, f"{prefix}{name}/", seen)
