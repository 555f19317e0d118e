"""The id of a store: where it stands, who gets it, and which files it rules out."""

import shutil
from pathlib import Path

import pytest

from node.store.checkpoints import (
    EpochLine,
    Floor,
    Tails,
    WorkerCheckpoint,
    is_clean,
    load_epochs,
    load_floor,
    load_lock_id,
    load_owner,
    load_progress,
    load_store_id,
    load_tails,
    mark_clean,
    new_store_id,
    save_epochs,
    save_lock_id,
    save_owner,
    save_progress,
    save_tails,
)
from node.store.identity.store_id import check_guards, ensure_id, strangers
from node.store.staging_files import (
    Published,
    StagedBatch,
    load_published,
    published_path,
    save_published,
)
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from tests.support.two_stores import ids_in, own_names, put, take_ids_away

FILES = ("epochs", "floor", "tails", "clean", "progress/index")
STAGED = StagedBatch("q1", 3)


def make(root: Path) -> Path:
    """A store with an id, one of each of our files, and a published batch."""
    root.mkdir()
    ensure_id(root)
    save_epochs(root, [EpochLine(1, 0, crc=True), EpochLine(2, 500, crc=True)])
    floor = Floor(root)
    floor.save(700)
    floor.save(900)
    floor.close()
    save_tails(root, Tails(900, {Queue("a", 0): 7}, 800, 12))
    save_progress(root, "index", WorkerCheckpoint(2, 900))
    mark_clean(root, 2, 900)
    save_owner(root, 2)
    published_path(root, STAGED.query).parent.mkdir(parents=True)
    save_published(root, STAGED.query, Published(STAGED.number, 4, final=False))
    return root


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "a")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return make(tmp_path / "b")


def all_that_is_read(root: Path) -> tuple[object, ...]:
    """What the files say, as their readers have it."""
    return (
        load_epochs(root),
        load_floor(root),
        load_tails(root),
        load_progress(root, "index"),
        is_clean(root),
        load_owner(root),
        load_published(root, STAGED.query),
    )


def test_every_file_of_ours_carries_the_id_that_lock_holds(store: Path) -> None:
    found = load_lock_id(store)
    assert found is not None
    assert ids_in(store) == {found}
    assert (store / "abort").read_text().split()[-1] == found
    assert load_store_id(store) == (found, True)
    assert (store / "lock").read_bytes().startswith(b"lock keelog ")


def test_two_stores_have_two_ids_and_a_copy_has_its_own(store: Path, other: Path) -> None:
    assert load_lock_id(store) != load_lock_id(other)
    copy = store.parent / "copy"
    shutil.copytree(store, copy)
    assert ensure_id(copy) == load_lock_id(store)
    assert all_that_is_read(copy) == all_that_is_read(store)


def test_the_id_outlives_a_broker_that_writes_its_word_into_lock(store: Path) -> None:
    before = load_lock_id(store)
    with (store / "lock").open("r+b") as file:
        file.write(b"lock")
    assert load_lock_id(store) == before


@pytest.mark.parametrize("lock", [b"", b"lock", b"lock keelog " + b"0" * 32 + b" 00000000\n", None])
def test_a_store_whose_lock_lost_the_id_gets_it_back_from_epochs(
    store: Path, lock: bytes | None
) -> None:
    before, said = load_lock_id(store), all_that_is_read(store)
    (store / "lock").unlink()
    if lock is not None:
        (store / "lock").write_bytes(lock)
    assert load_lock_id(store) is None
    assert all_that_is_read(store) == said
    assert ensure_id(store) == before == load_lock_id(store)


def test_any_byte_changed_in_the_id_of_lock_makes_it_no_id(store: Path) -> None:
    good = (store / "lock").read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        (store / "lock").write_bytes(bad)
        assert load_lock_id(store) is None


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_store_is_refused_or_counts_as_missing(
    store: Path, other: Path, name: str
) -> None:
    ids = [load_lock_id(root) for root in (store, other)]
    put(f"keelog/{name}", other, store)
    if name in ("epochs", "floor"):
        before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
        with pytest.raises(StoreDamaged) as caught:
            check_guards(store)
        assert caught.value.where == str(store / "keelog" / name)
        assert all(str(store_id) in caught.value.found for store_id in ids)
        assert "move keelog/ aside" in caught.value.hint
        assert before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    else:
        check_guards(store)
        missing = {"tails": load_tails(store), "clean": is_clean(store) or None}
        assert missing.get(name, load_progress(store, "index")) is None
        ensure_id(store)
        assert not (store / "keelog" / name).exists()
        assert (store / "keelog/quarantine/0" / Path(name).name).exists()
        assert strangers(store) == ([], [])


def test_a_foreign_file_is_ignored_with_a_line_that_names_it_and_both_ids(
    store: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put("keelog/tails", other, store)
    assert load_tails(store) is None
    [record] = caplog.records
    told = record.__dict__["fields"]
    assert told["file"] == store / "keelog/tails"
    assert (told["its_store"], told["this_store"]) == (load_lock_id(other), load_lock_id(store))


def test_one_slot_of_another_stores_floor_is_refused(store: Path, other: Path) -> None:
    mixed = (store / "keelog/floor").read_bytes()[:512]
    mixed += (other / "keelog/floor").read_bytes()[512:]
    (store / "keelog/floor").write_bytes(mixed)
    with pytest.raises(StoreDamaged):
        check_guards(store)


def test_another_stores_whole_folder_is_refused_and_without_it_the_store_starts(
    store: Path, other: Path
) -> None:
    ours = load_lock_id(store)
    put("keelog", other, store)
    with pytest.raises(StoreDamaged, match="keelog/epochs"):
        check_guards(store)
    shutil.rmtree(store / "keelog")
    check_guards(store)
    assert ensure_id(store) == ours


def test_another_stores_mark_in_abort_is_not_ours(store: Path, other: Path) -> None:
    put("abort", other, store)
    assert load_owner(store) is None


def test_another_stores_published_batch_is_damage_and_never_forgotten(
    store: Path, other: Path
) -> None:
    put("keelog/staging/q1/published", other, store)
    ensure_id(store)
    with pytest.raises(StoreDamaged, match="it is of store"):
        load_published(store, STAGED.query)


def test_a_store_of_the_version_before_gets_an_id_and_says_the_same(store: Path) -> None:
    before = load_lock_id(store)
    said = all_that_is_read(store)
    take_ids_away(store)
    assert ids_in(store) == {None}
    assert all_that_is_read(store) == said
    check_guards(store)
    given = ensure_id(store)
    assert given not in (None, before)
    assert ids_in(store) == {given}
    assert load_lock_id(store) == given
    assert all_that_is_read(store) == said
    assert oct((store / "keelog/floor").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("name", FILES)
def test_once_a_store_has_an_id_a_file_without_one_is_foreign(
    store: Path, other: Path, name: str
) -> None:
    take_ids_away(other)
    put(f"keelog/{name}", other, store)
    assert [path.name for found in strangers(store) for path, _ in found] == [Path(name).name]


def test_a_foreign_file_in_a_store_without_an_id_is_refused_or_moved_aside_too(
    store: Path, other: Path
) -> None:
    take_ids_away(store)
    said = load_epochs(store)
    put("keelog/tails", other, store)
    assert load_tails(store) is None
    ensure_id(store)
    assert not (store / "keelog/tails").exists()
    assert load_epochs(store) == said


def test_a_store_that_is_only_read_is_not_changed(store: Path, other: Path) -> None:
    put("keelog/tails", other, store)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    all_that_is_read(store)
    strangers(store)
    assert before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_every_sealed_file_that_a_store_has_is_known_to_the_conversion(store: Path) -> None:
    assert own_names(store) == sorted(f"keelog/{name}" for name in FILES)


def test_ids_are_random(tmp_path: Path) -> None:
    assert len({new_store_id() for _ in range(1000)}) == 1000
    save_lock_id(tmp_path, "0" * 32)
    assert load_lock_id(tmp_path) == "0" * 32
