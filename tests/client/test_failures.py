"""What the client does when the node is busy, silent, restarted or gone."""

import asyncio
import errno
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

import pytest
import zmq

import keelog
import keelog.aio
from keelog import Retry
from keelog.client.transport import direct
from keelog.client.transport.exchange import Call, NodeRole
from keelog.client.transport.io_thread import ROUTES_INTERVAL_S
from protocol.errors import NodeBusy, ServiceNotAvailable
from protocol.wire.frames import refusal
from tests.support.fake_node import FakeNode, has_lost
from tests.support.meanwhile import meanwhile
from tests.support.node import wait_until


def test_nobody_at_the_address_is_known_long_before_the_timeout() -> None:
    begin = time.monotonic()
    with pytest.raises(keelog.NotConnected):
        keelog.connect("tcp://127.0.0.1:1", timeout=30.0)
    assert time.monotonic() - begin < 10


def test_a_call_goes_on_when_a_starting_node_has_its_first_reader(node: FakeNode) -> None:
    """No other call, and no news of a connection, makes the client ask for the routes again."""
    node.routes_without_readers = 5
    with keelog.connect(node.url, timeout=30.0) as mq:
        mq.send("orders", b"x", queue_id=0)
        begin = time.monotonic()
        assert mq.offsets("orders")
        assert time.monotonic() - begin < 20
        assert len(node.operations("routes")) > 5


def test_a_busy_node_is_asked_again(node: FakeNode, mq: keelog.Client) -> None:
    node.refuse["append"] = [NodeBusy("full"), ServiceNotAvailable("disk_full")]
    assert mq.send("orders", b"x").status == "PUT_OK"
    assert len(node.operations("append")) == 3
    assert len(node.stored()) == 1


def test_a_node_that_stays_busy_is_an_error_that_may_be_retried(node: FakeNode) -> None:
    node.refuse["append"] = [NodeBusy("full") for _ in range(9)]
    with keelog.connect(node.url, retry=Retry(max_attempts=3)) as mq:
        with pytest.raises(keelog.NodeBusy) as caught:
            mq.send("orders", b"x")
        assert caught.value.retriable
        assert len(node.operations("append")) == 3


def test_a_node_that_says_why_it_has_no_writer_is_believed(
    node: FakeNode, mq: keelog.Client
) -> None:
    stored = mq.send("orders", b"before")
    why = ServiceNotAvailable("read_only: the writer is given_up", "mend it")
    node.writer_error = refusal(0, why)["error"]
    node.stop_process("writer")
    begin = time.monotonic()
    with pytest.raises(keelog.ServiceNotAvailable, match="read_only: ") as caught:
        while True:
            # The first one may still go out to the end of the connection.
            with suppress(keelog.SendTimeout):
                mq.send("orders", b"x", timeout=30.0)
    assert caught.value.hint == "mend it"
    with mq.producer(timeout=30.0) as producer:
        batch = [producer.send_nowait("orders", b"x", queue_id=0) for _ in range(20)]
        for one in batch:
            with pytest.raises(keelog.ServiceNotAvailable, match="read_only: "):
                one.result()
    assert time.monotonic() - begin < 15, "it is no matter of the timeout"
    assert mq.get(stored.msg_id).body == b"before"
    node.writer_error = None
    node.start_process("writer", same_port=False)
    assert mq.send("orders", b"after").status == "PUT_OK"


def test_what_cannot_be_sent_is_an_error_of_its_call_alone(node: FakeNode) -> None:
    lone_surrogate: Any = "\udc80"

    async def ask_at_once() -> list[BaseException | list[keelog.Message]]:
        async with keelog.aio.connect(node.url) as aio:

            async def find(key: Any) -> list[keelog.Message]:
                return [message async for message in aio.find("orders", key)]

            await aio.send("orders", b"x", keys="k")
            keys = [lone_surrogate, "k", object(), "k"]
            return await asyncio.gather(*map(find, keys), return_exceptions=True)

    with keelog.connect(node.url) as mq:
        unpackable: Any
        for unpackable in (lone_surrogate, object()):
            with pytest.raises(keelog.BadRequest, match="not for the wire"):
                mq.create_topic(unpackable)
            with pytest.raises(keelog.BadRequest, match="not for the wire"):
                mq.pull(unpackable, 0, 0)
        assert mq.send("orders", b"x").status == "PUT_OK"
    found = asyncio.run(ask_at_once())
    assert [type(one) for one in found] == [keelog.BadRequest, list, keelog.BadRequest, list]


@pytest.mark.parametrize("missing", ["socket", "get_monitor_socket"])
def test_a_client_lives_through_a_time_without_descriptors(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def none_left(*_: object) -> NoReturn:
        raise zmq.ZMQError(errno.EMFILE)

    def none_left_of_its_own(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with keelog.connect(node.url) as mq:
        with monkeypatch.context() as patch:
            patch.setattr(zmq.Context if missing == "socket" else zmq.Socket, missing, none_left)
            patch.setattr(direct, "ZmtpConnection", none_left_of_its_own)
            for use in (
                lambda: mq.send("orders", b"x"),
                lambda: next(mq.tail("orders")),
                mq.topics,
                lambda: keelog.connect(node.url),
            ):
                with pytest.raises(keelog.NotConnected, match="no socket can be opened: "):
                    use()
        assert mq.send("orders", b"x").status == "PUT_OK"
        assert len(mq.topics()) == 1


def test_a_refused_message_is_not_sent_again(node: FakeNode, mq: keelog.Client) -> None:
    node.refuse["append"] = [keelog.MessageTooLarge("too large")]
    with pytest.raises(keelog.MessageTooLarge):
        mq.send("orders", b"x")
    assert len(node.operations("append")) == 1


def test_a_send_without_an_answer_is_of_unknown_outcome_and_is_not_repeated(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.send("orders", b"connected by now")
    node.lose_answers["append"] = 1
    with pytest.raises(keelog.SendTimeout) as caught:
        mq.send("orders", b"x", timeout=2.0)
    assert isinstance(caught.value, keelog.OutcomeUnknownError)
    assert caught.value.retriable is False
    time.sleep(0.2)
    assert len(node.stored()) == 2


def test_a_question_without_an_answer_is_a_timeout_of_its_own_kind(
    node: FakeNode, mq: keelog.Client
) -> None:
    assert mq.topics() == []  # connected by now
    node.lose_answers["topics"] = 1
    begin = time.monotonic()
    with pytest.raises(keelog.RequestTimeout):
        mq.topics(timeout=2.0)
    assert 1.9 < time.monotonic() - begin < 15, "the client's own timeout is another one"
    assert mq.topics() == []


def test_an_answer_that_comes_too_late_is_not_taken_for_another(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.send("first", b"connected by now")
    node.delay["append"] = 60.0
    with pytest.raises(keelog.SendTimeout):
        mq.send("first", b"x", timeout=2.0)
    with meanwhile(lambda: len(node.operations("append")) == 3, node.delay.clear):
        assert mq.send("second", b"y").topic == "second"


@pytest.mark.parametrize("same_port", [True, False])
def test_a_send_waits_for_a_writer_that_is_restarted(
    node: FakeNode, mq: keelog.Client, same_port: bool
) -> None:
    mq.send("orders", b"1")
    node.stop_process("writer")
    wait_until(lambda: has_lost(mq, node.endpoints["writer"]), "the end is not seen")
    asked = len(node.operations("routes"))
    with meanwhile(
        lambda: len(node.operations("routes")) > asked,
        lambda: node.start_process("writer", same_port),
    ):
        assert mq.send("orders", b"2").status == "PUT_OK"
    assert [r.body for r in node.stored()] == [b"1", b"2"]


def test_a_writer_that_ends_with_a_send_unanswered_leaves_its_outcome_unknown(
    node: FakeNode, mq: keelog.Client
) -> None:
    node.lose_answers["append"] = 1
    begin = time.monotonic()
    with (
        meanwhile(lambda: not node.lose_answers["append"], lambda: node.stop_process("writer")),
        pytest.raises(keelog.SendTimeout, match="connection"),
    ):
        mq.send("orders", b"x", timeout=60.0)
    assert time.monotonic() - begin < 30, "the lost connection was known at once"


def test_duplicates_ok_repeats_a_send_of_unknown_outcome_with_the_same_key(
    node: FakeNode,
) -> None:
    node.lose_answers["append"] = 1
    with keelog.connect(node.url, timeout=30.0, retry=Retry(duplicates_ok=True)) as mq:

        def restart() -> None:
            node.stop_process("writer")
            time.sleep(0.1)
            node.start_process("writer", same_port=False)

        with meanwhile(lambda: not node.lose_answers["append"], restart):
            receipt = mq.send("orders", b"x")
    first, second = node.stored()
    assert first.unique_key == second.unique_key == receipt.unique_key
    assert receipt.physical_offset == second.physical_offset


@pytest.mark.parametrize("same_port", [True, False])
def test_a_held_pull_lives_through_the_restart_of_its_reader(
    node: FakeNode, mq: keelog.Client, same_port: bool
) -> None:
    mq.create_topic("orders", queues=1)

    def restart() -> None:
        node.stop_process("reader")
        time.sleep(0.1)
        node.start_process("reader", same_port)
        mq.send("orders", b"x", queue_id=0)

    with meanwhile(lambda: node.held_offsets() == [0], restart):
        result = mq.pull("orders", 0, 0, wait=30.0)
    assert [m.body for m in result.messages] == [b"x"]


def test_a_restarted_supervisor_is_asked_again(node: FakeNode, mq: keelog.Client) -> None:
    node.stop_process("control")
    time.sleep(0.1)
    assert mq.send("orders", b"x").status == "PUT_OK"
    timer = threading.Timer(0.2, lambda: node.start_process("control"))
    timer.start()
    assert mq.status().ready
    timer.join()


def test_a_node_that_is_gone_is_not_connected_after_the_timeout(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.topics()
    for name in ("control", "writer", "reader"):
        node.stop_process(name)
    begin = time.monotonic()
    with pytest.raises(keelog.NotConnected):
        mq.send("orders", b"x", timeout=0.5)
    with pytest.raises(keelog.NotConnected):
        mq.topics(timeout=0.5)
    assert 0.8 < time.monotonic() - begin < 15, "the client's own timeout is another one"


def test_closing_ends_calls_of_other_threads(node: FakeNode) -> None:
    mq = keelog.connect(node.url)
    mq.create_topic("orders", queues=1)
    caught: list[BaseException] = []

    def pull() -> None:
        try:
            mq.pull("orders", 0, 0, wait=30.0)
        except keelog.ClientClosed as error:
            caught.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    wait_until(lambda: node.held_offsets() == [0], "a held pull")
    mq.close()
    thread.join(15)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_a_client_that_nobody_closes_ends_with_its_owner(node: FakeNode) -> None:
    before = threading.active_count()
    mq = keelog.connect(node.url)
    assert threading.active_count() > before
    del mq
    wait_until(lambda: threading.active_count() == before, "its thread runs on")


def test_a_client_that_ends_as_its_routes_arrive_closes_its_sockets(node: FakeNode) -> None:
    """The routes let a call begin a connection, while the end looks at those that there are."""
    outcomes: list[object] = []
    with keelog.connect(node.url) as mq:
        io = mq._core.io

        def end_with_routes_unread() -> None:
            time.sleep(2 * ROUTES_INTERVAL_S)  # or they would be asked for later
            io._stale = True
            over = time.monotonic() + 30.0
            call = Call(NodeRole.WRITER, "append", {}, over, done=outcomes.append)
            io.start(call)
            assert io._links[node.url].socket.poll(10_000), "no routes"
            io._stopping = True

        assert io.post(end_with_routes_unread)
        io._thread.join(30.0)
    assert [type(outcome) for outcome in outcomes] == [keelog.ClientClosed]
    assert io._context.closed


def test_no_call_is_forgotten_while_processes_restart_again_and_again(node: FakeNode) -> None:
    with keelog.connect(node.url, timeout=20.0) as mq:
        mq.create_topic("orders", queues=2)
        acked: list[str] = []
        slowest = 0.0
        stop = threading.Event()

        def send() -> None:
            nonlocal slowest
            while not stop.is_set():
                begin = time.monotonic()
                with suppress(keelog.SendTimeout):
                    acked.append(mq.send("orders", b"x").unique_key)
                slowest = max(slowest, time.monotonic() - begin)

        follower = mq.tail("orders", "earliest")
        thread = threading.Thread(target=send)
        thread.start()
        for turn in range(12):
            name = ("writer", "reader")[turn % 2]
            node.stop_process(name)
            time.sleep(0.02 * (turn % 4))
            node.start_process(name, same_port=turn % 3 == 0)
            time.sleep(0.1)
        stop.set()
        thread.join(30)
        stored = [record.unique_key for record in node.stored()]
        assert set(acked) <= set(stored)
        assert slowest < 10, "a call whose connection was lost must not wait for its deadline"
        assert sorted(next(follower).unique_key for _ in stored) == sorted(stored)
