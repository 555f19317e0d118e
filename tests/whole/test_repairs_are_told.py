"""A start that finds less than the node had, or makes it anew, says so in one warning each."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
PAIRS = ("max_hash_slot_num=1000", "max_index_num=4000", "mapped_file_size_commit_log=65536")
EVENTS = {
    "stop": "did not stop in order",
    "topics": "the table of topics is lost",
    "index": "the index is lost",
    "queues": "all queues are lost",
    "segment": "the log begins later",
    "floor": "the note of what is durable is lost",
    "keelog": "the notes about this log are missing",
}


def told(node: RunningNode) -> set[str]:
    return {name for name, event in EVENTS.items() if event in node.stderr}


def first_segment(root: Path) -> None:
    min((root / "commitlog").iterdir(), key=lambda path: int(path.name)).unlink()


def most(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    for folder in ("index", "consumequeue"):
        shutil.rmtree(root / folder)
    (root / "keelog" / "floor").unlink()


CASES: list[tuple[Callable[[Path], object], set[str]]] = [
    (first_segment, {"segment"}),
    (lambda root: shutil.rmtree(root / "keelog"), {"keelog"}),
    (most, {"topics", "index", "queues", "floor"}),
    (lambda root: None, set()),
]


def test_what_is_lost_at_a_start_is_one_warning_each(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, PAIRS, queue_workers=1, readers=1) as node:
        for number in range(150):
            node.client.send("orders", bytes(1000), keys=(f"k{number}",), queue_id=0)
        node.wait_dispatched()
        assert not told(node)
        node.kill_all()
    with RunningNode(root, PAIRS, queue_workers=1, readers=1) as node:
        assert told(node) == {"stop"}
    for lose, expected in CASES:
        lose(root)
        with RunningNode(root, PAIRS, queue_workers=1, readers=1) as node:
            node.wait_dispatched()
            wait_until(lambda: told(node) >= expected, f"only {told(node)} are told", 10)  # noqa: B023
            assert told(node) == expected
            assert all(node.stderr.count(EVENTS[name]) == 1 for name in expected)


def test_a_table_of_topics_that_is_removed_under_the_node_is_written_again(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", PAIRS, queue_workers=1, readers=1) as node:
        node.client.create_topic("wide", queues=20)
        path = node.root / "config" / "topics.json"
        path.unlink()
        wait_until(path.exists, "it is not written again", 30)
        assert '"wide"' in path.read_text()
        wait_until(lambda: "written again" in node.stderr, "no line says it", 10)
