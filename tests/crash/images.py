"""Which images a power loss may leave: named, and the same for the same seed."""

import random
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from tests.crash.disk_model import PAGE_BYTES, Page, SimDir, SimFile, walk
from tests.crash.sim_disk import SimDisk, Tree

SECTOR_BYTES = 512
LINE_BYTES = 64
PRODUCT_PAGES_MAX = 3
PRODUCT_MAX = 64
TRIES_PER_IMAGE = 3
"""Where little is in doubt, most random images are alike; the same one is not tried twice."""

PageKey = tuple[int, int]
"""id of the file's node, number of the page."""


class Image(NamedTuple):
    """What is on disk. The same disk, seed and name give the same tree."""

    name: str
    tree: Tree


class Chooser:
    """How one image decides about each page, length and name. This one: as it was durable."""

    def page(self, _key: PageKey, page: Page) -> bytes:
        """The content of a page."""
        return page.base

    def length(self, file: SimFile) -> int:
        """One of a file's lengths."""
        return file.length

    def meaning(self, _path: str, _meanings: int) -> int:
        """Which of a name's meanings."""
        return 0


class Everything(Chooser):
    """All that was written; `other` pages alone are as they were durable, or they alone are not."""

    def __init__(
        self,
        names: bool = True,
        but: PageKey | None = None,
        only: PageKey | None = None,
        lost_sectors: frozenset[int] = frozenset(),
    ) -> None:
        self._names = names
        self._but = but
        self._only = only
        self._lost_sectors = lost_sectors

    def page(self, key: PageKey, page: Page) -> bytes:
        last = page.versions[-1] if page.versions else page.base
        if self._only is not None and key != self._only:
            return page.base
        if key == self._but:
            return mixed(page.base, last, self._lost_sectors) if self._lost_sectors else page.base
        return last

    def length(self, file: SimFile) -> int:
        return len(file.live)

    def meaning(self, _path: str, meanings: int) -> int:
        return meanings - 1 if self._names else 0


class Versions(Chooser):
    """These versions of these pages; lengths and names as they are now."""

    def __init__(self, versions: dict[PageKey, int]) -> None:
        self._versions = versions

    def page(self, key: PageKey, page: Page) -> bytes:
        return page.version(self._versions[key])

    def length(self, file: SimFile) -> int:
        return len(file.live)

    def meaning(self, _path: str, meanings: int) -> int:
        return meanings - 1


class AnyImage(Chooser):
    """At random, but with one temper for the whole image: pages written late, early, torn often."""

    def __init__(self, rnd: random.Random) -> None:
        self._random = rnd
        self._newest = rnd.choice([0.0, 0.3, 0.6, 0.9])
        self._torn = rnd.choice([0.0, 0.3, 0.7])
        self._names_now = rnd.choice([1.0, 0.7, 0.3])

    def page(self, _key: PageKey, page: Page) -> bytes:
        rnd, count = self._random, len(page.versions)
        number = count if rnd.random() < self._newest else rnd.randrange(count + 1)
        content = page.version(number)
        if count and rnd.random() < self._torn:
            other = page.version(rnd.randrange(count + 1))
            if rnd.random() < 0.5:
                cut = LINE_BYTES * rnd.randrange(PAGE_BYTES // LINE_BYTES)
                content = other[:cut] + content[cut:]
            else:
                content = mixed(other, content, tear(rnd))
        return content

    def length(self, file: SimFile) -> int:
        lengths = [file.length, *file.lengths]
        return lengths[-1] if self._random.random() < 0.7 else self._random.choice(lengths)

    def meaning(self, _path: str, meanings: int) -> int:
        rnd = self._random
        return meanings - 1 if rnd.random() < self._names_now else rnd.randrange(meanings)


def tear(rnd: random.Random) -> frozenset[int]:
    """The sectors of a page that did not make it: the head, the tail, one, or any."""
    count = PAGE_BYTES // SECTOR_BYTES
    at = rnd.randrange(1, count)
    whole = range(count)
    kind = rnd.randrange(4)
    if kind == 0:
        return frozenset(whole[:at])
    if kind == 1:
        return frozenset(whole[at:])
    if kind == 2:
        return frozenset({at})
    return frozenset(n for n in whole if rnd.random() < 0.5)


def mixed(old: bytes, new: bytes, lost: frozenset[int]) -> bytes:
    """`new`, with the `lost` sectors of `old`."""
    content = bytearray(new)
    for sector in lost:
        at = sector * SECTOR_BYTES
        content[at : at + SECTOR_BYTES] = old[at : at + SECTOR_BYTES]
    return bytes(content)


def pending_pages(sim: SimDisk) -> dict[PageKey, tuple[str, Page]]:
    """All pages of which disk and cache may differ."""
    found: dict[PageKey, tuple[str, Page]] = {}
    for path, file in sim.files():
        for number, page in sorted(file.pages.items()):
            found.setdefault((id(file), number), (f"{path}#{number}", page))
    return found


def _choosers(sim: SimDisk, rnd: random.Random) -> Iterator[tuple[str, Chooser]]:
    """The plain ones: none, all, all but one page, one page alone, one page torn."""
    pages = pending_pages(sim)
    yield "none", Chooser()
    yield "all", Everything()
    yield "all, no name", Everything(names=False)
    keys = list(pages)
    rnd.shuffle(keys)
    combinations = 1
    for key in keys:
        combinations *= len(pages[key][1].versions) + 1
    if len(keys) <= PRODUCT_PAGES_MAX and combinations <= PRODUCT_MAX:
        ranges = [range(len(pages[key][1].versions) + 1) for key in keys]
        for numbers in product(*ranges):
            yield f"versions {numbers}", Versions(dict(zip(keys, numbers, strict=True)))
    for key in keys:
        name = pages[key][0]
        yield f"all but {name}", Everything(but=key)
        yield f"only {name}", Everything(only=key)
        for _ in range(2):
            lost = tear(rnd)
            yield (
                f"all but sectors {sorted(lost)} of {name}",
                Everything(but=key, lost_sectors=lost),
            )


def images(sim: SimDisk, seed: str, count: int) -> Iterator[Image]:
    """At most `count` different images of the disk as it may be now, half of them plain ones."""
    rnd = random.Random(seed)
    plain = list(_choosers(sim, rnd))
    if len(plain) > count // 2:
        plain = plain[:3] + rnd.sample(plain[3:], max(count // 2 - 3, 0))
    seen: set[int] = set()
    for name, chooser in [*plain, *_at_random(seed, TRIES_PER_IMAGE * count)]:
        tree = tree_of(sim, chooser)
        mark = hash(tuple(tree.items()))
        if mark not in seen:
            seen.add(mark)
            yield Image(f"{seed} {name}", tree)
        if len(seen) == count:
            return


def _at_random(seed: str, count: int) -> Iterator[tuple[str, Chooser]]:
    for number in range(count):
        yield f"random {number}", AnyImage(random.Random(f"{seed}/{number}"))


def tree_of(sim: SimDisk, chooser: Chooser) -> Tree:
    """The files and folders that are there when each thing in doubt is as `chooser` says."""
    chosen: dict[tuple[int, str], SimFile | SimDir | None] = {}
    for path, folder, name, _ in walk(sim.tree):
        if name in folder.history and (id(folder), name) not in chosen:
            history = folder.history[name]
            chosen[id(folder), name] = history[chooser.meaning(path, len(history))]
    for rename in sim.renames:
        _keep_a_name(chosen, rename.source, rename.old, rename.target, rename.new)
    contents: dict[int, bytes] = {}
    tree: Tree = {}
    _fill(tree, sim.tree, "", chosen, chooser, contents)
    return tree


def _keep_a_name(
    chosen: dict[tuple[int, str], SimFile | SimDir | None],
    source: SimDir,
    old: str,
    target: SimDir,
    new: str,
) -> None:
    """A file that durably had a name and was renamed has its old or its new one."""
    before = source.history.get(old, [None])[0]
    after = chosen.get((id(target), new), target.live.get(new))
    if before is not None and after is not before and before in target.history.get(new, ()):
        chosen[id(source), old] = before


def _fill(
    tree: Tree,
    folder: SimDir,
    prefix: str,
    chosen: dict[tuple[int, str], SimFile | SimDir | None],
    chooser: Chooser,
    contents: dict[int, bytes],
) -> None:
    for name in sorted({*folder.live, *folder.history}):
        node = chosen.get((id(folder), name), folder.live.get(name))
        if isinstance(node, SimFile):
            if id(node) not in contents:
                contents[id(node)] = _content(node, chooser)
            tree[prefix + name] = contents[id(node)]
        elif node is not None:
            tree[prefix + name] = None
            _fill(tree, node, f"{prefix}{name}/", chosen, chooser, contents)


def _content(file: SimFile, chooser: Chooser) -> bytes:
    if not file.pages and not file.lengths:
        return bytes(file.live)
    length = chooser.length(file)
    content = bytearray(file.live)
    for number, page in sorted(file.pages.items()):
        start = number * PAGE_BYTES
        if len(content) < start + PAGE_BYTES:
            content.extend(bytes(start + PAGE_BYTES - len(content)))
        content[start : start + PAGE_BYTES] = chooser.page((id(file), number), page)
    return bytes(content[:length].ljust(length, b"\0"))
