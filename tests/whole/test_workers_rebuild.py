"""Delete what is derived, start a node: its workers bring every byte of it back."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GetStore, facts
from tests.support.node import RunningNode
from tests.support.seldom import seldom

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

# Against the packed files, or where the packed store lacks them, against RocketMQ's own rebuild;
# tests/golden/README.md, 'What a rebuild must equal'.
PACKED = ("small-clean", "small-clean-533", "mixed-kinds", "crc32-property", "default-sizes")
REBUILT = ("cq-missing", "trimmed-cq-missing")
_SIZES = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
_CHUNK_BYTES = 1 << 24


def settings_of(state: dict[str, Any]) -> list[str]:
    """The sizes that the store was written with, and whether that release indexed TAGS."""
    config = state["config"]
    pairs = [f"store.{name}={config[name]}" for name in _SIZES]
    if config["rocketmqVersion"] < "5.4":
        pairs.append("store.indexTagsEnable=false")
    return pairs


def digest(path: Path) -> str:
    """SHA-256 of a file, read in pieces: an index file of the default sizes has 400 MB."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            found.update(piece)
    return found.hexdigest()


def queue_files(files: list[dict[str, Any]]) -> dict[str, str]:
    """Digests of the ConsumeQueue files by path."""
    return {f["path"]: f["sha256"] for f in files if f["path"].startswith("consumequeue/")}


def index_files(files: list[dict[str, Any]]) -> list[str]:
    """Digests of the index files in name order; the names are times of making."""
    found = sorted((f["path"], f["sha256"]) for f in files if f["path"].startswith("index/"))
    return [sha256 for _, sha256 in found]


@pytest.mark.parametrize("name", [PACKED[0], REBUILT[0], *seldom(*PACKED[1:], *REBUILT[1:])])
def test_running_workers_rebuild_the_bytes_that_rocketmq_wrote(
    golden_copy: GetStore, name: str
) -> None:
    root = golden_copy(name)
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / folder, ignore_errors=True)
    expected = facts(name).files if name in PACKED else facts(name).files_after
    assert queue_files(expected)
    assert index_files(expected)

    with RunningNode(root, settings_of(facts(name).state), readers=1) as node:
        node.wait_dispatched()

    found = [
        {"path": path.relative_to(root).as_posix(), "sha256": digest(path)}
        for folder in ("consumequeue", "index")
        for path in (root / folder).rglob("*")
        if path.is_file()
    ]
    assert queue_files(found) == queue_files(expected)
    assert index_files(found) == index_files(expected)
