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
WANT_THREE_BROKERS = ("client.producer.querymsg.QueryMsgByKeyIT.testQueryMax",)
"""It expects 64 messages of each broker, 192; one broker has 64, and so has a node."""
QUICK = (
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.async.AsyncSendWithMessageQueueIT",
    "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.oneway.OneWaySendWithMQIT",
    "client.producer.oneway.OneWaySendWithSelectorIT",
    "client.producer.oneway.OneWaySendExceptionIT",
    "client.producer.exception.msg.ChinaPropIT",
    "client.producer.exception.msg.MessageExceptionIT",
    "client.producer.exception.msg.MessageUserPropIT",
    "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
)
OTHERS = (
    # Those that take long come first.
    "client.producer.transaction.TransactionalMsgIT",
    "delay.NormalMsgDelayIT",
    "client.consumer.balance.NormalMsgDynamicBalanceIT",
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvStartLaterIT",
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.tag.TagMessageWith1ConsumerIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
    "client.consumer.balance.NormalMsgStaticBalanceIT",
    "client.consumer.tag.MulTagSubIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "client.consumer.tag.TagMessageWithMulConsumerIT",
    "client.producer.order.OrderMsgWithTagIT",
    "client.consumer.cluster.DynamicAddConsumerIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.consumer.cluster.DynamicCrashConsumerIT",
    "client.producer.order.OrderMsgIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByIdExceptionIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgNotReceiveIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvCrashIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvFailIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgTwoDiffGroupRecvIT",
    "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "client.consumer.broadcast.order.OrderMsgBroadcastIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerFilterIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubDiffTagIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubTagIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
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
