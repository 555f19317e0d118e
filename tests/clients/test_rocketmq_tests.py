"""RocketMQ's own integration tests at a node and at a Java broker, in the same run."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import (
    BROKER,
    Addresses,
    RocketMQ,
    class_path,
    missing,
    start_name_server,
)
from tests.clients.rocketmq_tests import (
    PASSED,
    PROJECT,
    Compared,
    Servers,
    compare,
    run_classes,
    table,
)
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, remoting_place

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("clients"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
JVMS = 3
"""Java processes for each side; the tests wait more than they compute."""
CLUSTER, BROKER_NAME = "DefaultCluster", "node"
SETTINGS = (REMOTING, f"broker.broker_name={BROKER_NAME}")
BROKER_SETTINGS = {"enablePropertyFilter": "true"}
BROKER_HEAP = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")
WANT_THREE_BROKERS = ("keelog.client.producer.querymsg.QueryMsgByKeyIT.testQueryMax",)
"""It expects 64 messages of each broker, 192; one broker has 64, and so has a node."""
QUICK = (
    "keelog.client.producer.async.AsyncSendExceptionIT",
    "keelog.client.producer.async.AsyncSendWithMessageQueueIT",
    "keelog.client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "keelog.client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "keelog.client.producer.oneway.OneWaySendIT",
    "keelog.client.producer.oneway.OneWaySendWithMQIT",
    "keelog.client.producer.oneway.OneWaySendWithSelectorIT",
    "keelog.client.producer.oneway.OneWaySendExceptionIT",
    "keelog.client.producer.exception.msg.ChinaPropIT",
    "keelog.client.producer.exception.msg.MessageExceptionIT",
    "keelog.client.producer.exception.msg.MessageUserPropIT",
    "keelog.client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
)
OTHERS = (
    # Those that take long come first.
    "keelog.client.producer.transaction.TransactionalMsgIT",
    "delay.NormalMsgDelayIT",
    "keelog.client.consumer.balance.NormalMsgDynamicBalanceIT",
    "keelog.client.consumer.filter.SqlFilterIT",
    "keelog.client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "keelog.client.consumer.broadcast.normal.BroadcastNormalMsgRecvStartLaterIT",
    "keelog.client.consumer.cluster.DynamicAddAndCrashIT",
    "keelog.client.consumer.tag.TagMessageWith1ConsumerIT",
    "keelog.client.producer.querymsg.QueryMsgByKeyIT",
    "keelog.client.consumer.balance.NormalMsgStaticBalanceIT",
    "keelog.client.consumer.tag.MulTagSubIT",
    "keelog.client.producer.order.OrderMsgRebalanceIT",
    "keelog.client.consumer.tag.TagMessageWithMulConsumerIT",
    "keelog.client.producer.order.OrderMsgWithTagIT",
    "keelog.client.consumer.cluster.DynamicAddConsumerIT",
    "keelog.client.producer.order.OrderMsgDynamicRebalanceIT",
    "keelog.client.consumer.cluster.DynamicCrashConsumerIT",
    "keelog.client.producer.order.OrderMsgIT",
    "keelog.client.producer.querymsg.QueryMsgByIdIT",
    "keelog.client.producer.querymsg.QueryMsgByIdExceptionIT",
    "keelog.client.consumer.broadcast.normal.BroadcastNormalMsgNotReceiveIT",
    "keelog.client.consumer.broadcast.normal.BroadcastNormalMsgRecvCrashIT",
    "keelog.client.consumer.broadcast.normal.BroadcastNormalMsgRecvFailIT",
    "keelog.client.consumer.broadcast.normal.BroadcastNormalMsgTwoDiffGroupRecvIT",
    "keelog.client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "keelog.client.consumer.broadcast.order.OrderMsgBroadcastIT",
    "keelog.client.consumer.broadcast.tag.BroadcastTwoConsumerFilterIT",
    "keelog.client.consumer.broadcast.tag.BroadcastTwoConsumerSubDiffTagIT",
    "keelog.client.consumer.broadcast.tag.BroadcastTwoConsumerSubTagIT",
    "keelog.client.consumer.topic.OneConsumerMulTopicIT",
    "keelog.client.consumer.topic.MulConsumerMulTopicIT",
)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, Servers]]:
    """A Java broker with its name server, and a node."""
    classes, home = class_path(PROJECT), tmp_path_factory.mktemp("servers")
    with ExitStack() as ends:
        addresses = Addresses.free()
        names = start_name_server(classes, home / "names", addresses.name_server)
        ends.callback(names.kill)
        broker = RocketMQ(classes, home / "broker", addresses, BROKER_SETTINGS, BROKER_HEAP)
        ends.callback(broker.remove)
        broker.start()
        node = ends.enter_context(RunningNode(home / "node", SETTINGS, queue_workers=1, readers=1))
        host, port = remoting_place(node.stderr)
        yield (
            Servers(
                "RocketMQ",
                addresses.name_server,
                str(BROKER["brokerClusterName"]),
                str(BROKER["brokerName"]),
            ),
            Servers("Keelog", f"{host}:{port}", CLUSTER, BROKER_NAME),
        )


def run_at_both(
    classes: Sequence[str], sides: tuple[Servers, Servers], home: Path
) -> tuple[str, list[Compared]]:
    """The table, and what did not pass at both.

    A class with such a test runs once more, alone, and that counts: other classes beside it may
    take the processor from a test that waits a fixed time.
    """
    theirs, ours = (one.side for one in sides)
    found = run_classes(classes, sides, class_path(PROJECT), home / "all", JVMS)

    def failed() -> list[Compared]:
        return [one for one in compare(found[theirs], found[ours]) if not one.passed]

    for again in {one.tests for one in failed() if one.name not in WANT_THREE_BROKERS}:
        alone = run_classes([again], sides, class_path(PROJECT), home / again, 1)
        for side in (theirs, ours):
            found[side].update(alone[side])
    return table(classes, found[theirs], found[ours]), failed()


def check(
    classes: Sequence[str],
    sides: tuple[Servers, Servers],
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs classes, prints and writes their table. Fails for what passed at RocketMQ alone, and for
    what should pass and does at neither: then the run says nothing about the node."""
    text, failed = run_at_both(classes, sides, home)
    for one in failed:
        text += f"\n{one.name}: {one.theirs.outcome} at RocketMQ, {one.ours.outcome} at Keelog\n"
    (PROJECT / "target" / f"{home.name}.md").write_text(text)
    with capsys.disabled():
        sys.stdout.write(f"\n{text}")
    behind = [
        one
        for one in failed
        if one.ours.outcome != PASSED
        and (one.theirs.outcome == PASSED or one.name not in WANT_THREE_BROKERS)
    ]
    assert not behind, "\n\n".join(f"{one.name}: {one.ours.why}" for one in behind)


@pytest.mark.interop
def test_no_quick_test_of_rocketmq_passes_at_a_broker_and_fails_at_a_node(
    sides: tuple[Servers, Servers], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(QUICK, sides, tmp_path / "quick", capsys)


def test_no_other_test_of_rocketmq_passes_at_a_broker_and_fails_at_a_node(
    sides: tuple[Servers, Servers], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(OTHERS, sides, tmp_path / "others", capsys)
