"""Power losses at named places: within a record, at its last byte, in a blank, in the wrong order,
and on a disk that lies."""

from pathlib import Path

import pytest

from node.writer.recovery import examine
from protocol.errors import StoreDamaged
from protocol.names import offset_file_name
from protocol.record.codec import FILLER_BYTES, Filler, decode
from tests.crash.disk_model import Page, SimFile
from tests.crash.images import Chooser, Everything, Image, PageKey, pending_pages
from tests.crash.scene import Scene
from tests.crash.sim_disk import Tree

SEGMENT_BYTES = 2048
BYTES_STRIDE = 11
"""Of the cuts within a record; at its end, where the checksum is, every byte is one."""


def with_bytes(scene: Scene, tree: Tree, offset: int, data: bytes) -> Tree:
    """An image whose log has other bytes at an offset."""
    base = offset - offset % scene.truth.segment_bytes
    path = f"store/commitlog/{offset_file_name(base)}"
    content = tree[path]
    assert content is not None
    at = offset - base
    return {**tree, path: content[:at] + data + content[at + len(data) :]}


def written_but_not_flushed(scene: Scene, requests: int) -> Tree:
    """Three requests that are acknowledged, then some that are not; all is on disk."""
    with scene.on_disk():
        life = scene.start()
        scene.append(life, 3)
        scene.append(life, requests, flush=False)
        scene.crash(life)
    return scene.image(Everything())


def test_a_record_torn_anywhere_is_cut_and_nothing_else(fast_folder: Path) -> None:
    scene = Scene(fast_folder, SEGMENT_BYTES, seed=3)
    tree = written_but_not_flushed(scene, 2)
    before, end = scene.truth.ends[-2:]
    last = bytes(scene.truth.data[before:end])
    for kept in sorted({*range(0, len(last), BYTES_STRIDE), *range(len(last) - 24, len(last))}):
        zeros = bytes(len(last) - kept)
        if last[kept:] != zeros:
            name = f"{kept} bytes of the last record"
            scene.check(Image(name, with_bytes(scene, tree, before + kept, zeros)))
            with scene.on_disk():
                assert examine(scene.slate_root, scene.settings).end == before, name


def test_the_last_byte_of_the_checksum_counts(fast_folder: Path) -> None:
    scene = Scene(fast_folder, SEGMENT_BYTES, seed=3)
    tree = written_but_not_flushed(scene, 2)
    before, end = scene.truth.ends[-2:]
    assert scene.truth.data[end - 1] == 2
    scene.check(Image("without \\x02", with_bytes(scene, tree, end - 1, b"\0")))
    assert examine(scene.slate_root, scene.settings).end == before


def test_a_torn_blank_ends_the_log_and_what_follows_never_revives(fast_folder: Path) -> None:
    scene = Scene(fast_folder, SEGMENT_BYTES, seed=3)
    tree = written_but_not_flushed(scene, 12)
    blanks = [
        start
        for start in scene.truth.ends[:-1]
        if start >= scene.truth.required
        and isinstance(decode(bytes(scene.truth.data[start : start + FILLER_BYTES]), 0), Filler)
    ]
    assert blanks
    for lost in range(1, FILLER_BYTES + 1):
        torn = with_bytes(scene, tree, blanks[0] + FILLER_BYTES - lost, bytes(lost))
        scene.check(Image(f"{lost} bytes of the blank lost", torn))
        with scene.on_disk():
            assert examine(scene.slate_root, scene.settings).end == blanks[0]


def test_a_later_record_never_revives_behind_a_torn_one(fast_folder: Path) -> None:
    """Needs two crashes: the log grows again exactly up to the old, whole record."""
    scene = Scene(fast_folder, SEGMENT_BYTES, seed=3)
    tree = written_but_not_flushed(scene, 6)
    first = scene.truth.required
    size = scene.truth.ends[scene.truth.ends.index(first) + 1] - first
    scene.sim.restart_from(with_bytes(scene, tree, first, bytes(size)))
    for _ in range(5):
        with scene.on_disk():
            life = scene.start()
            scene.append(life, 1)
            scene.crash(life)
        scene.check(Image("grown by one", scene.image(Everything())))


class LogIsLost(Chooser):
    """The disk kept our small files and dropped what was written to the log."""

    def __init__(self, log_pages: set[PageKey]) -> None:
        self._log_pages = log_pages

    def page(self, key: PageKey, page: Page) -> bytes:
        return page.base if key in self._log_pages else page.versions[-1]

    def length(self, file: SimFile) -> int:
        return len(file.live)

    def meaning(self, _path: str, meanings: int) -> int:
        return meanings - 1


def test_a_disk_that_lied_is_refused_and_nothing_is_changed(fast_folder: Path) -> None:
    scene = Scene(fast_folder, SEGMENT_BYTES, seed=3)
    with scene.on_disk():
        life = scene.start()
        scene.append(life, 3)
        scene.sim.lies = True
        scene.append(life, 3)
        scene.crash(life)
    scene.sim.lies = False
    promised = scene.truth.required
    pages = pending_pages(scene.sim)
    lost = {key for key, (path, _) in pages.items() if "/commitlog/" in path}
    assert lost
    tree = scene.image(LogIsLost(lost))
    scene.sim.restart_from(tree)
    with scene.on_disk(), pytest.raises(StoreDamaged) as caught:
        scene.start()
    assert caught.value.offset < promised
    assert scene.image(Everything()) == tree
