"""A wall clock that was ahead, or is set while the node runs: nothing stalls, nothing is early."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keelog import Retry, connect
from protocol.names import UNDECIDED_TOPIC
from protocol.remoting.codes import RequestCode
from protocol.status import HealthCheck
from tests.gateway.test_delayed import stored
from tests.gateway.test_transactions import half_fields, producer
from tests.support.clock.shifted_clock import ShiftedClock
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clock")]
SETTINGS = (
    REMOTING,
    "message_delay_level=1s 4s 2s",
    "recall_message_enable=true",
    "idempotent_window=3",
    "transaction_time_out=1000",
    "transaction_check_interval=500",
)
LATE_S = 30.0
"""As late as a busy machine may be; a clock that is ahead costs hours."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShiftedClock]:
    with ShiftedClock(tmp_path_factory.mktemp("clock")) as made:
        yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, clock: ShiftedClock) -> Iterator[RunningNode]:
    """Its clock was two hours ahead when it stored its first messages."""
    root = tmp_path_factory.mktemp("clock") / "store"
    clock.set(hours=2)
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1, env=clock.env) as running:
        running.client.send("timed", b"ahead", delay=0.5)
        arrive(running, "timed", b"ahead")
        yield running


@pytest.fixture(autouse=True)
def _right(clock: ShiftedClock, node: RunningNode) -> None:
    assert node.is_running
    clock.set(hours=0)


def arrive(node: RunningNode, topic: str, *bodies: bytes) -> None:
    """Returns when the messages are there."""

    def found() -> bool:
        return set(bodies) <= {record.body for record in stored(node, topic)}

    wait_until(found, f"not all of {bodies!r} in {topic}", LATE_S)


def since(began: float) -> float:
    return time.monotonic() - began


def test_a_store_that_lies_ahead_holds_up_no_delay_no_timer_and_no_retry(node: RunningNode) -> None:
    client, began = node.client, time.monotonic()
    stored_ms = client.send("levels", b"level", delay_level=1).store_timestamp
    assert stored_ms / 1000 > time.time() + 7000, "the store is not ahead"
    client.send("timed", b"timer", delay=2.0)
    client.cancel(client.send("timed", b"cancelled", delay=2.0))
    arrive(node, "levels", b"level")
    assert since(began) >= 1.0
    arrive(node, "timed", b"timer")
    assert since(began) >= 2.0
    client.send("retried", b"again")
    with client.consumer("g", "retried", start="earliest") as consumer:
        message = consumer.get(LATE_S)
        assert message is not None
        message.retry()
        again = consumer.get(LATE_S)
        assert again is not None
        assert again.body == b"again"
        again.ack()
    assert b"cancelled" not in [record.body for record in stored(node, "timed")]


@pytest.mark.parametrize("hours", [24, -24])
def test_what_waits_while_the_clock_is_set_comes_once_and_not_early(
    node: RunningNode, clock: ShiftedClock, hours: int
) -> None:
    client, topic = node.client, f"set{hours}"
    if hours < 0:
        clock.set(hours=24)
        client.send(topic, b"first", delay_level=1)
        arrive(node, topic, b"first")
    began = time.monotonic()
    client.send(topic, b"level", delay_level=2)
    client.send(topic, b"timer", delay=4.0)
    client.cancel(client.send(topic, b"cancelled", delay=4.0))
    time.sleep(0.5)
    clock.set(hours=24 if hours > 0 else 0)
    client.send(topic, b"later", delay=4.0)
    arrive(node, topic, b"level")
    assert since(began) >= 4.0
    arrive(node, topic, b"timer", b"later")
    time.sleep(1.0)
    bodies = sorted(record.body for record in stored(node, topic) if record.body != b"first")
    assert bodies == [b"later", b"level", b"timer"]


def test_what_was_cancelled_does_not_come_late(node: RunningNode, clock: ShiftedClock) -> None:
    """Message and recall are read when their second has passed."""
    client = node.client
    client.send("late", b"kept", delay=2.0)
    pid = node.kill("tasks", number=19)
    client.cancel(client.send("late", b"cancelled", delay=2.0))
    client.send("late", b"also kept", delay=2.0)
    time.sleep(3.0)
    node.kill("tasks")
    wait_until(lambda: node.pids().get("tasks", [pid]) != [pid], "the tasks do not run again")
    arrive(node, "late", b"kept", b"also kept")
    time.sleep(1.0)
    assert sorted(record.body for record in stored(node, "late")) == [b"also kept", b"kept"]


def test_an_open_transaction_is_asked_for_although_the_store_lies_ahead(node: RunningNode) -> None:
    with closing(producer(node, "shop")) as peer:
        began = time.monotonic()
        peer.ask(RequestCode.SEND_MESSAGE_V2, half_fields("sold", "shop", "K1"), b"half")
        peer.request(RequestCode.CHECK_TRANSACTION_STATE)
        assert since(began) >= 1.0


def test_a_key_may_come_again_after_its_window_although_the_store_lies_ahead(
    node: RunningNode,
) -> None:
    with connect(node.endpoint, timeout=LATE_S, retry=Retry(once=True)) as client:
        sent = [client.send("once", b"1", unique_key="K") for _ in range(2)]
        assert sent[0].queue_offset == sent[1].queue_offset, "it was stored twice"
        time.sleep(4.0)
        client.send("once", b"2", unique_key="K")
    assert b"2" in [record.body for record in stored(node, "once")]


def test_the_log_warns_once_and_health_says_how_far_the_store_lies_ahead(
    node: RunningNode, clock: ShiftedClock
) -> None:
    def check() -> tuple[bool, str]:
        (found,) = [one for one in node.client.health().checks if one.name == "clock"]
        return found.ok, found.detail

    def warned(hours: int) -> bool:
        return node.stderr.count(f'"set_by_s": {hours * 3600},') == 1

    time.sleep(1.0)  # the writer has seen what the test before it left
    clock.set(hours=30)
    wait_until(lambda: warned(30), f"no warning:\n{node.stderr}")
    assert check()[0], "the store lies ahead of a clock that is ahead of it"
    node.client.send("first", b"of then")
    clock.set(hours=0)
    wait_until(lambda: warned(-30), f"no warning:\n{node.stderr}")
    wait_until(lambda: not check()[0], "health does not see it")
    assert " s ahead of it" in check()[1]
    assert node.client.health().ready
    assert node.client.status().raw["log"]["ahead_ms"] > 3_600_000
    time.sleep(1.5)
    assert warned(30)
    assert warned(-30)


def test_a_gateway_that_begins_after_the_clock_was_set_forward_gives_no_transaction_up(
    node: RunningNode, clock: ShiftedClock
) -> None:
    """The last test of this node: its store lies further ahead than those before it take."""
    with closing(producer(node, "kept")) as peer:
        peer.ask(RequestCode.SEND_MESSAGE_V2, half_fields("sold", "kept", "K2"), b"half")
    clock.set(hours=100)  # more than `file_reserved_time`
    old = node.kill("gateway")
    wait_until(lambda: node.pids().get("gateway", [old]) != [old], "no gateway runs again")
    node.wait_all_run()
    with closing(producer(node, "kept")) as peer:
        asked = peer.request(RequestCode.CHECK_TRANSACTION_STATE)
        assert asked.ext["transactionId"] == "K2"
    given_up = [one.unique_key for one in stored(node, UNDECIDED_TOPIC)]
    assert "K2" not in given_up


def test_a_node_that_delivers_nothing_says_so_of_what_waits(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as running:
        running.client.send("later", b"timer", delay=30.0)
        running.client.send("later", b"level", delay_level=2)
        wait_until(lambda: running.client.status().raw["timers"]["pending"] == 1, "no timer waits")
        running.kill_all()
    with RunningNode(root, queue_workers=1, readers=1) as running:

        def delays() -> HealthCheck:
            (found,) = [one for one in running.client.health().checks if one.name == "delays"]
            return found

        assert "delayed messages wait, and nobody delivers them" in running.stderr
        wait_until(lambda: not delays().ok, "the check does not see what waits")
        assert not delays().needed
        assert delays().detail.startswith("2 messages wait"), delays().detail
        wait_until(
            lambda: running.client.status().raw["timers"]["late_ms"] > 0, "nothing is late", LATE_S
        )
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as running:
        assert running.client.status().raw["timers"]["undelivered"] == 0
        assert "delays" not in [one.name for one in running.client.health().checks]
        arrive(running, "later", b"level", b"timer")
