"""Our files of another store, or of another copy of the same one, put into a store.

It refuses to start and names one of them, or it keeps its own messages and numbers no place twice.
"""

import shutil
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as search
from hypothesis import strategies as st

from node.store.checkpoints import load_tails
from node.store.opening import open_store
from node.store.verify.verify import verify
from protocol.errors import StoreDamaged
from protocol.record.encode import NewMessage
from tests.support.owned_store import FIRST_TIME, Owner, settings
from tests.support.two_stores import own_names, put, take_ids_away
from workers.rebuild import rebuild

COUNT, MORE = 60, 20
BODY_BYTES = 300
ENDS = ("stop", "kill")
Place = tuple[str, int, int]


def messages(mark: bytes, count: int, step: int, first: int = 0) -> list[NewMessage]:
    """All of one size; `step` says how they are spread over four queues."""
    return [
        NewMessage("orders", (mark + b"%06d " % number).ljust(BODY_BYTES, b"."), number * step % 4)
        for number in range(first, first + count)
    ]


def life(root: Path, mark: bytes, step: int, ends: str, later_ms: int, first: int = 0) -> None:
    """A writer that appends COUNT flushed messages, and whose queue files are there."""
    owner = Owner(root)
    owner.now_ms = FIRST_TIME + later_ms
    owner.append(messages(mark, COUNT, step, first))
    owner.flush()
    owner.stop() if ends == "stop" else owner.kill()
    rebuild(root, index=False, settings=replace(settings(), mapped_file_size_consume_queue=400))


def content(root: Path) -> dict[Place, bytes]:
    """Every message by topic, queue and queue offset. Fails where two have one place."""
    found: dict[Place, bytes] = {}
    counts: dict[tuple[str, int], int] = defaultdict(int)
    with open_store(root, settings()) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            for offset in columns.physical_offset.tolist():
                record = store.log.record_at(offset)
                queue, number = (record.topic, record.head.queue_id), record.head.queue_offset
                assert number == counts[queue], f"{queue}: {number} is given where it must not be"
                counts[queue] += 1
                found[(*queue, number)] = record.body
    return found


@dataclass
class Mixed:
    """Templates: one store and its file donor, and where both are tried."""

    ours: Path
    theirs: Path
    folder: Path
    number: int = 0

    def try_with(self, names: list[str]) -> str:
        """`refused` or `served`. Fails where neither holds."""
        self.number += 1
        root = self.folder / str(self.number)
        shutil.copytree(self.ours, root)
        for name in names:
            put(name, self.theirs, root)
        before = content(self.ours)
        try:
            owner = Owner(root)
        except StoreDamaged as error:
            assert Path(error.where).is_relative_to(root / "keelog"), error
            assert not verify(root, settings=settings()).ok
            shutil.rmtree(root / "keelog")  # what the hint says
            owner = Owner(root)
            outcome = "refused"
        else:
            outcome = "served"
        owner.append(messages(b"new", MORE, 1))
        owner.flush()
        owner.stop()
        after = content(root)
        assert before.items() <= after.items()
        new = [body for place, body in after.items() if place not in before]
        assert sorted(new) == [message.body for message in messages(b"new", MORE, 1)]
        shutil.rmtree(root)
        return outcome


NAMES = (
    *("keelog/epochs", "keelog/floor", "keelog/tails", "keelog/clean", "abort"),
    *("keelog/progress/index", "keelog/progress/queue-0-of-1", "lock", "checkpoint"),
)


@pytest.fixture(scope="module", params=["with ids", "of the version before"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Mixed]:
    """Two stores of one shape, whose messages have other queues and times; all ends of both."""
    folder = tmp_path_factory.mktemp("pair")
    found = []
    for number, (end, other_end) in enumerate((a, b) for a in ENDS for b in ENDS):
        at = folder / str(number)
        life(at / "a", b"a", 1, end, 0)
        for later_ms, step in ((-5_000, 3), (0, 2), (5_000, 3)):
            name = f"b{later_ms}"
            life(at / name, b"b", step, other_end, later_ms)
            found.append(Mixed(at / "a", at / name, at / f"tried{later_ms}"))
            if request.param != "with ids":
                take_ids_away(at / name)
        if request.param != "with ids":
            take_ids_away(at / "a")
    return found


@given(data=st.data())
@search(max_examples=60, suppress_health_check=list(HealthCheck))
def test_any_files_of_another_store_are_refused_or_the_store_serves_its_own_messages(
    pair: list[Mixed], data: st.DataObject
) -> None:
    mixed = data.draw(st.sampled_from(pair))
    there = [name for name in NAMES if (mixed.theirs / name).exists()]
    names = data.draw(st.lists(st.sampled_from(there), unique=True, min_size=1))
    # `try_with` holds the messages of a store that is served, and the cause of a refusal.
    assert mixed.try_with(names) in ("served", "refused")


def test_the_snapshot_alone_of_another_store_is_ignored_and_its_folder_refused(
    tmp_path: Path,
) -> None:
    life(tmp_path / "a", b"a", 1, "stop", 0)
    life(tmp_path / "b", b"b", 2, "stop", 5)
    mixed = Mixed(tmp_path / "a", tmp_path / "b", tmp_path / "tried")
    assert mixed.try_with(["keelog/tails"]) == "served"
    assert mixed.try_with(["keelog"]) == "refused"
    assert mixed.try_with(["keelog", "lock"]) == "refused"
    assert [mixed.try_with([name]) for name in own_names(mixed.theirs)] == [
        *("served", "refused", "refused", "served")
    ]


@pytest.mark.parametrize("names", [["keelog/tails"], ["keelog"], ["keelog", "lock"]], ids=str)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_files_of_a_copy_that_went_on_by_itself_are_refused(
    tmp_path: Path, names: list[str], step: int
) -> None:
    """Both copies have one id: the log tells them apart."""
    life(tmp_path / "a", b"common", 1, "stop", 0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    life(tmp_path / "a", b"a", 1, "stop", 10, COUNT)
    life(tmp_path / "b", b"b", step, "stop", 20, COUNT)
    mixed = Mixed(tmp_path / "a", tmp_path / "b", tmp_path / "tried")
    assert mixed.try_with(names) == "refused"


def test_a_copy_that_did_not_go_on_may_lend_its_files(tmp_path: Path) -> None:
    life(tmp_path / "a", b"a", 1, "stop", 0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert load_tails(tmp_path / "a") == load_tails(tmp_path / "b")
    mixed = Mixed(tmp_path / "a", tmp_path / "b", tmp_path / "tried")
    assert mixed.try_with(["keelog", "lock"]) == "served"
