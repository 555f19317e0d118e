"""The node that the tests of the command line share."""

from collections.abc import Iterator

import pytest

from tests.support.node import RunningNode

SMALL = (
    "mapped_file_size_commit_log=1048576",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
)


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("cli") / "store"
    with RunningNode(root, SMALL, readers=1) as running:
        yield running
