"""What status, metrics and the alert show of consumer groups, and of the gateway itself."""

import inspect
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keelog.cli.main import run
from keelog.client.groups import GroupInfo, GroupMemberInfo, GroupQueue
from keelog.gateway.connection import EndReason
from keelog.gateway.handlers import Handlers
from keelog.gateway.service import GatewayStats
from keelog.gateway.tasks.loop import summed_up
from node.runtime.run_files import GROUP_ROWS_MAX, LagSums, read_group_lags, write_group_lags
from node.runtime.state_page import run_dir
from node.runtime.stats import read_stats
from node.runtime.stats_series import GATEWAY_CODES, GATEWAY_ENDS, GATEWAY_REQUESTS, series
from node.supervisor.monitoring.metrics import group_families
from protocol.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, pull_fields, remoting_place


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("watching") / "store"
    settings = (REMOTING, "serve.http=127.0.0.1:0")
    with RunningNode(root, settings, queue_workers=1, readers=1) as running:
        running.client.create_topic("orders", 2)
        for number in range(10):
            running.client.send("orders", b"%d" % number, queue_id=number % 2)
        running.wait_dispatched()
        yield running


def samples(node: RunningNode) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    url = node.client.status().raw["http"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    node_labels = {"cluster", "node_type", "node_id"}
    return {
        (one.name, frozenset((n, v) for n, v in one.labels.items() if n not in node_labels)):
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }  # fmt: skip


def value(node: RunningNode, name: str, **labels: str) -> float | None:
    return samples(node).get((name, frozenset(labels.items())))


@pytest.mark.process
@pytest.mark.xdist_group("watching")
def test_a_group_that_is_behind_is_in_status_and_metrics(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.client.commit_cursor("orders", "billing", {0: 1, 1: 5})
    data = HeartbeatData(
        "c1", (ProducerData("p"),),
        (ConsumerData("billing", subscription_data_set=(SubscriptionData("orders", "*"),)),),
    )  # fmt: skip
    of = {"consumer_group": "billing", "topic": "orders"}
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
        assert peer.ask(RequestCode.HEART_BEAT, {}, write_body(data, standard=True)).code == 0
        for offset in (1, 4):
            peer.ask(
                RequestCode.PULL_MESSAGE, pull_fields("orders", 0, offset, consumerGroup="billing")
            )
        wait_until(
            lambda: value(node, "rocketmq_consumer_inflight_messages", **of) == 3,
            "three of four are with the member",
            30,
        )
        assert value(node, "rocketmq_consumer_lag_messages", **of) == 4
        assert value(node, "rocketmq_consumer_ready_messages", **of) == 1
        assert value(node, "rocketmq_consumer_connections", consumer_group="billing") == 1
        assert value(node, "rocketmq_consumer_group_number") == 1
        assert value(node, "keelog_gateway_connections") == 1
        assert value(node, "keelog_gateway_producers") == 1
        found = node.client.status().raw["groups"]
        assert (found["groups"], found["members"], found["lag"]) == (1, 1, 4 + 5 - 5)
        row = found["rows"][0]
        assert 0 < row.pop("lag_ms") < 600_000
        assert row == {
            "group": "billing", "topic": "orders", "queues": 2, "members": 1, "lag": 4,
            "in_flight": 3,
        }  # fmt: skip
        assert run(["status", "--node", node.endpoint, "--format", "table"]) == 0
        text = capsys.readouterr().out
        assert "groups: 1 with 1 members, a lag of 4 messages\n" in text
        assert "group billing: lag 4 in 2 queues of orders, 1 members\n" in text
        node.client.commit_cursor("orders", "billing", {0: 5})
        wait_until(
            lambda: value(node, "rocketmq_consumer_lag_messages", **of) == 0,
            "the group has caught up",
            30,
        )


@pytest.mark.process
@pytest.mark.xdist_group("watching")
def test_requests_refusals_and_ended_connections_are_counted(node: RunningNode) -> None:
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
        peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})
        assert peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "nosuch"}).code == 17
        assert peer.ask(99, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        peer.socket.sendall(b"\x7f" * 8)
        assert peer.is_closed()
    wait_until(
        lambda: value(node, "keelog_gateway_ended_connections_total", reason="broken") == 1,
        "the end of the connection is not counted",
        10,
    )
    requests, refusals = "keelog_gateway_requests_total", "keelog_gateway_refusals_total"
    assert value(node, requests, request_code="get_max_offset") == 1
    assert value(node, requests, request_code="get_topic_config") == 1
    assert value(node, requests, request_code="other") == 1
    assert value(node, refusals, response_code="topic_not_exist") == 1
    assert value(node, refusals, response_code="request_code_not_supported") == 1


def info(group: str, lag: int, members: int = 0) -> GroupInfo:
    some = tuple(GroupMemberInfo(f"c{n}", "", "JAVA", 1) for n in range(members))
    return GroupInfo(group, some, (GroupQueue("t", 0, 5, 5 + lag, lag, None, 6, lag * 1_000),))


def test_the_groups_that_are_most_behind_are_shown_and_the_others_summed_up(
    tmp_path: Path,
) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    assert read_group_lags(tmp_path).groups == 0
    many = [info(f"g{n:04}", n, members=1) for n in range(GROUP_ROWS_MAX + 100)]
    write_group_lags(tmp_path, summed_up(many, 9_000))
    found = read_group_lags(tmp_path)
    assert (found.groups, found.members) == (9_000, len(many))
    assert [row.lag for row in found.rows[:2]] == [len(many) - 1, len(many) - 2]
    assert found.rows[0].lag_ms == (len(many) - 1) * 1_000
    assert len(found.rows) == GROUP_ROWS_MAX
    assert found.others == LagSums(sum(range(100)), 99)
    families = {one.name: one for one in group_families(tmp_path)}
    lags = families["rocketmq_consumer_lag_messages"].samples
    assert len(lags) == GROUP_ROWS_MAX + 1
    assert lags[-1].labels.items() >= {"consumer_group": "_other", "topic": "_other"}.items()
    assert sum(one.value for one in lags) == found.lag
    members = families["rocketmq_consumer_connections"].samples
    assert sum(one.value for one in members) == len(many)


@pytest.mark.parametrize("text", ["", "[]", '{"groups": 1}', "\0" * 10, '{"groups": "x"}'])
def test_a_file_of_groups_that_is_damaged_says_nothing(tmp_path: Path, text: str) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    (run_dir(tmp_path) / "groups").write_text(text)
    assert read_group_lags(tmp_path).rows == ()


def test_what_a_member_has_is_never_more_than_the_lag() -> None:
    assert GroupQueue("t", 0, 5, 9, 4, "c", 7).in_flight == 2
    assert GroupQueue("t", 0, 5, 9, 4, "c", 99).in_flight == 4
    assert GroupQueue("t", 0, 5, 9, 4, "c", 3).in_flight == 0
    assert GroupQueue("t", 0, 5, 9, 4).in_flight == 0


def test_every_request_that_the_gateway_serves_has_a_count_of_its_own(tmp_path: Path) -> None:
    source = inspect.getsource(Handlers.of_clients)
    served = {RequestCode[name] for name in re.findall(r"\bcode\.([A-Z_0-9]+):", source)}
    assert served
    # Those of tools share one count, but that by which clients make topics.
    assert served | {RequestCode.UPDATE_AND_CREATE_TOPIC} == set(GATEWAY_CODES)
    assert set(GATEWAY_ENDS) == set(EndReason)
    stats = GatewayStats(tmp_path)
    for code in (*GATEWAY_CODES, 12345, GATEWAY_CODES[0]):
        stats.answered(code, ResponseCode.SUCCESS)
    stats._page.publish()
    (slot,) = read_stats(tmp_path)

    def count(name: str) -> Any:
        return slot.values[series(GATEWAY_REQUESTS, request_code=name)]

    assert [count(name) for name in ("send_message", "heart_beat", "other")] == [2, 1, 1]
