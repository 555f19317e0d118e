"""`keelog export` and `produce --parquet`: a node's topics as files, and back into a node."""

import csv
import json
import sqlite3
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import keelog
from keelog.cli.main import run
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-export")]
PLAIN = b"an order that repeats itself, " * 50
PACKED = zlib.compress(PLAIN)
BROKEN = b"\xff no zlib at all"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """`orders` has four kinds of bodies in two queues, `broken` one body that is no zlib among two,
    `damaged` one record with a wrong bit among two."""
    with RunningNode(
        tmp_path_factory.mktemp("export") / "store", (REMOTING,), queue_workers=1, readers=1
    ) as one:
        send = one.client.send
        send("orders", "ü, \"b\"\r\n\tc\x01".encode(), queue_id=1, keys=["o-1", "o-2"], tags="paid",
             properties={"tenant": "x"}, flag=7, born_timestamp=1_700_000_000_001)  # fmt: skip
        send("orders", b"\x00\xff", queue_id=0)
        send("orders", PACKED, queue_id=0, sys_flag=0x1, tags="sent")
        send("orders", b"", queue_id=1)
        for body, sys_flag in ((b"before", 0), (BROKEN, 0x301), (b"after", 0)):
            send("broken", body, queue_id=0, sys_flag=sys_flag)
        sent = [send("damaged", b"%d" % n * 50, queue_id=0, acks="flushed") for n in range(3)]
        one.wait_dispatched()
        with (one.root / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(sent[1].physical_offset + 90)
            file.write(b"\xff")
        yield one


class Answer:
    """What one command printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found


class Command:
    """Runs `keelog` in this process."""

    def __init__(self, node: RunningNode, capsys: pytest.CaptureFixture[str]) -> None:
        self._node, self._capsys = node, capsys

    def __call__(self, *words: Any) -> Answer:
        code = run([*map(str, words), "--node", self._node.endpoint])
        return Answer(code, *self._capsys.readouterr())


@pytest.fixture
def command(node: RunningNode, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(node, capsys)


def select(file: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()


def messages(node: RunningNode, topic: str) -> list[keelog.Message]:
    found = []
    for queue in node.client.offsets(topic):
        pulled = node.client.pull(topic, queue.queue_id, queue.min_offset, max_messages=100)
        found += pulled.messages
    return found


def sent_again(message: keelog.Message) -> tuple[Any, ...]:
    """What a message has in common with the one that is sent again."""
    properties = {name: text for name, text in message.properties.items() if name != "__CRC32#"}
    return (
        *(message.queue_id, message.body, message.keys, message.tags, properties, message.flag),
        *(message.born_timestamp, message.born_host, message.reconsume_times),
    )


def assert_arrived(node: RunningNode, topic: str) -> None:
    node.wait_dispatched()
    expected = [sent_again(message) for message in messages(node, "orders")]
    assert [sent_again(message) for message in messages(node, topic)] == expected
    assert len(expected) == 4


def test_sqlite_gets_what_the_offline_export_of_the_directory_gets(
    node: RunningNode, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, away = tmp_path / "here.db", tmp_path / "away.db"
    result = command("export", "orders", "--sqlite", away, "--no-progress").document
    assert result == {"out": str(away), "rows": 4, "keys": 2, "damaged": 0}
    words = ["store", "export", str(node.root), "--sqlite", str(here), "--topics", "orders"]
    run([*words, "--on-corrupt", "skip"])  # the damage of another topic is seen, too
    capsys.readouterr()
    for table in ("messages", "keys"):
        query = f"SELECT * FROM {table} ORDER BY physical_offset"
        assert select(away, query) == select(here, query)
    bodies = select(away, "SELECT body, raw_body FROM messages WHERE tags = 'sent'")
    assert bodies == [(PLAIN, PACKED)]


def test_tags_and_times_choose(node: RunningNode, command: Command, tmp_path: Path) -> None:
    stored = [message.store_timestamp for message in messages(node, "orders")]
    for number, (words, rows) in enumerate(
        [
            (("--tags", "paid || sent"), 2),
            (("--from", min(stored), "--to", max(stored) + 1), len(stored)),
            (("--from", max(stored) + 1), 0),
            (("--to", min(stored)), 0),
        ]
    ):
        file = tmp_path / f"{number}.db"
        assert command("export", "orders", *words, "--sqlite", file).document["rows"] == rows


def test_parquet_comes_back_as_the_same_messages(
    node: RunningNode, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert command("export", "orders", "--parquet", out).document["rows"] == 4
    again = command("export", "orders", "--parquet", out).document
    assert (again["rows"], again["rows_in_all"], again["damaged"]) == (0, 4, 0)
    sent = command("produce", "again", "--parquet", out, "--any-topic", "--quiet")
    assert (sent.code, "4 messages stored" in sent.err) == (0, True)
    assert_arrived(node, "again")
    refused = command("produce", "other", "--parquet", out, "--quiet")
    assert (refused.code, "of topic 'orders'" in refused.err) == (1, True)
    own = command("produce", "-", "--parquet", out, "--batch", "3", "--quiet")
    assert own.code == 0, own.err
    node.wait_dispatched()
    twice = messages(node, "orders")
    assert len(twice) == 8
    for queue_id in (0, 1):
        pairs = [sent_again(one) for one in twice if one.queue_id == queue_id]
        assert pairs[:2] == pairs[2:]


def test_csv_comes_back_as_the_same_messages(
    node: RunningNode, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.csv"
    first = command("export", "broken", "--csv", file, "--on-damage", "skip")
    assert (first.code, json.loads(first.out)["damaged"]) == (5, 1)
    assert "is there already" in command("export", "orders", "--csv", file).err
    written = command("export", "orders", "--csv", file, "--overwrite").document
    with file.open(newline="", encoding="utf-8") as text:
        assert len(list(csv.DictReader(text))) == written["rows"]
    with file.open("rb") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        sent = command("produce", "from-csv", "--csv", "--any-topic", "--quiet")
    assert sent.code == 0, sent.err
    node.wait_dispatched()
    found = [sent_again(one) for one in messages(node, "from-csv")]
    assert found == [sent_again(one) for one in messages(node, "orders")]


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "csv"])
def test_a_damaged_message_is_named_and_costs_no_other_one(
    command: Command, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "out"
    answer = command("export", "damaged", f"--{kind}", out)
    result = json.loads(answer.out)
    assert (answer.code, result["rows"], result["damaged"]) == (5, 2, 1)
    assert "damage" in answer.err and "message 1 of " in answer.err
    strict = command("export", "damaged", f"--{kind}", tmp_path / "strict", "--on-damage", "fail")
    assert strict.code == 5
    assert strict.err.startswith("error: cannot export damaged\n")
    assert not list(tmp_path.glob("strict/*/*.parquet")) and not (tmp_path / "strict").is_file()
    assert not list(tmp_path.glob("*.partial"))


def test_a_body_that_cannot_be_unpacked_is_named(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "out.db"
    answer = command("export", "broken", "--sqlite", file)
    assert (answer.code, json.loads(answer.out)["damaged"]) == (5, 1)
    assert "message 1 of broken/0" in answer.err
    found = select(file, "SELECT body, raw_body FROM messages ORDER BY physical_offset")
    assert found == [(b"before", None), (None, BROKEN), (b"after", None)]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("orders",), 2, "say where to"),
        (("orders", "--sqlite", "a", "--csv", "b"), 2, "say where to"),
        (("orders", "--parquet", "a", "--overwrite"), 2, "--overwrite is for"),
        (("nowhere", "--sqlite", "a"), 3, "nowhere"),
        (("nowhere", "--parquet", "a"), 3, "nowhere"),
        (("orders", "--sqlite", "a", "--from", "9", "--to", "8"), 2, "later than --to"),
    ],
)
def test_what_cannot_be_meant_is_told_and_nothing_is_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], code: int, why: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    answer = command("export", *words)
    assert (answer.code, len(answer.err.splitlines())) == (code, 3), answer.err
    assert why in answer.err
    assert not list(tmp_path.iterdir())


def test_several_topics_go_into_one_file_each_once(command: Command, tmp_path: Path) -> None:
    answer = command("export", "broken", "damaged", "broken", "--sqlite", tmp_path / "two.db")
    assert answer.code == 5
    counts = select(tmp_path / "two.db", "SELECT topic, count(*) FROM messages GROUP BY 1")
    assert counts == [("broken", 3), ("damaged", 2)]


def test_an_empty_topic_makes_an_empty_export(
    node: RunningNode, command: Command, tmp_path: Path
) -> None:
    node.client.create_topic("empty", queues=1)
    assert command("export", "empty", "--sqlite", tmp_path / "e.db").document["rows"] == 0
    assert command("export", "empty", "--parquet", tmp_path / "e").document["rows"] == 0
    sent = command("produce", "empty", "--parquet", tmp_path / "e")
    assert (sent.code, sent.err) == (0, f"nothing sent: there was no message in {tmp_path / 'e'}\n")


def test_a_file_that_is_no_export_is_refused(command: Command, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "text.parquet").write_text("no Parquet")
    pq.write_table(pa.table({"body": [b"a"], "price": [1]}), tmp_path / "price.parquet")
    pq.write_table(pa.table({"tags": ["a"]}), tmp_path / "tags.parquet")
    for name, why in (
        ("text", "cannot be read as Parquet"),
        ("price", "the column 'price', which no message has"),
        ("tags", "no column body"),
    ):
        answer = command("produce", "odd", "--parquet", tmp_path / f"{name}.parquet")
        assert (answer.code, why in answer.err) == (1, True), answer.err
        assert len(answer.err.splitlines()) == 3
    assert command("produce", "odd", "--parquet", tmp_path / "absent").code == 3
    both = command("produce", "odd", "--parquet", tmp_path / "tags.parquet", "--csv")
    assert (both.code, "exclude each other" in both.err) == (2, True)


def test_parquet_of_the_systems_topics_and_damage_is_left_out_with_a_count(
    node: RunningNode, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test: its messages are in every topic twice."""
    node.client.send("later", b"x", delay_level=18)
    node.wait_dispatched()
    words = ["store", "export", str(node.root), "--parquet", str(tmp_path / "out")]
    assert run([*words, "--on-corrupt", "report"]) == 0, capsys.readouterr().err
    sent = command("produce", "-", "--parquet", tmp_path / "out", "--quiet")
    assert sent.code == 0, sent.err
    assert "1 message left out: of topic SCHEDULE_TOPIC_XXXX" in sent.err
    assert "left out: damaged places" in sent.err
