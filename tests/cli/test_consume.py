"""`keelog consume` and `tail` where something goes wrong, and over several runs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

import keelog.aio
from keelog import OutgoingMessage
from protocol.errors import BadRequest, MessageDamaged
from protocol.names import CONSUMER_OFFSETS_FILE
from tests.cli.conftest import SMALL, segment_of
from tests.support.cli import keelog_text
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-node")]

Done = subprocess.CompletedProcess[str]


def consume(node: RunningNode, *words: str) -> Done:
    return keelog_text(node.endpoint, ["consume", *words])


class Follower:
    """`keelog consume` that runs until it is ended; what it says, line by line."""

    def __init__(self, node: RunningNode, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keelog", "consume", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "KEELOG_NODE": node.endpoint},
            # A shell makes its background jobs ignore it, and their children too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, stream: Iterator[str], lines: list[str]) -> None:
        for line in stream:
            if line != "\n":  # which a Ctrl-C prints
                lines.append(line.rstrip("\n"))

    def wait_for(self, lines: list[str], wanted: str, times: int = 1) -> None:
        def is_there() -> bool:
            return sum(wanted in line for line in lines) >= times

        wait_until(is_there, f"{wanted!r} of {self.out} {self.err}", 60)

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        for thread in self._threads:
            thread.join(10)
        return code


@contextmanager
def following(node: RunningNode, *words: str) -> Iterator[Follower]:
    follower = Follower(node, *words)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait()
        for stream in (follower.process.stdout, follower.process.stderr):
            assert stream is not None
            stream.close()


def send(node: RunningNode, topic: str, bodies: list[bytes], queues: int = 1) -> list[int]:
    """The physical offsets; message n goes to queue n modulo `queues`."""
    messages = [
        OutgoingMessage(body, queue_id=number % queues) for number, body in enumerate(bodies)
    ]
    with node.client.producer() as producer:
        receipts = producer.send_many(topic, messages)
    node.wait_dispatched()
    return [receipt.physical_offset for receipt in receipts]


def damage(node: RunningNode, place: int, body: bytes) -> Path:
    segment = segment_of(node.root, place)
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(body, place - int(segment.name)))
        file.write(b"#")
    return segment


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node of its own: others check the store of the shared one."""
    with RunningNode(tmp_path_factory.mktemp("hurt") / "store", SMALL, readers=1) as running:
        yield running


@pytest.fixture(scope="module")
def dented(hurt: RunningNode) -> tuple[list[Path], list[int]]:
    """The topic `dents`, 4 queues of 10; damaged: messages 2 and 3 of queue 1."""
    bodies = [b"body-%02d" % number for number in range(40)]
    places = send(hurt, "dents", bodies, 4)
    segments = [damage(hurt, places[number], bodies[number]) for number in (9, 13)]
    return segments, [places[9], places[13]]


def per_queue(text: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for line in text.splitlines():
        queue, offset = map(int, line.split()[:2])
        found[queue].append(offset)
    return dict(found)


WHOLE = {queue: list(range(10)) for queue in range(4)}
WITHOUT = {**WHOLE, 1: [0, 1, *range(4, 10)]}


def test_damage_costs_only_the_damaged_messages(
    hurt: RunningNode, dented: tuple[list[Path], list[int]]
) -> None:
    for words in ((), ("--merge",)):
        done = consume(hurt, "dents", "-e", "-f", r"%q %o\n", *words)
        assert done.returncode == 5
        assert per_queue(done.stdout) == WITHOUT
        lines = done.stderr.splitlines()
        assert len(lines) == 3, lines
        for line, segment, place, number in zip(lines, *dented, (2, 3), strict=False):
            assert line.startswith(f"damage: {segment}, offset {place}: ")
            assert f"message {number} of queue 1 of dents" in line
        assert lines[-1].startswith("2 damaged; see all damage")
        assert lines[-1].endswith(f"keelog store verify {hurt.root} --deep")


def test_on_damage_fail_ends_at_the_first_damaged_message(
    hurt: RunningNode, dented: tuple[list[Path], list[int]]
) -> None:
    done = consume(hurt, "dents", "-e", "-f", r"%q %o\n", "--on-damage", "fail")
    assert done.returncode == 5
    assert per_queue(done.stdout) == {0: list(range(10)), 1: [0, 1]}
    error, cause, hint = done.stderr.splitlines()
    assert (error, str(dented[1][0]) in cause) == ("error: cannot read dents", True)
    assert hint.endswith("keelog consume dents --queue 1 -o 3")


def test_a_tail_fails_at_damage_or_goes_on_after_it(
    hurt: RunningNode, dented: tuple[list[Path], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(MessageDamaged):
        list(hurt.client.tail("dents", "earliest", until_end=True))
    errors: list[MessageDamaged] = []
    found: dict[int, list[int]] = defaultdict(list)
    for message in hurt.client.tail("dents", "earliest", until_end=True, on_damage=errors.append):
        found[message.queue_id].append(message.queue_offset)
    assert (dict(found), [error.queue_offset for error in errors]) == (WITHOUT, [2, 3])
    count = len(list(hurt.client.tail("dents", "earliest", until_end=True, on_damage="skip")))
    assert (count, sum("passed over" in text for text in caplog.messages)) == (38, 2)
    for option in ("no", 3):
        with pytest.raises(BadRequest, match="on_damage"):
            hurt.client.tail("dents", on_damage=option)  # type: ignore[arg-type]


def test_a_consumer_that_stops_at_damage_says_where_to_go_on(hurt: RunningNode) -> None:
    bodies = [b"one", b"two", b"three", b"four"]
    place = send(hurt, "dented", bodies)[2]
    segment = damage(hurt, place, b"three")
    words = ["dented", "--until-end", "--queue", "0", "-f", "%v\\n", "--on-damage", "fail"]
    done = consume(hurt, *words)
    assert (done.returncode, done.stdout) == (5, "one\ntwo\n")
    error, cause, hint = done.stderr.splitlines()
    assert error == "error: cannot read dented"
    assert f"{segment}, offset {place}: " in cause
    assert hint.endswith("keelog consume dented --queue 0 -o 3")
    after = consume(hurt, *words, "-o", "3")
    assert (after.returncode, after.stdout) == (0, "four\n")


def test_a_follower_goes_on_after_damage(
    hurt: RunningNode, dented: tuple[list[Path], list[int]]
) -> None:
    for words in ((), ("--merge",)):
        done = consume(hurt, "dents", "-n", "38", "-f", r"%q %o\n", *words)
        assert (done.returncode, per_queue(done.stdout)) == (5, WITHOUT), done.stderr


def test_merge_prints_messages_in_the_order_in_which_they_were_stored(node: RunningNode) -> None:
    bodies = [b"%d" % number for number in range(3000)]
    messages = [OutgoingMessage(body, queue_id=n * n % 7) for n, body in enumerate(bodies)]
    with node.client.producer() as producer:
        producer.send_many("merged", messages)
    done = consume(node, "merged", "-e", "--merge", "-f", r"%v\n")
    assert done.stdout.encode().split() == bodies
    some = consume(node, "merged", "--merge", "-f", r"%v\n", "-n", "2500")
    assert some.stdout.encode().split() == bodies[:2500]
    in_turn = consume(node, "merged", "-e", "-f", r"%v\n").stdout.encode().split()
    assert in_turn != bodies
    assert sorted(in_turn) == sorted(bodies)


def test_merge_follows_what_is_produced_later(node: RunningNode) -> None:
    send(node, "merged-live", [b"0", b"1", b"2"], 3)
    with following(node, "merged-live", "--merge", "-f", r"%v\n") as follower:
        follower.wait_for(follower.out, "2")
        for number in range(3, 40):
            node.client.send("merged-live", b"%d" % number, queue_id=number * 5 % 8)
        follower.wait_for(follower.out, "39")
        assert follower.end() == 130
        assert follower.out == [str(number) for number in range(40)]
        assert follower.err == []


def test_a_cursor_goes_on_where_it_stopped(node: RunningNode) -> None:
    send(node, "orders-c", [b"%d" % number for number in range(50)], 3)
    words = ("orders-c", "--cursor", "billing", "-f", r"%v\n")
    first = consume(node, *words, "-e", "-n", "20").stdout.split()
    second = consume(node, *words, "-n", "15").stdout.split()
    third = consume(node, *words, "-e", "--merge").stdout.split()
    assert (len(first), len(second), len(third)) == (20, 15, 15)
    assert sorted(map(int, first + second + third)) == list(range(50))
    again = consume(node, *words, "-e")
    assert (again.returncode, again.stdout) == (0, "")
    assert "no message" in again.stderr
    node.client.send("orders-c", b"new")
    assert consume(node, *words, "-e").stdout.split() == ["new"]
    assert (
        len(consume(node, "orders-c", "--cursor", "other", "-e", "-f", r"%v\n").stdout.split())
        == 51
    )
    bad = consume(node, "orders-c", "--cursor", "no spaces")
    assert bad.returncode == 2, bad.stderr


def test_a_cursor_begins_where_it_is_told_and_takes_up_queues_that_come_later(
    node: RunningNode,
) -> None:
    node.client.create_topic("grows", 2, exist_ok=True)
    send(node, "grows", [b"old"] * 4, 2)
    words = ("grows", "--cursor", "late", "-e", "-f", r"%v\n")
    assert consume(node, *words, "-o", "end").stdout == ""
    node.client.create_topic("grows", 4, exist_ok=True)
    send(node, "grows", [b"a", b"b", b"c", b"d"], 4)
    assert sorted(consume(node, *words, "-o", "end").stdout.split()) == ["a", "b", "c", "d"]


def test_a_tail_keeps_its_cursor_in_both_clients(node: RunningNode) -> None:
    send(node, "tails-c", [b"%d" % number for number in range(10)])
    client = node.client
    seen = [int(m.body) for m in islice(client.tail("tails-c", "earliest", cursor="t"), 4)]
    # The fourth message is the one at which the loop was left: nobody knows whether it was used.
    assert (seen, client.cursor("tails-c", "t")[0]) == ([0, 1, 2, 3], 3)
    rest = [int(m.body) for m in client.tail("tails-c", until_end=True, cursor="t")]
    assert (rest, client.cursor("tails-c", "t")[0]) == (list(range(3, 10)), 10)
    client.commit_cursor("tails-c", "t", {0: 5})

    async def follow() -> tuple[list[int], dict[int, int]]:
        async with keelog.aio.connect(node.endpoint) as mq:
            found = mq.tail("tails-c", until_end=True, cursor="t")
            bodies = [int(message.body) async for message in found]
            await mq.commit_cursor("tails-c", "u", {0: 2})
            results = mq.consume("tails-c", cursor="u", max_messages=3)
            first = await anext(results)
            await anext(results)
            await results.aclose()
            assert [int(message.body) for message in first.messages] == [2, 3, 4]
            return bodies, await mq.cursor("tails-c", "u")

    bodies, place = asyncio.run(follow())
    assert (bodies, client.cursor("tails-c", "t")[0]) == (list(range(5, 10)), 10)
    assert place[0] == 5


def test_a_place_that_cannot_be_is_refused(node: RunningNode) -> None:
    send(node, "places-c", [b"x"])
    with pytest.raises(BadRequest, match="beyond"):
        node.client.commit_cursor("places-c", "g", {0: 2})
    with pytest.raises(BadRequest, match="group"):
        node.client.commit_cursor("places-c", "a@b", {0: 1})
    with pytest.raises(BadRequest, match="cursor"):
        node.client.tail("places-c", cursor="a b")


@pytest.mark.faults
def test_a_cursor_survives_kills_of_node_and_follower(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", SMALL, readers=1) as node:
        for number in range(30):
            node.client.send("kills", b"%d" % number, queue_id=number % 3)
        words = ("kills", "--cursor", "billing", "-f", r"%v\n")
        with following(node, *words) as follower:
            follower.wait_for(follower.out, "", 30)
            table = node.root / CONSUMER_OFFSETS_FILE

            def is_saved() -> bool:
                found = json.loads(table.read_text())["offsetTable"] if table.exists() else {}
                places = found.get("kills@billing", {})
                return [places.get(queue) for queue in "012"] == [10, 10, 10]

            wait_until(is_saved, "the place in the file")
            follower.end(signal.SIGKILL)
            assert sorted(map(int, follower.out)) == list(range(30))
        killed = node.kill("writer")
        wait_until(lambda: killed not in node.pids().get("writer", [killed]), "another writer")
        node.wait_all_run()
        for number in range(30, 40):
            node.client.send("kills", b"%d" % number, queue_id=number % 3)
        after = consume(node, *words, "-e")
        assert sorted(map(int, after.stdout.split())) == list(range(30, 40)), after.stderr


@pytest.mark.faults
def test_a_follower_waits_for_a_node_that_was_stopped_and_says_so(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", SMALL, readers=1) as node:
        node.client.send("restarts", b"before")
        endpoint = node.endpoint
        with (
            following(node, "restarts", "-f", r"%v\n") as plain,
            following(node, "restarts", "--merge", "-f", r"%v\n") as merged,
        ):
            for follower in (plain, merged):
                follower.wait_for(follower.out, "before")
            node.stop()
            for follower in (plain, merged):
                follower.wait_for(follower.err, f"waiting for the node at {endpoint}")
            again = RunningNode(node.root, SMALL, readers=1)
            again.begin(endpoint)
            try:
                wait_until(lambda: "ready" in again.stderr, "the node")
                for follower in (plain, merged):
                    follower.wait_for(follower.err, f"the node at {endpoint} is back")
                again.client.send("restarts", b"after")
                for follower in (plain, merged):
                    follower.wait_for(follower.out, "after")
                    assert follower.end() == 130
                    assert follower.out == ["before", "after"]
                    assert len(follower.err) == 2, follower.err
            finally:
                again.kill_all()


def test_a_follower_waits_for_its_topic(node: RunningNode) -> None:
    with (
        following(node, "comes-later", "-o", "end", "-f", r"%v\n") as plain,
        following(node, "comes-later", "--merge", "-f", r"%v\n") as merged,
    ):
        for follower in (plain, merged):
            follower.wait_for(follower.err, "there is no topic comes-later yet")
        for body in (b"first", b"second"):
            node.client.send("comes-later", body)
        for follower in (plain, merged):
            follower.wait_for(follower.out, "first")
            follower.wait_for(follower.out, "second")
            follower.end()
            assert len(follower.err) == 1, follower.err
    assert consume(node, "never-comes", "-e").returncode == 3
