"""The node that the tests of the command line share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import RunningNode

SMALL = (
    "mapped_file_size_commit_log=1048576",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
)


def segment_of(root: Path, place: int) -> Path:
    """The file of the log that holds this log offset."""
    return max(path for path in (root / "commitlog").iterdir() if int(path.name) <= place)


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("cli") / "store"
    with RunningNode(root, SMALL, readers=1) as running:
        yield running
