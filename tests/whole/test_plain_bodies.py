"""Bodies that producers compressed are plain wherever a program or a person reads them."""

import asyncio
import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import pytest
import zstandard

import keelog
from keelog.cli.main import run
from keelog.cli.shapes import b64
from keelog.store import open_store
from tests.cli.test_consume import Done
from tests.pipeline.facts_as_rows import read_rows
from tests.support.cli import keelog_text
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("plain-bodies")]
PLAIN = "an order that repeats itself, " * 300
STORED = {
    0x0: PLAIN.encode(),
    0x1: zlib.compress(PLAIN.encode()),
    0x301: zlib.compress(PLAIN.encode()),
    0x101: lz4.frame.compress(PLAIN.encode()),
    0x201: zstandard.compress(PLAIN.encode()),
}
COUNT = len(STORED)
BROKEN = b"\xff no zlib at all"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Topic `orders` has one message a codec; `broken` one that cannot be unpacked, among two."""
    root = tmp_path_factory.mktemp("bodies") / "store"
    with RunningNode(root, (REMOTING,), queue_workers=1, readers=1) as running:
        for sys_flag, stored in STORED.items():
            running.client.send("orders", stored, queue_id=0, keys="k", sys_flag=sys_flag)
        for body, sys_flag in ((b"before", 0), (BROKEN, 0x301), (b"after", 0)):
            running.client.send("broken", body, queue_id=0, keys="b", sys_flag=sys_flag)
        running.wait_dispatched()
        yield running


def command(node: RunningNode, *words: str) -> Done:
    return keelog_text(node.endpoint, words)


def test_a_client_gets_plain_bodies_and_the_stored_ones_beside_them(node: RunningNode) -> None:
    pulled = node.client.pull("orders", 0, 0, max_messages=100)
    columns = pulled.columns()
    assert [columns.body(row).decode() for row in range(COUNT)] == [PLAIN] * COUNT
    tail = node.client.tail("orders", "earliest")
    followed = [next(tail) for _ in range(COUNT)]
    found = list(node.client.find("orders", "k"))[::-1]
    got = [node.client.get(topic="orders", queue_id=0, queue_offset=at) for at in range(COUNT)]
    for messages in (pulled.messages, followed, found, got):
        assert [message.body.decode() for message in messages] == [PLAIN] * COUNT
        assert [message.raw_body for message in messages] == list(STORED.values())
        assert [message.sys_flag for message in messages] == list(STORED)


def test_a_program_with_asyncio_gets_plain_bodies(node: RunningNode) -> None:
    async def bodies() -> list[bytes]:
        async with keelog.aio.connect(node.endpoint) as client:
            result = await client.pull("orders", 0, 0, max_messages=100)
            return [message.body for message in result.messages]

    assert asyncio.run(bodies()) == [PLAIN.encode()] * COUNT


def test_a_group_gets_plain_bodies(node: RunningNode) -> None:
    with node.client.consumer("plain", "orders", start="earliest") as consumer:
        for _, message in zip(range(COUNT), consumer, strict=False):
            assert message.body.decode() == PLAIN
            message.ack()


READS = [
    ["consume", "orders", "-e"],
    ["consume", "orders", "--group", "printed", "-n", str(COUNT)],
    ["msg", "find", "--topic", "orders", "--key", "k"],
    ["store", "dump", "DIR", "--topic", "orders"],
    ["store", "find", "DIR", "--topic", "orders", "--key", "k"],
]


@pytest.mark.parametrize("words", READS, ids=lambda words: " ".join(words[:2]))
def test_commands_print_plain_bodies_and_the_stored_ones_when_told(
    node: RunningNode, words: list[str]
) -> None:
    words = [str(node.root) if word == "DIR" else word for word in words]
    done = command(node, *words, "--jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["body"] for row in rows] == [PLAIN] * COUNT, done.stderr
    assert {row["sys_flag"] for row in rows} == {0}, "it would be unpacked once more"
    if "--group" in words:
        return
    raw = command(node, *words, "--jsonl", "--raw-body").stdout.splitlines()
    found = {(row["sys_flag"], row["body_b64"]) for row in map(json.loads, raw)}
    assert found == {(flag, b64(stored)) for flag, stored in STORED.items()}


def test_one_message_is_printed_plain(node: RunningNode) -> None:
    place = ["--topic", "orders", "--queue", "0", "--offset", "2"]
    shown = command(node, "msg", "get", *place, "--json")
    assert json.loads(shown.stdout)["body"] == PLAIN
    pulled = command(node, "store", "get", str(node.root), *place, "--json")
    assert json.loads(pulled.stdout)["messages"][0]["body"] == PLAIN


def test_a_format_prints_plain_bodies_and_their_size(node: RunningNode) -> None:
    done = command(node, "consume", "orders", "-e", "-f", r"%V %v\n")
    assert done.stdout.splitlines() == [f"{len(PLAIN)} {PLAIN}"] * COUNT


def test_what_was_printed_is_sent_again_as_it_was(node: RunningNode) -> None:
    for option, flags in (([], [0] * COUNT), (["--raw-body"], list(STORED))):
        topic = f"again{len(option)}"
        printed = command(node, "consume", "orders", "-e", "--jsonl", *option).stdout
        words = ["produce", topic, "--jsonl", "--any-topic"]
        done = keelog_text(node.endpoint, words, printed)
        assert len(done.stdout.splitlines()) == COUNT
        node.wait_dispatched()
        messages = node.client.pull(topic, 0, 0, max_messages=100).messages
        assert [message.body.decode() for message in messages] == [PLAIN] * COUNT
        assert [message.sys_flag for message in messages] == flags


def test_files_and_spark_have_plain_bodies_and_the_stored_ones_beside_them(
    node: RunningNode, tmp_path: Path
) -> None:
    raws = [None, *list(STORED.values())[1:]]
    rows = read_rows(path=str(node.root), subscribe="orders")
    assert [(row["body"].decode(), row["rawBody"]) for row in rows] == [
        (PLAIN, raw) for raw in raws
    ]
    assert [row["sysFlag"] for row in rows] == list(STORED)
    kafka = read_rows(path=str(node.root), subscribe="orders", schema="kafka")
    assert [row["value"].decode() for row in kafka] == [PLAIN] * COUNT
    file = tmp_path / "orders.db"
    assert (
        run(["store", "export", str(node.root), "--sqlite", str(file), "--topics", "orders"]) == 0
    )
    query = "SELECT body, raw_body FROM messages ORDER BY physical_offset"
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute(query).fetchall() == [(PLAIN.encode(), raw) for raw in raws]


def test_a_body_that_cannot_be_unpacked_is_named_and_costs_no_other_message(
    node: RunningNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = node.client.pull("broken", 0, 0, max_messages=100).messages
    assert [messages[0].body, messages[1].raw_body, messages[2].body] == [
        b"before",
        BROKEN,
        b"after",
    ]
    with pytest.raises(keelog.BodyUnreadable, match="message 1 of broken/0"):
        _ = messages[1].body
    for words in (["consume", "broken", "-e"], ["msg", "find", "--topic", "broken", "--key", "b"],
                  ["store", "dump", str(node.root), "--topic", "broken"],
                  ["consume", "broken", "--group", "broken", "-n", "3"]):  # fmt: skip
        done = command(node, *words, "--jsonl")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert sorted(row.get("body", "?") for row in rows) == ["?", "after", "before"]
        (kept,) = [row for row in rows if "body_b64" in row]
        assert (kept["body_b64"], kept["sys_flag"]) == (b64(BROKEN), 0x301)
        assert (done.returncode, done.stderr.count("message 1 of broken/0")) == (5, 1)
    strict = command(node, "consume", "broken", "-e", "-f", r"%v\n", "--on-damage", "fail")
    assert (strict.returncode, strict.stdout) == (5, "before\n")
    assert "--raw-body" in strict.stderr
    stored = command(node, "consume", "broken", "-e", "-f", r"%V\n", "--raw-body")
    assert (stored.returncode, stored.stdout.split()) == (0, ["6", str(len(BROKEN)), "5"])
    reported = read_rows(
        path=str(node.root), subscribe="broken", columns="body", onCorruptRecord="report"
    )
    assert [row["body"] for row in reported] == [b"before", None, b"after"]
    assert "message 1 of broken/0" in reported[1]["damage"]
    skipped = read_rows(path=str(node.root), subscribe="broken", onCorruptRecord="skip")
    assert [row["body"] for row in skipped] == [b"before", b"after"]
    with pytest.raises(keelog.MqError, match=r"KEELOG_CORRUPT_RECORD.*message 1 of broken/0"):
        read_rows(path=str(node.root), subscribe="broken")
    unread = read_rows(path=str(node.root), subscribe="broken", columns="queueOffset,rawBody")
    assert [row["rawBody"] for row in unread] == [None, BROKEN, None]
    words = ["store", "export", str(node.root), "--sqlite", str(tmp_path / "b.db")]
    assert run([*words, "--topics", "broken"]) == 5
    assert "--on-corrupt skip" in capsys.readouterr().err
    assert run([*words, "--topics", "broken", "--on-corrupt", "skip"]) == 5
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as database:
        found = database.execute("SELECT body, raw_body FROM messages ORDER BY 1").fetchall()
    assert found == [(None, BROKEN), (b"after", None), (b"before", None)]


def test_a_store_directory_gives_plain_bodies(node: RunningNode) -> None:
    with open_store(node.root) as store:
        scanned = list(store.scan("orders"))
    assert [message.body.decode() for message in scanned] == [PLAIN] * COUNT
    assert [message.raw_body for message in scanned] == list(STORED.values())
