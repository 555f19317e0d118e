"""`keelog group` at a node with a gateway: groups of RocketMQ's clients, and cursors."""

import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import keelog
from keelog.cli.main import run
from protocol.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import RemotingPeer, pull_fields, remoting_place

pytestmark = pytest.mark.process
Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def node(shared_node: RunningNode) -> RunningNode:
    client = shared_node.client
    if client.create_topic("orders", 2).created:
        for number in range(10):
            client.send("orders", b"%d" % number, queue_id=number % 2)
        shared_node.wait_dispatched()
    return shared_node


@pytest.fixture
def cli(node: RunningNode, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str, code: int = 0) -> Any:
        assert run(["group", *words, "--node", node.endpoint, "--format", "json"]) == code
        found = capsys.readouterr()
        return json.loads(found.out) if code == 0 else found.err

    return call


def beat(peer: RemotingPeer, client_id: str, group: str) -> None:
    data = HeartbeatData(
        client_id,
        consumer_data_set=(
            ConsumerData(
                group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET",
                (SubscriptionData("orders", "*", sub_version=1),),
            ),
        ),
    )  # fmt: skip
    assert (
        peer.ask(RequestCode.HEART_BEAT, {}, write_body(data, standard=True)).code
        == ResponseCode.SUCCESS
    )


def test_a_group_shows_its_members_its_lag_and_who_reads_what(
    node: RunningNode, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    began_ms = int(time.time() * 1000)
    node.client.commit_cursor("orders", "payers", {0: 3})
    stored_ms = node.client.get(topic="orders", queue_id=0, queue_offset=3).store_timestamp
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
        beat(peer, "c1", "payers")
        peer.ask(RequestCode.PULL_MESSAGE, pull_fields("orders", 0, 3, consumerGroup="payers"))

        def described() -> Any:
            return cli("describe", "payers")

        wait_until(
            lambda: described()["members"] and described()["queues"][0]["client_id"] == "c1",
            "the member is not shown",
            10,
        )
        found = described()
        (member,) = found["members"]
        assert (member["client_id"], member["language"]) == ("c1", "JAVA")
        assert member["address"].startswith("127.0.0.1:")
        first, second = found["queues"]
        now_ms = time.time() * 1000
        assert began_ms <= first.pop("committed_ms") <= now_ms
        assert began_ms <= member["beat_ms"] <= now_ms
        assert now_ms - stored_ms - 1_000 <= first.pop("lag_ms") <= now_ms - stored_ms + 1_000
        assert first == {
            "topic": "orders", "queue_id": 0, "committed": 3, "max": 5, "lag": 2,
            "client_id": "c1", "pulled": 3,
        }  # fmt: skip
        assert second["committed_ms"] is None
        assert (second["committed"], second["lag"], second["client_id"]) == (None, 5, None)
        rows = {row["group"]: row for row in cli("ls")}
        assert rows["payers"].pop("lag_ms") >= now_ms - stored_ms - 1_000
        assert rows["payers"] == {"group": "payers", "members": 1, "lag": 7}
        assert (
            run(["group", "describe", "payers", "--node", node.endpoint, "--format", "table"]) == 0
        )
        text = capsys.readouterr().out
        assert re.search(r"^member c1 at 127.0.0.1:\d+, last heart-beat \d+ s ago$", text, re.M)
        assert re.search(r"^orders +0 +3 +5 +2 .*\d+ s ago +c1$", text, re.M)
        for words in (["reset", "payers", "--topic", "orders", "--to", "start"],
                      ["rm", "payers", "--yes"]):  # fmt: skip
            said = cli(*words, code=2)
            assert "has 1 members" in said
            assert "stop them first" in said
    wait_until(lambda: not cli("describe", "payers")["members"], "the member stays", 10)


def test_a_group_without_members_goes_on_where_it_is_put(node: RunningNode, cli: Cli) -> None:
    node.client.commit_cursor("orders", "reports", {0: 2, 1: 5})
    to_end = cli("reset", "reports", "--topic", "orders", "--to", "end")
    assert [row["committed"] for row in to_end["queues"]] == [5, 5]
    cli("reset", "reports", "--topic", "orders", "--to", "1", "--queue", "1")
    assert node.client.cursor("orders", "reports") == {0: 5, 1: 1}
    cli("reset", "reports", "--topic", "orders", "--to", "-1h")
    assert node.client.cursor("orders", "reports") == {0: 0, 1: 0}
    assert "no queue 7" in cli(
        "reset", "reports", "--topic", "orders", "--to", "end", "--queue", "7", code=3
    )


def test_a_removed_group_begins_as_a_new_one(node: RunningNode, cli: Cli) -> None:
    node.client.commit_cursor("orders", "gone", {0: 2})
    assert cli("rm", "gone", "--yes") == {"group": "gone", "deleted": True}
    assert node.client.cursor("orders", "gone") == {}
    assert node.client.groups("gone") == []
    assert "keelog group ls" in cli("rm", "gone", "--yes", code=3)
    assert "group gone is not known" in cli("describe", "gone", code=3)


def test_a_name_that_no_group_has_is_refused(node: RunningNode) -> None:
    with pytest.raises(keelog.BadRequest):
        node.client.groups("a group")
    with pytest.raises(keelog.BadRequest):
        node.client.delete_group("")


def test_groups_of_the_system_are_listed_on_demand(node: RunningNode, cli: Cli) -> None:
    for name in ("TOOLS_CONSUMER", "CID_mine"):
        node.client.commit_cursor("orders", name, {0: 1})
    usual = {row["group"] for row in cli("ls")}
    everything = {row["group"] for row in cli("ls", "--all")}
    assert "CID_mine" in usual
    assert "TOOLS_CONSUMER" in everything - usual
    assert usual < everything
