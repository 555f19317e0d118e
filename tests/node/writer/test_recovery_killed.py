"""A start that is killed at any call that changes a file: the next one finds the same log."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.runtime import disk
from tests.support.owned_store import Owner, overwrite, record_at, recovered, some

CHANGES = (
    *("open", "pwrite", "fdatasync", "fsync", "replace", "unlink", "makedirs"),
    *("posix_fallocate", "ftruncate"),
)


class _KilledError(BaseException):
    """Nobody catches it."""


def dying_os(after: int) -> Any:
    """`os` whose calls that change something end the process at the `after`-th."""
    left = [after]

    def dying(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise _KilledError
            return getattr(os, name)(*arguments, **named)

        return call

    members = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
    return SimpleNamespace(**{**members, **{name: dying(name) for name in CHANGES}})


def torn_store(root: Path) -> int:
    """A log of some segments whose end is torn, with whole records behind; answers its end."""
    owner = Owner(root)
    owner.append(some(10))
    owner.flush()
    offsets = owner.append(some(160, first=10))
    owner.kill()
    bad = offsets[20]
    overwrite(root, bad + 100, bytes(record_at(root, bad).size - 100))
    return bad


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_start_killed_at_any_change_is_done_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = tmp_path / "torn"
    end = torn_store(torn)
    expected = recovered(torn)
    assert expected.end == end
    assert expected.records_behind > 100
    killed = 0
    while True:
        root = tmp_path / "store"
        shutil.copytree(torn, root)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(disk, "os", dying_os(killed))
                owner = Owner(root)
        except _KilledError:
            found = recovered(root)
            assert (found.end, found.tails) == (expected.end, expected.tails), killed
            owner = Owner(root)
            last = False
        else:
            last = True
        assert owner.store.log.end == end
        owner.append(some(3, first=900))
        owner.kill()
        assert recovered(root).cut is None
        shutil.rmtree(root)
        if last:
            break
        killed += 1
    assert killed > 20
