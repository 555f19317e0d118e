"""Queues and index that somebody removes under a running node come back, and the log says so."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import RunningNode, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("lost-derived-files"),
    pytest.mark.timeout(180),
]
COUNT = 20
BACK_S = 30.0
EVENT = "files are lost"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("lost") / "store"
    pairs = ("max_hash_slot_num=1000", "max_index_num=4000")
    with RunningNode(root, pairs, queue_workers=1, readers=1) as running:
        yield running


@pytest.fixture
def topic(node: RunningNode, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").rstrip("]")
    for number in range(COUNT):
        node.client.send(name, b"%d" % number, keys=(f"{name}-{number}",), queue_id=0)
    node.wait_dispatched()
    wait_until(lambda: number_of(node, name, COUNT - 1) == 1, "the index does not get it")
    # A look of the workers remembers what is to stay.
    time.sleep(2.2)
    return name


def number_of(node: RunningNode, topic: str, number: int) -> int:
    return len(list(node.client.find(topic, f"{topic}-{number}")))


def messages(node: RunningNode, topic: str) -> list[bytes]:
    return [message.body for message in node.client.tail(topic, "earliest", until_end=True)]


def lines(node: RunningNode) -> list[str]:
    return [line for line in node.stderr.splitlines() if EVENT in line]


def await_line(node: RunningNode, before: int) -> None:
    wait_until(lambda: len(lines(node)) > before, "no line says it", BACK_S)
    node.wait_all_run()


def remove(root: Path, topic: str, how: str) -> None:
    queues = root / "consumequeue"
    match how:
        case "the folder of queues":
            shutil.rmtree(queues)
        case "a topic":
            shutil.rmtree(queues / topic)
        case "a queue":
            shutil.rmtree(queues / topic / "0")
        case "a file":
            next((queues / topic / "0").iterdir()).unlink()
        case "a queue, moved away":
            (queues / topic / "0").rename(root.parent / f"moved-{topic}")
        case "a file, replaced":
            path = next((queues / topic / "0").iterdir())
            other = root.parent / f"other-{topic}"
            shutil.copyfile(path, other)
            other.rename(path)


@pytest.mark.parametrize(
    "how",
    [
        *("the folder of queues", "a topic", "a queue", "a file"),
        *("a queue, moved away", "a file, replaced"),
    ],
)
def test_queues_that_are_removed_come_back_with_what_was_stored_meanwhile(
    node: RunningNode, how: str, request: pytest.FixtureRequest
) -> None:
    request.node.name = "queues-" + how.replace(" ", "-").replace(",", "")
    topic: str = request.getfixturevalue("topic")
    before = len(lines(node))
    assert len(messages(node, topic)) == COUNT
    remove(node.root, topic, how)
    node.client.send(topic, b"meanwhile", queue_id=0)
    await_line(node, before)
    expected = [*(b"%d" % number for number in range(COUNT)), b"meanwhile"]
    wait_until(lambda: messages(node, topic) == expected, "they do not come back", BACK_S)
    assert any("consumequeue" in line or topic in line for line in lines(node)[before:])


@pytest.mark.parametrize("how", ["folder", "file", "replaced"])
def test_an_index_that_is_removed_comes_back_with_what_was_stored_meanwhile(
    node: RunningNode, topic: str, how: str
) -> None:
    before, index = len(lines(node)), node.root / "index"
    if how == "folder":
        shutil.rmtree(index)
    else:
        path = max(index.iterdir())
        path.unlink()
        if how == "replaced":
            path.write_bytes(bytes(40 + 4 * 1000 + 20 * 4000))
    node.client.send(topic, b"meanwhile", keys=(f"{topic}-{COUNT}",), queue_id=0)
    await_line(node, before)
    for number in (0, COUNT - 1, COUNT):
        wait_until(
            lambda number=number: number_of(node, topic, number) == 1,  # type: ignore[misc]
            f"key {number} does not come back",
            BACK_S,
        )
    assert "index" in lines(node)[-1]


def test_a_topic_that_is_removed_in_order_costs_no_process(node: RunningNode, topic: str) -> None:
    before, pids = lines(node), node.pids
    node.client.delete_topic(topic)
    wait_until(lambda: not (node.root / "consumequeue" / topic).exists(), "its queues stay")
    time.sleep(2.5)
    assert (lines(node), node.pids) == (before, pids)
