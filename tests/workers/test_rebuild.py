"""Queues and index are functions of the log: what is rebuilt equals what RocketMQ wrote."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.store.checkpoints import WorkerCheckpoint, load_progress, save_progress
from protocol.errors import NotAStore, StoreDamaged, StoreLocked
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from tests.support.golden import GetStore, facts
from tests.workers.living_log import SETTINGS, LivingLog
from workers.rebuild import rebuild

REBUILT = {
    "small-clean": "files",
    "small-clean-533": "files",
    "mixed-kinds": "files",
    "crc32-property": "files",
    "default-sizes": "files",
    "cq-missing": "files_after",
    "trimmed-cq-missing": "files_after",
}


def settings_of(name: str) -> Settings:
    config = facts(name).state["config"]
    return Settings(
        mapped_file_size_consume_queue=config["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=config["maxHashSlotNum"],
        max_index_num=config["maxIndexNum"],
        index_tags_enable=name != "small-clean-533",
    )


def expected_files(name: str) -> tuple[dict[str, Any], list[Any]]:
    """RocketMQ's queue files by path, and its index files in the order of their names."""
    files = sorted(getattr(facts(name), REBUILT[name]), key=lambda file: str(file["path"]))
    marks = {file["path"]: (file["size"], file["sha256"]) for file in files}
    queues = {path: mark for path, mark in marks.items() if path.startswith(CONSUME_QUEUE_DIR)}
    return queues, [mark for path, mark in marks.items() if path.startswith(INDEX_DIR)]


def found_files(root: Path) -> tuple[dict[str, Any], list[Any]]:
    def mark(path: Path) -> tuple[int, str]:
        with path.open("rb") as file:
            return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()

    queues = sorted(path for path in (root / CONSUME_QUEUE_DIR).rglob("*") if path.is_file())
    index = sorted((root / INDEX_DIR).iterdir())
    return {str(path.relative_to(root)): mark(path) for path in queues}, [mark(p) for p in index]


@pytest.mark.parametrize("name", REBUILT)
def test_a_rebuild_gives_rocketmqs_bytes(name: str, golden_copy: GetStore) -> None:
    root = golden_copy(name)
    for folder in (CONSUME_QUEUE_DIR, INDEX_DIR):
        shutil.rmtree(root / folder, ignore_errors=True)
    report = rebuild(root, settings=settings_of(name))
    assert found_files(root) == expected_files(name)
    assert report.records == facts(name).state["messages"]


def test_a_rebuild_keeps_the_sizes_of_the_files_it_finds(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    rebuild(root)
    assert found_files(root) == expected_files("small-clean")


def test_a_rebuilt_file_is_as_sparse_as_its_contents(golden_copy: GetStore) -> None:
    root = golden_copy("default-sizes")
    rebuild(root)
    stored = sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())
    assert stored < 100 * 2**20


def test_one_kind_can_be_rebuilt_alone(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    shutil.rmtree(root / INDEX_DIR)
    rebuild(root, index=False, settings=settings_of("small-clean"))
    assert not (root / INDEX_DIR).exists()
    rebuild(root, queues=False, settings=settings_of("small-clean"))
    assert found_files(root) == expected_files("small-clean")


def test_a_rebuild_vouches_for_what_it_made(tmp_path: Path) -> None:
    log = LivingLog(tmp_path)
    log.grow(50)
    log.close()
    save_progress(tmp_path, "queue-1-of-2", WorkerCheckpoint(1, 99))
    save_progress(tmp_path, "index", WorkerCheckpoint(1, 99))
    told: list[tuple[str, int, int]] = []
    rebuild(tmp_path, settings=SETTINGS, progress=lambda *step: told.append(step))
    assert load_progress(tmp_path, "queue-1-of-2") == WorkerCheckpoint(1, log.end)
    assert load_progress(tmp_path, "index") == WorkerCheckpoint(1, log.end)
    assert told == [("queues", log.end, log.end), ("index", log.end, log.end)]


def test_a_store_in_use_is_not_rebuilt(tmp_path: Path) -> None:
    log = LivingLog(tmp_path)
    log.grow(20)
    log.close()
    lock = StoreLock.acquire(tmp_path)
    with pytest.raises(StoreLocked):
        rebuild(tmp_path, settings=SETTINGS)
    lock.release()


def test_without_a_log_nothing_is_thrown_away(tmp_path: Path) -> None:
    for name in (CONSUME_QUEUE_DIR, INDEX_DIR):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotAStore, match="commitlog"):
        rebuild(tmp_path, settings=SETTINGS)
    assert sorted(tmp_path.rglob("*")) == before


def test_damage_in_the_log_is_named_and_what_was_built_stays(tmp_path: Path) -> None:
    log = LivingLog(tmp_path)
    log.grow(300)
    log.close()
    rebuild(tmp_path, settings=SETTINGS)
    save_progress(tmp_path, "index", WorkerCheckpoint(1, log.end))
    path = sorted((tmp_path / "commitlog").iterdir())[1]
    with path.open("r+b") as file:
        file.seek(89)
        file.write(b"\xff\xff")
    built = {
        path: path.read_bytes()
        for name in (CONSUME_QUEUE_DIR, INDEX_DIR)
        for path in (tmp_path / name).rglob("*")
        if path.is_file()
    }
    with pytest.raises(StoreDamaged, match=path.name):
        rebuild(tmp_path, settings=SETTINGS)
    assert load_progress(tmp_path, "index") == WorkerCheckpoint(1, log.end)
    assert all(path.read_bytes() == content for path, content in built.items())
