"""`Retry(once=True)` and RocketMQ's clients at a real node: a repeated key is stored once."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import keelog
import keelog.aio
from keelog import BadRequest, MqError, OutcomeUnknownError, OutgoingMessage, Receipt, Retry
from keelog.client.send.record_batch import BatchReceipt
from node.runtime.stats import read_stats
from node.runtime.stats_series import REPEATED
from node.writer.loop import HEARTBEAT_S
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields

ONCE = Retry(once=True, max_attempts=100)
WINDOW = ("idempotent_window=600", "idempotent_remoting=true", "message_delay_level=1s 1h")

one_node = pytest.mark.xdist_group("stored_once")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("once") / "store"
    with RunningNode(root, (REMOTING, *WINDOW), queue_workers=1, readers=1) as running:
        yield running


@pytest.fixture
def mq(node: RunningNode) -> Iterator[keelog.Client]:
    with keelog.connect(node.endpoint, timeout=30.0, retry=ONCE) as client:
        yield client


def keys_of(node: RunningNode, topic: str) -> list[str]:
    return [one.unique_key for one in node.client.tail(topic, "earliest", until_end=True)]


def place_of(receipt: Receipt) -> tuple[object, ...]:
    """All but whether it was on disk by then."""
    return receipt._replace(flushed=False)


@pytest.mark.process
@one_node
def test_a_repeated_send_gets_the_receipt_of_the_first(
    node: RunningNode, mq: keelog.Client
) -> None:
    first = mq.send("lone", b"1", unique_key="k", queue_id=2)
    again = mq.send("lone", b"2", unique_key="k", queue_id=5, acks="flushed")
    assert place_of(again) == place_of(first)
    assert again.flushed
    assert place_of(mq.send("lone", b"3", unique_key="k")) == place_of(first)
    assert node.client.send("lone", b"4", unique_key="k", queue_id=3).queue_offset == 0
    assert keys_of(node, "lone") == ["k", "k"], "who does not ask is stored"
    assert mq.get(first.msg_id).body == b"1"


@pytest.mark.process
@one_node
def test_messages_that_were_stored_before_are_counted(node: RunningNode, mq: keelog.Client) -> None:
    def counted() -> int:
        return sum(
            count
            for slot in read_stats(node.root)
            for one, count in slot.values.items()
            if one.family is REPEATED
        )

    time.sleep(10 * HEARTBEAT_S)  # what other tests sent is counted
    before = counted()
    for _ in range(4):
        mq.send("counted", b"1", unique_key="k")
    wait_until(lambda: counted() >= before + 3, "they are not counted")
    assert counted() == before + 3


@pytest.mark.process
@one_node
def test_of_many_messages_the_new_ones_are_stored(node: RunningNode, mq: keelog.Client) -> None:
    def messages(*keys: str) -> list[OutgoingMessage]:
        return [
            OutgoingMessage(b"x", unique_key=key, queue_id=number % 3)
            for number, key in enumerate(keys)
        ]

    with mq.producer() as producer:
        first = producer.send_many("many", messages("a", "b", "c"))
        mixed = producer.send_many("many", messages("d", "c", "b", "e", "d"))
        whole = producer.send_many("many", messages("a", "b", "c"))
    assert [place_of(mixed[1]), place_of(mixed[2])] == [place_of(first[2]), place_of(first[1])]
    assert place_of(mixed[4]) == place_of(mixed[0])
    assert sorted(keys_of(node, "many")) == ["a", "b", "c", "d", "e"]
    for receipt in (*first, *mixed):
        assert mq.get(receipt.msg_id).unique_key == receipt.unique_key
    assert [place_of(one) for one in whole] == [place_of(one) for one in first]


@pytest.mark.process
@one_node
def test_producers_and_the_asyncio_client_ask_too(node: RunningNode, mq: keelog.Client) -> None:
    with mq.producer() as producer:
        futures = [producer.send_nowait("both", b"x", unique_key=f"k{n % 40}") for n in range(400)]
        places = [place_of(future.result(30)) for future in futures]
    assert places == places[:40] * 10

    async def send() -> list[Receipt]:
        async with keelog.aio.connect(node.endpoint, retry=ONCE) as client:
            sends = (client.send("both", b"y", unique_key=f"k{n}") for n in range(40))
            return list(await asyncio.gather(*sends))

    assert [place_of(one) for one in asyncio.run(send())] == places[:40]
    assert sorted(keys_of(node, "both")) == sorted(f"k{number}" for number in range(40))


@pytest.mark.process
@one_node
def test_a_delayed_message_waits_once(node: RunningNode, mq: keelog.Client) -> None:
    first = mq.send("late", b"x", unique_key="k", queue_id=3, delay_level=2)
    again = mq.send("late", b"x", unique_key="k", queue_id=4, delay_level=2)
    assert place_of(again) == place_of(first)
    at_times = [mq.send("late", b"x", unique_key="k", delay=900) for _ in range(2)]
    assert at_times[0].physical_offset != at_times[1].physical_offset
    other = mq.send("later", b"x", unique_key="k", queue_id=3, delay_level=2)
    assert other.queue_offset == first.queue_offset + 1


@pytest.mark.process
@one_node
def test_rocketmqs_clients_get_the_first_answer_again(node: RunningNode) -> None:
    send = RequestCode.SEND_MESSAGE_V2
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:

        def ask(topic: str, queue: int) -> dict[str, str]:
            fields = send_fields(topic, queue, i="UNIQ_KEY\x01JAVA\x02")
            answer = peer.ask(send, fields, b"body")
            assert answer.code == ResponseCode.SUCCESS
            return {name: answer.ext[name] for name in ("msgId", "queueId", "queueOffset")}

        first = ask("java", 3)
        assert (first["queueId"], first["queueOffset"]) == ("3", "0")
        assert ask("java", 1) == first
        tries = [ask("%RETRY%group", 0)["queueOffset"] for _ in range(2)]
    assert keys_of(node, "java") == ["JAVA"]
    assert tries == ["0", "1"], "a message that fails again is another one"


@pytest.mark.process
def test_a_node_without_a_window_says_so(tmp_path: Path) -> None:
    settings = ("flush_disk_type=SYNC_FLUSH",)
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as plain:
        with (
            keelog.connect(plain.endpoint, retry=ONCE) as client,
            pytest.raises(BadRequest, match="does not look for repeated keys"),
        ):
            client.send("topic", b"x")
        assert plain.client.send("topic", b"x").queue_offset == 0


@pytest.mark.process
def test_in_sync_flush_a_repeat_does_not_wait_for_another_flush(tmp_path: Path) -> None:
    settings = ("flush_disk_type=SYNC_FLUSH", "idempotent_window=600")
    with (
        RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node,
        keelog.connect(node.endpoint, timeout=30.0, retry=ONCE) as client,
    ):
        first = client.send("topic", b"x", unique_key="k")
        began = time.monotonic()
        assert client.send("topic", b"x", unique_key="k") == first
        assert first.flushed
        assert time.monotonic() - began < 4.0, "sync_flush_timeout is 5 s"


class Repeater:
    """Sends keys, each of them again at random, and again where it does not know the outcome."""

    def __init__(self, node: RunningNode, keys: list[str], seed: int) -> None:
        self._node = node
        self._keys = keys
        self._rng = random.Random(seed)
        self.receipts: dict[str, set[tuple[object, ...]]] = {}
        self.sends = self.unknown = 0

    def run(self) -> None:
        # Few attempts: what is not known then is this program's to repeat.
        retry = Retry(once=True, max_attempts=3)
        with keelog.connect(self._node.endpoint, timeout=30.0, retry=retry) as client:
            sent: list[str] = []
            for key in self._keys:
                self._send(client, key)
                sent.append(key)
                if self._rng.random() < 0.5:
                    self._send(client, self._rng.choice(sent[-200:]))

    def _send(self, client: keelog.Client, key: str) -> None:
        while True:
            self.sends += 1
            try:
                receipt = client.send("kept", key.encode(), unique_key=key)
            except OutcomeUnknownError:
                self.unknown += 1
            except MqError as error:
                if not error.retriable:
                    raise
            else:
                place = receipt.queue_id, receipt.queue_offset, receipt.msg_id
                self.receipts.setdefault(key, set()).add(place)
                return


def check_stored_once(root: Path, keys: int, threads: int, kills: int) -> int:
    """Sends under kills of the writer, evenly over all sends; returns how many sends there were."""
    settings = ("idempotent_window=600", "mapped_file_size_commit_log=4MiB")
    with RunningNode(root, settings, queue_workers=1, readers=1) as node:
        node.client.create_topic("kept", queues=8)
        repeaters = [
            Repeater(node, [f"{number}-{row}" for row in range(keys // threads)], number)
            for number in range(threads)
        ]
        pool = ThreadPoolExecutor(threads)
        running = [pool.submit(one.run) for one in repeaters]
        for kill in range(1, kills + 1):
            least = kill * keys // (kills + 1)
            wait_until(
                lambda least=least: sum(len(one.receipts) for one in repeaters) >= least,  # type: ignore[misc]
                "the sends do not go on",
                240,
            )
            node.kill("writer")
        for future in running:
            future.result(300)
        counts = Counter(keys_of(node, "kept"))
        assert len(counts) == keys // threads * threads
        assert counts.most_common(1)[0][1] == 1
        for repeater in repeaters:
            assert all(len(places) == 1 for places in repeater.receipts.values())
        return sum(one.sends for one in repeaters)


class RemotingRepeater:
    """As Repeater, over RocketMQ's protocol: it connects again, and sends again what got no good
    answer."""

    def __init__(self, place: tuple[str, int], keys: list[str], seed: int) -> None:
        self._place = place
        self._keys = keys
        self._rng = random.Random(seed)
        self._peer: RemotingPeer | None = None
        self.places: dict[str, set[tuple[str, ...]]] = {}
        self.sends = 0

    def run(self) -> None:
        sent: list[str] = []
        for key in self._keys:
            self._send(key)
            sent.append(key)
            if self._rng.random() < 0.5:
                self._send(self._rng.choice(sent[-50:]))
        if self._peer is not None:
            self._peer.close()

    def _send(self, key: str) -> None:
        deadline = time.monotonic() + 30
        while not self._is_stored(key):
            assert time.monotonic() < deadline, f"{key} is not stored"
            time.sleep(0.02)

    def _is_stored(self, key: str) -> bool:
        self.sends += 1
        fields = send_fields("kept", self._rng.randrange(4), i=f"UNIQ_KEY\x01{key}\x02")
        try:
            if self._peer is None:
                self._peer = RemotingPeer(self._place)
            answer = self._peer.ask(RequestCode.SEND_MESSAGE_V2, fields, key.encode())
        except OSError:
            if self._peer is not None:
                self._peer.close()
            self._peer = None
            return False
        if answer.code != ResponseCode.SUCCESS:
            return False
        place = tuple(answer.ext[name] for name in ("msgId", "queueId", "queueOffset"))
        self.places.setdefault(key, set()).add(place)
        return True


@pytest.mark.process
def test_kills_of_gateway_and_writer_store_each_key_of_rocketmqs_clients_once(
    tmp_path: Path,
) -> None:
    each, threads = 400, 3
    with RunningNode(tmp_path / "store", (REMOTING, *WINDOW), queue_workers=1, readers=1) as node:
        node.client.create_topic("kept", queues=4)
        place = remoting_place(node.stderr)
        repeaters = [
            RemotingRepeater(place, [f"{number}-{row}" for row in range(each)], number)
            for number in range(threads)
        ]
        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(one.run) for one in repeaters]
            for kill, role in enumerate(("gateway", "writer", "gateway"), 1):
                least = kill * each * threads // 4

                def is_far(least: int = least) -> bool:
                    return sum(len(one.places) for one in repeaters) >= least

                wait_until(is_far, "the sends do not go on", 30)
                node.kill(role)
            for future in running:
                future.result(60)
        node.wait_all_run()
        counts = Counter(keys_of(node, "kept"))
    assert len(counts) == each * threads
    assert counts.most_common(1)[0][1] == 1
    for repeater in repeaters:
        assert all(len(places) == 1 for places in repeater.places.values())
        assert repeater.sends > each


@pytest.mark.process
def test_a_writer_that_is_killed_stores_each_key_once(tmp_path: Path) -> None:
    assert check_stored_once(tmp_path / "store", keys=3_000, threads=4, kills=3) > 4_000


@pytest.mark.faults
def test_a_hundred_thousand_sends_under_kills_store_each_key_once(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    sends = check_stored_once(tmp_path / "store", keys=70_000, threads=8, kills=8)
    record_property("sends, each key stored once", sends)
    assert sends > 100_000


def test_a_batch_receipt_names_the_first_ones() -> None:
    answer = {
        "queues": [["t", 1, 10, 2]], "status": "PUT_OK", "flushed": False, "store_timestamp": 9,
        "physical_offset": 1_000, "store_host": "127.0.0.1:7850",
        "repeated": [[1, 5, 3, 70, 8], [3, 6, 4, 80, 7]],
    }  # fmt: skip
    receipt = BatchReceipt("t", [100, 110, 120, 130], ["a", "b", "c", "d"], answer)
    places = [(one.queue_id, one.queue_offset, one.physical_offset) for one in receipt]
    assert places == [(1, 10, 1_000), (5, 3, 70), (1, 11, 1_100), (6, 4, 80)]
    assert [one.store_timestamp for one in receipt] == [9, 8, 9, 7]
    assert receipt[1] == list(receipt)[1]
    assert receipt[-1:] == list(receipt)[-1:]
    answer |= {"queues": [["t", 6, 4, 1]], "repeated": [[0, 5, 3, 70, 8], [1, 6, 4, 80, 7]]}
    whole = BatchReceipt("t", [100, 110], ["a", "b"], answer)
    assert [(one.queue_id, one.queue_offset) for one in whole] == [(5, 3), (6, 4)]
    assert (whole.queue_id, whole.queue_offset, whole.physical_offset) == (5, 3, 70)
