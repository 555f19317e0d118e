"""`keelog consume --group` and `keelog produce --delay…` at a node with a gateway."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.cli.test_consume import Done, following
from tests.support.cli import keelog_text
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def node(shared_node: RunningNode) -> RunningNode:
    return shared_node


def keelog(node: RunningNode, *words: str) -> Done:
    return keelog_text(node.endpoint, words)


def test_a_group_goes_on_after_what_was_printed(node: RunningNode) -> None:
    for number in range(5):
        node.client.send(
            "orders-cli", b"%d" % number, queue_id=0, tags="odd" if number % 2 else "even"
        )
    first = keelog(
        node, "consume", "orders-cli", "--group", "billing-cli", "-n", "3", "-f", r"%v\n"
    )
    assert (first.returncode, first.stdout.split()) == (0, ["0", "1", "2"]), first.stderr
    wait_until(lambda: node.client.cursor("orders-cli", "billing-cli").get(0) == 3, "not committed")
    rest = keelog(node, "consume", "orders-cli", "--group", "billing-cli", "-n", "2", "--jsonl")
    assert [json.loads(line)["body"] for line in rest.stdout.splitlines()] == ["3", "4"]
    some = ["--tags", "odd", "-n", "2", "-f", r"%v\n"]
    assert keelog(node, "consume", "orders-cli", "--group", "odd", *some).stdout.split() == [
        "1",
        "3",
    ]


def test_two_runs_share_a_topic_and_a_signal_ends_one_in_order(node: RunningNode) -> None:
    node.client.create_topic("shared-cli", 2)
    words = ["shared-cli", "--group", "pair", "-f", r"%q %v\n"]
    with following(node, *words) as one, following(node, *words) as two:

        def members() -> int:
            return sum(len(group.members) for group in node.client.groups("pair"))

        wait_until(lambda: members() == 2, "two are not there")

        def sent(text: str) -> bool:
            """Sends to both queues until each run has printed one of this."""
            for queue in (0, 1):
                node.client.send("shared-cli", text.encode(), queue_id=queue)
            return all(any(text in line for line in run.out) for run in (one, two))

        wait_until(lambda: sent("both"), "one of them has no queue")
        assert one.end(signal.SIGTERM) == 130
        wait_until(lambda: members() == 1, "it stays in the group")
        wait_until(
            lambda: sent("alone") or {line[0] for line in two.out if "alone" in line} == {"0", "1"},
            "the other does not take over",
        )
        assert two.end() == 130


@pytest.mark.parametrize(
    "words",
    [["--cursor", "c"], ["-e"], ["--queue", "1"], ["--merge"], ["-o", "-10"], ["-o", "start:5"]],
)
def test_options_that_a_group_decides_are_refused(node: RunningNode, words: list[str]) -> None:
    done = keelog(node, "consume", "orders-cli", "--group", "g", *words)
    assert done.returncode == 2
    assert "--group" in done.stderr


def test_a_message_of_produce_comes_after_its_delay_level(node: RunningNode) -> None:
    done = keelog(
        node, "produce", "late-cli", "one", "two", "--delay-level", "1", "--format", "jsonl"
    )
    receipts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["status"] for one in receipts] == ["PUT_OK", "PUT_OK"], done.stderr
    assert {one["topic"] for one in receipts} == {"late-cli"}
    words = ["consume", "late-cli", "--group", "late-cli", "-n", "2", "-f", r"%v\n"]
    assert sorted(keelog(node, *words).stdout.split()) == ["one", "two"]


def test_messages_of_produce_come_at_their_time(node: RunningNode) -> None:
    began = time.time()
    at = str(int(began * 1000) + 1500)
    for words in (["after", "--delay", "1500ms"], ["at", "--deliver-at", at]):
        done = keelog(node, "produce", "timed-cli", *words, "--format", "jsonl")
        assert json.loads(done.stdout)["status"] == "PUT_OK", done.stderr
    words = ["consume", "timed-cli", "--group", "timed-cli", "-n", "2", "-f", r"%v\n"]
    assert sorted(keelog(node, *words).stdout.split()) == ["after", "at"]
    assert time.time() - began >= 1.5


@pytest.mark.parametrize(
    "words",
    [
        ["--delay", "soon"],
        ["--deliver-at", "soon"],
        ["--delay", "5s", "--delay-level", "1"],
        ["--delay", "5s", "--deliver-at", "2030-01-01"],
    ],
)
def test_what_is_no_time_is_refused(node: RunningNode, words: list[str]) -> None:
    done = keelog(node, "produce", "timed-cli", "x", *words)
    assert done.returncode == 2, done.stderr


def test_without_a_gateway_both_say_what_to_start(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as plain:
        for words in (
            ["consume", "t", "--group", "g"],
            ["produce", "t", "x", "--delay-level", "1"],
            ["produce", "t", "x", "--delay", "1s"],
        ):
            done = keelog(plain, *words)
            assert done.returncode == 1, done.stderr
            assert "try: start the node with --remoting" in done.stderr
