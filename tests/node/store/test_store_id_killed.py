"""A store of the version before ids gets its own: killed or robbed of power anywhere on the way."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from node.runtime import disk
from node.store.checkpoints import load_lock_id
from node.store.identity.store_id import check_guards, ensure_id
from tests.crash.images import images
from tests.crash.sim_disk import SimDisk, Stopped, Tree, in_place_of_os
from tests.crash.slate import Slate
from tests.node.store.test_store_id import all_that_is_read, make
from tests.node.writer.test_recovery_killed import _KilledError, dying_os
from tests.support.owned_store import Owner, recovered, some
from tests.support.two_stores import ids_in, take_ids_away

IMAGES = 16


def tree_below(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def old_store(root: Path) -> tuple[object, ...]:
    """Answers what its files say."""
    root.parent.mkdir()
    make(root)
    take_ids_away(root)
    return all_that_is_read(root)


def test_a_conversion_that_loses_power_at_any_call_is_done_by_the_next_start(
    tmp_path: Path,
) -> None:
    said = old_store(tmp_path / "made/store")
    tree, call, tried = tree_below(tmp_path / "made"), 0, 0
    slate = Slate(tmp_path / "slate")
    root, is_over = slate.root / "store", False
    while not is_over:
        call += 1
        sim = SimDisk(tmp_path / "disk", call)
        sim.restart_from(tree)
        sim.stop_at = call
        with in_place_of_os(sim):
            try:
                ensure_id(sim.root / "store")
                is_over = True
            except Stopped:
                pass
        sim.abandon()
        for image in images(sim, str(call), IMAGES):
            tried += 1
            slate.lay_out(image.tree)
            check_guards(root)
            assert all_that_is_read(root) == said, image.name
            with in_place_of_os(slate):
                given = ensure_id(root)
            assert (ids_in(root), load_lock_id(root)) == ({given}, given), image.name
            assert all_that_is_read(root) == said, image.name
    assert call > 20
    assert tried > 100


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_an_old_store_whose_first_start_is_killed_at_any_change_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    old, root = tmp_path / "old", tmp_path / "store"
    owner = Owner(old)
    owner.append(some(20))
    owner.flush()
    owner.append(some(5, first=20))
    owner.stop() if ends == "stop" else owner.kill()
    take_ids_away(old)
    expected, killed, is_over = recovered(old), 0, False
    while not is_over:
        shutil.copytree(old, root)
        with suppress(_KilledError), monkeypatch.context() as patched:
            patched.setattr(disk, "os", dying_os(killed))
            owner = Owner(root)
            is_over = True
        if not is_over:
            found = recovered(root)
            assert (found.end, found.tails) == (expected.end, expected.tails), killed
            owner = Owner(root)
        assert owner.store.log.end == expected.end
        assert ids_in(root) == {load_lock_id(root)}
        owner.append(some(3, first=900))
        owner.kill()
        assert recovered(root).cut is None
        shutil.rmtree(root)
        killed += 1
    assert killed > 20
