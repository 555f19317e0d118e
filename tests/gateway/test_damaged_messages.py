"""One damaged record costs a group that one message, and is told of at once."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import keelog.aio
from keelog import MessageDamaged, NotFound, StoreDamaged
from keelog.client.results import Receipt
from node.reader.tail_cache import TURN_BYTES_MAX
from protocol.record.codec import Record, decode
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.support.flipped_record import flip_record
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, Answered, RemotingPeer, pull_fields, remoting_place

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("damaged-messages"),
    pytest.mark.timeout(180),
]
COUNT, BAD = 10, 4
SEEN_S = 5.0
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("damaged") / "store"
    with RunningNode(root, (REMOTING,), queue_workers=1, readers=1) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name.replace("[", "-").rstrip("]")


def body(number: int) -> bytes:
    return b"body %02d " % number + b"x" * 60


def send(node: RunningNode, topic: str, **options: object) -> list[Receipt]:
    """COUNT messages in one queue; the one with the number BAD is damaged."""
    node.client.create_topic(topic, queues=1)
    sent = [node.client.send(topic, body(n), keys=("k", f"k{n}"), queue_id=0) for n in range(COUNT)]
    damage(node, sent[BAD])
    return sent


def damage(node: RunningNode, place: Receipt) -> None:
    # So much that no process has the newest records in memory any more.
    node.client.send("filler", bytes(2 * TURN_BYTES_MAX))
    node.wait_dispatched()
    flip_record(node.root, place.physical_offset)


def is_told(node: RunningNode, place: Receipt, process: str) -> bool:
    return any(
        one.offset == place.physical_offset and one.process == process
        for one in node.client.status().damage
    )


def numbers(answered: Answered) -> list[int]:
    """The queue offsets of the messages of an answer."""
    found, at = [], 0
    while at < len(answered.body):
        record = decode(answered.body, at)
        assert isinstance(record, Record)
        found.append(record.head.queue_offset)
        at += record.size
    return found


def pull_all(peer: RemotingPeer, topic: str, group: str = "g") -> tuple[list[int], list[int]]:
    """As a client of RocketMQ's pulls a queue to its end: the offsets, and the codes."""
    got: list[int] = []
    codes: list[int] = []
    at = 0
    while not codes or codes[-1] in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
        found = peer.ask(PULL, pull_fields(topic, 0, at, consumerGroup=group))
        codes.append(found.code)
        got += numbers(found)
        at = int(found.ext["nextBeginOffset"])
    return got, codes


def keelog_command(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keelog", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


EXPECTED = [number for number in range(COUNT) if number != BAD]
CODES = [
    ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
]  # fmt: skip


@pytest.mark.parametrize("name", ["orders", "%RETRY%g"])
def test_a_client_of_rocketmqs_gets_all_but_the_damaged_message(
    node: RunningNode, peer: RemotingPeer, name: str
) -> None:
    sent = send(node, name)
    assert pull_all(peer, name) == (EXPECTED, CODES)
    wait_until(lambda: is_told(node, sent[BAD], "gateway"), "nobody tells of it", SEEN_S)
    line = f"{sent[BAD].physical_offset}"
    wait_until(
        lambda: any("damage was found" in one and line in one for one in node.stderr.splitlines()),
        "the log does not say it",
        SEEN_S,
    )
    assert not next(one for one in node.client.health().checks if one.name == "damage").ok


def test_a_damaged_message_at_the_end_of_its_queue_is_passed_over(
    node: RunningNode, peer: RemotingPeer, topic: str
) -> None:
    node.client.create_topic(topic, queues=1)
    sent = [node.client.send(topic, body(n), queue_id=0) for n in range(2)]
    damage(node, sent[1])
    assert pull_all(peer, topic)[0] == [0]
    node.client.send(topic, body(2), queue_id=0)
    found = peer.ask(PULL, pull_fields(topic, 0, 2, sysFlag=6, suspendTimeoutMillis=5_000))
    assert numbers(found) == [2]


def test_with_the_setting_off_a_pull_is_refused_and_says_where_the_queue_goes_on(
    tmp_path: Path,
) -> None:
    pairs = (REMOTING, "skip_damaged_message=false")
    with RunningNode(tmp_path / "store", pairs, queue_workers=1, readers=1) as node:
        send(node, "orders")
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            found = peer.ask(PULL, pull_fields("orders", 0, BAD))
            assert found.code == ResponseCode.SYSTEM_ERROR
            assert int(found.ext["nextBeginOffset"]) == BAD + 1
        # What a program of ours wants counts for its own group.
        with node.client.consumer("ours", "orders", start="earliest") as consumer:
            assert take(consumer, COUNT - 1) == EXPECTED


def take(consumer: keelog.Consumer, count: int, wait_s: float = 30.0) -> list[int]:
    got: list[int] = []
    until = time.monotonic() + wait_s
    while len(got) < count and time.monotonic() < until:
        message = consumer.get(1.0)
        if message is not None:
            got.append(message.queue_offset)
            message.ack()
    return got


def test_a_consumer_of_ours_skips_it_with_a_warning_and_commits_past_it(
    node: RunningNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(node, topic)
    with (
        caplog.at_level(logging.WARNING, "keelog.client"),
        node.client.consumer(f"g-{topic}", topic, start="earliest") as consumer,
    ):
        assert take(consumer, COUNT - 1) == EXPECTED
        consumer.commit()
    assert f"message {BAD} of queue 0" in caplog.text
    wait_until(
        lambda: node.client.cursor(topic, f"g-{topic}") == {0: COUNT}, "it was not committed", 10
    )


def test_a_function_gets_the_damage(node: RunningNode, topic: str) -> None:
    sent, met = send(node, topic), list[MessageDamaged]()
    with node.client.consumer(
        f"g-{topic}", topic, start="earliest", on_damage=met.append
    ) as consumer:
        assert take(consumer, COUNT - 1) == EXPECTED
    (error,) = met
    assert (error.offset, error.queue_offset, error.next_offset) == (
        sent[BAD].physical_offset, BAD, BAD + 1,
    )  # fmt: skip
    assert "checksum" in error.found
    assert "store verify" in error.hint


def test_a_function_that_fails_itself_stops_the_queue_there_and_no_more(
    node: RunningNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(node, topic)

    def fails(_: MessageDamaged) -> None:
        raise ValueError("of the program")

    with node.client.consumer(f"g-{topic}", topic, start="earliest", on_damage=fails) as consumer:
        got: list[int] = []
        with pytest.raises(MessageDamaged):
            while (message := consumer.get(30)) is not None:
                got.append(message.queue_offset)
                message.ack()
        assert got == list(range(BAD))
    assert "ValueError: of the program" in caplog.text
    assert node.client.cursor(topic, f"g-{topic}") == {0: BAD}


def test_fail_raises_it_after_all_messages_before_it(node: RunningNode, topic: str) -> None:
    send(node, topic)
    node.client.create_topic(f"{topic}-2", queues=1)
    with node.client.consumer(
        f"g-{topic}", [topic, f"{topic}-2"], start="earliest", on_damage="fail"
    ) as consumer:
        got: list[int] = []
        with pytest.raises(MessageDamaged) as met:
            while (message := consumer.get(30)) is not None:
                got.append(message.queue_offset)
                message.ack()
        assert (got, met.value.next_offset) == (list(range(BAD)), BAD + 1)
        node.client.send(f"{topic}-2", b"goes on", queue_id=0)
        until = time.monotonic() + 30
        other = None
        while other is None and time.monotonic() < until:
            try:
                other = consumer.get(1)
            except MessageDamaged:
                time.sleep(0.01)
        assert other is not None, "other queues go on"
        other.ack()
    assert node.client.cursor(topic, f"g-{topic}") == {0: BAD}


def test_an_asyncio_consumer_has_the_same_choice(node: RunningNode, topic: str) -> None:
    send(node, topic)

    async def read(on_damage: str, group: str) -> list[int]:
        got = []
        async with (
            keelog.aio.connect(node.endpoint) as client,
            client.consumer(group, topic, start="earliest", on_damage=on_damage) as consumer,  # type: ignore[arg-type]
        ):
            async for message in consumer:
                got.append(message.queue_offset)
                message.ack()
                if len(got) == COUNT - 1:
                    break
        return got

    assert asyncio.run(asyncio.wait_for(read("skip", f"a-{topic}"), 60)) == EXPECTED
    with pytest.raises(MessageDamaged):
        asyncio.run(asyncio.wait_for(read("fail", f"b-{topic}"), 60))


def test_consume_group_prints_the_others_and_ends_with_5(node: RunningNode, topic: str) -> None:
    sent = send(node, topic)
    words = ["consume", topic, "--node", node.endpoint, "-f", r"%o\n"]
    done = keelog_command([*words, "--group", f"a-{topic}", "-n", str(COUNT - 1)])
    assert done.returncode == 5
    assert [int(line) for line in done.stdout.split()] == EXPECTED
    assert f"offset {sent[BAD].physical_offset}" in done.stderr
    assert "1 damaged; see all damage" in done.stderr
    failed = keelog_command(
        [*words, "--group", f"b-{topic}", "-n", str(COUNT - 1), "--on-damage", "fail"]
    )
    assert failed.returncode == 5
    assert [int(line) for line in failed.stdout.split()] == list(range(BAD))


# Look-ups


def found_numbers(messages: object) -> list[int]:
    return [message.queue_offset for message in messages]  # type: ignore[attr-defined]


def test_a_look_up_by_key_gives_all_other_messages(
    node: RunningNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, newest_first = send(node, topic), EXPECTED[::-1]
    wait_until(lambda: bool(list(node.client.find(topic, "k9"))), "no index")
    got: list[int] = []
    with pytest.raises(StoreDamaged) as met:
        for message in node.client.find(topic, "k"):
            got.append(message.queue_offset)
    assert got == newest_first
    assert met.value.offset == sent[BAD].physical_offset
    with caplog.at_level(logging.WARNING, "keelog.client"):
        assert found_numbers(node.client.find(topic, "k", on_damage="skip")) == newest_first
    assert "checksum" in caplog.text
    told: list[StoreDamaged] = []
    limited = node.client.find(topic, "k", on_damage=told.append, limit=7)
    assert found_numbers(limited) == newest_first[:7]
    assert [one.offset for one in told] == [sent[BAD].physical_offset]
    with pytest.raises(StoreDamaged):
        node.client.get(topic=topic, unique_key=sent[BAD].unique_key)
    with pytest.raises(NotFound):
        node.client.get(topic=topic, unique_key="absent")
    wait_until(lambda: is_told(node, sent[BAD], "reader 0"), "nobody tells of it", SEEN_S)

    async def find() -> list[int]:
        async with keelog.aio.connect(node.endpoint) as client:
            found = client.find(topic, "k", on_damage="skip")
            return [message.queue_offset async for message in found]

    assert asyncio.run(find()) == newest_first


def test_msg_find_prints_the_others_and_ends_with_5(node: RunningNode, topic: str) -> None:
    sent = send(node, topic)
    wait_until(lambda: bool(list(node.client.find(topic, "k9"))), "no index")
    words = ["msg", "find", "--node", node.endpoint, "--topic", topic, "--jsonl"]
    done = keelog_command([*words, "--key", "k"])
    assert (done.returncode, len(done.stdout.splitlines())) == (5, COUNT - 1)
    assert f"offset {sent[BAD].physical_offset}" in done.stderr
    assert "1 damaged; see all damage" in done.stderr
    alone = keelog_command([*words, "--key", f"k{BAD}"])
    assert (alone.returncode, alone.stdout) == (5, "")
    failed = keelog_command([*words, "--key", "k", "--on-damage", "fail"])
    assert failed.returncode == 5
    assert failed.stderr.startswith("error: ")


def test_rocketmqs_look_up_by_key_gives_the_others(
    node: RunningNode, peer: RemotingPeer, topic: str
) -> None:
    send(node, topic)
    wait_until(lambda: bool(list(node.client.find(topic, "k9"))), "no index")
    asked = {"topic": topic, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    assert numbers(peer.ask(RequestCode.QUERY_MESSAGE, {**asked, "key": "k"})) == EXPECTED
    alone = peer.ask(RequestCode.QUERY_MESSAGE, {**asked, "key": f"k{BAD}"})
    assert alone.code == ResponseCode.SYSTEM_ERROR
    assert "checksum" in str(alone.header.remark)


@pytest.mark.parametrize(
    "code", [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK]
)
def test_what_the_gateway_looks_up_and_finds_damaged_is_told(
    node: RunningNode, peer: RemotingPeer, topic: str, code: int
) -> None:
    bad = send(node, topic)[BAD]
    fields: dict[str, object] = {"offset": bad.physical_offset}
    if code == RequestCode.CONSUMER_SEND_MSG_BACK:
        fields |= {"group": "g", "delayLevel": 0}
    assert "checksum" in str(peer.ask(code, fields).header.remark)
    wait_until(lambda: is_told(node, bad, "gateway"), "nobody tells of it", SEEN_S)


def test_a_place_by_time_is_found_beside_damage(
    node: RunningNode, peer: RemotingPeer, topic: str
) -> None:
    sent = send(node, topic)
    flip_record(node.root, sent[-1].physical_offset)
    flip_record(node.root, sent[0].physical_offset)

    def place(timestamp: int) -> int:
        asked = {"topic": topic, "queueId": 0, "timestamp": timestamp, "boundaryType": "LOWER"}
        found = peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked)
        assert found.code == ResponseCode.SUCCESS, found.header.remark
        return int(found.ext["offset"])

    heads = {one: node.client.pull(topic, 0, one).messages[0].record.head for one in (1, 2, 3, 5)}
    wanted = heads[BAD + 1].store_timestamp
    least = min(one for one, head in heads.items() if head.store_timestamp >= wanted)
    assert place(0) == 0
    assert place(wanted) in ((BAD, BAD + 1) if least == BAD + 1 else (least - 1, least))
    assert place(2**60) in (COUNT - 1, COUNT)
    assert node.client.seek(topic, 0, 2**50) in (COUNT - 1, COUNT)
    first = peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": topic, "queueId": 0})
    assert (first.code, first.ext["timestamp"]) == (ResponseCode.SUCCESS, "-1")
