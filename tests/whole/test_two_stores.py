"""Files of `keelog/` of one node's store put into another's: a node refuses, or serves its own."""

import random
import shutil
from pathlib import Path

import pytest

from keelog.client.results import Receipt
from node.store.verify.verify import verify
from tests.support.node import RunningNode
from tests.support.seldom import seldom
from tests.support.two_stores import copy_store, put, take_ids_away

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("two-stores"),
]

SMALL = (
    "mapped_file_size_commit_log=262144",
    "mapped_file_size_consume_queue=4000",
    "max_hash_slot_num=500",
    "max_index_num=2000",
)
COUNT, MORE, BODY_BYTES = 400, 20, 300
DAMAGED = 5
Sent = list[tuple[Receipt, bytes]]
MIXES = {
    "tails": ["keelog/tails"],
    "keelog": ["keelog"],
    "keelog and lock": ["keelog", "lock"],
}


def running(root: Path) -> RunningNode:
    return RunningNode(root, SMALL, queue_workers=1, readers=1)


def send(node: RunningNode, mark: str, count: int) -> Sent:
    """Messages of one size, in any of the topic's queues."""
    rnd, sent = random.Random(mark), []
    node.client.create_topic("orders", queues=4)
    for number in range(count):
        body = f"{mark} {number} ".encode().ljust(BODY_BYTES, b".")
        sent.append((node.client.send("orders", body, queue_id=rnd.randrange(4)), body))
    return sent


def check(node: RunningNode, sent: Sent) -> None:
    """Each message is served at the place that was acknowledged."""
    node.wait_dispatched()
    for receipt, body in sent:
        found = node.client.pull(receipt.topic, receipt.queue_id, receipt.queue_offset, wait=5.0)
        assert found.messages[0].queue_offset == receipt.queue_offset
        assert found.messages[0].body == body


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Sent]:
    """Two stopped stores of one shape, and what the first one holds."""
    folder = tmp_path_factory.mktemp("two")
    with running(folder / "a") as node:
        sent = send(node, "a", COUNT)
        node.wait_dispatched()
    with running(folder / "b") as node:
        send(node, "b", COUNT)
        node.wait_dispatched()
    return folder / "a", folder / "b", sent


@pytest.mark.parametrize("mix", ["tails", "keelog", *seldom("keelog and lock")])
@pytest.mark.parametrize("version", ["now", *seldom("before ids")])
def test_a_node_with_files_of_another_store_refuses_or_gives_no_number_twice(
    tmp_path: Path, stores: tuple[Path, Path, Sent], mix: str, version: str
) -> None:
    ours, theirs, sent = stores
    root, donor = tmp_path / "a", tmp_path / "b"
    copy_store(ours, root)
    copy_store(theirs, donor)
    if version != "now":
        take_ids_away(root)
        take_ids_away(donor)
    for name in MIXES[mix]:
        put(name, donor, root)
    assert any(one.kind == "foreign_file" for one in verify(root).findings)
    if (mix, version) == ("tails", "now"):
        assert verify(root).ok
    else:
        node = running(root)
        node.begin()
        assert node.wait() == DAMAGED
        assert f"{root}/keelog/" in node.stderr
        assert "move keelog/ aside" in node.stderr
        shutil.move(root / "keelog", tmp_path / "aside")
    with running(root) as node:
        check(node, sent)
        new = send(node, "new", MORE)
        check(node, sent[:: COUNT // 10] + new)
        said = node.stderr
    assert ("a file of another store was moved aside" in said) == (
        (mix, version) == ("tails", "now")
    )
    report = verify(root, deep=True)
    assert (report.findings, report.records) == ([], COUNT + MORE)


def test_a_store_of_the_version_before_is_gone_on_with_and_gets_an_id(
    tmp_path: Path, stores: tuple[Path, Path, Sent]
) -> None:
    root = tmp_path / "a"
    copy_store(stores[0], root)
    take_ids_away(root)
    with running(root) as node:
        check(node, stores[2][:: COUNT // 20])
        assert (root / "lock").read_bytes().startswith(b"lock keelog ")
        assert "the store has got an id" in node.stderr
    assert verify(root, deep=True).findings == []
