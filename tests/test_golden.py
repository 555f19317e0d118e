"""The golden stores themselves: whole, sparse, and in step with their facts."""

import hashlib
from pathlib import Path

import pytest

from tests.support.golden import ARCHIVES, STORES, GetStore, facts, unpack

HASHED_BYTES_MAX = 16 << 20  # hashing the holes of longer files would take seconds


def test_every_archive_is_named_in_stores() -> None:
    assert tuple(sorted(ARCHIVES)) == STORES


@pytest.mark.parametrize("name", STORES)
def test_an_unpacked_store_has_exactly_the_files_that_rocketmq_wrote(
    golden: GetStore, name: str
) -> None:
    store = golden(name)
    listed = {row["path"]: row for row in facts(name).files}
    found = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
    assert found == set(listed)
    for path, row in listed.items():
        assert (store / path).stat().st_size == row["size"], path
        if row["size"] <= HASHED_BYTES_MAX:
            digest = hashlib.sha256((store / path).read_bytes()).hexdigest()
            assert digest == row["sha256"], path


def test_the_store_of_default_sizes_keeps_its_holes(golden: GetStore) -> None:
    files = [path.stat() for path in golden("default-sizes").rglob("*") if path.is_file()]
    assert sum(file.st_size for file in files) > 1 << 30
    assert sum(file.st_blocks * 512 for file in files) < 64 << 20


@pytest.mark.parametrize("name", STORES)
def test_the_facts_of_a_store_agree_with_each_other(name: str) -> None:
    known = facts(name)
    state = known.state
    assert state["loaded"] is True
    assert len(known.messages) == state["messages"]
    assert len(known.queue_units) == sum(
        queue["maxOffset"] - queue["minOffset"] for queue in state["queues"]
    )
    assert known.index_headers == state["indexHeaders"]
    assert known.index_queries
    assert known.queries
    assert known.files_after


def test_copies_of_a_store_are_private(golden: GetStore, golden_copy: GetStore) -> None:
    one, other = golden_copy("crc32-property"), golden_copy("crc32-property")
    (one / "checkpoint").write_bytes(b"changed")
    assert (other / "checkpoint").read_bytes() == (
        golden("crc32-property") / "checkpoint"
    ).read_bytes()
    assert (one / "checkpoint").read_bytes() == b"changed"


def test_an_unknown_store_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no golden store 'nope'"):
        unpack("nope", tmp_path)
