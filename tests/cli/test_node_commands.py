"""Commands that talk to a node: what they print, and how they end."""

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keelog.cli import shapes
from node.runtime.process import now_ms
from tests.support import cli
from tests.support.node import RunningNode

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-node")]

RECEIPT = {
    *("status", "topic", "queue_id", "queue_offset", "physical_offset", "msg_id"),
    *("unique_key", "flushed"),
}
NOWHERE = "tcp://127.0.0.1:9"
Done = subprocess.CompletedProcess[bytes]


def keelog(node: RunningNode | str, *words: str, stdin: bytes = b"") -> Done:
    return cli.keelog(node if isinstance(node, str) else node.endpoint, words, stdin)


def rows(done: Done) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_three_lines(done: Done) -> None:
    assert done.stdout == b""
    heads = [line.split(b":")[0] for line in done.stderr.splitlines()]
    assert heads == [b"error", b"cause", b"try"], done.stderr


def test_lines_become_messages_and_come_back(node: RunningNode) -> None:
    receipts = rows(
        keelog(
            node, "produce", "lines", "--queue", "3", "--tags", "paid", "--key", "k1",
            "-p", "tenant=a", stdin=b"one\ntwo\n\nthree",
        )
    )  # fmt: skip
    assert all(set(receipt) == RECEIPT for receipt in receipts)
    assert [receipt["queue_offset"] for receipt in receipts] == [0, 1, 2, 3]
    messages = rows(keelog(node, "consume", "lines", "-e"))
    assert [message["body"] for message in messages] == ["one", "two", "", "three"]
    first = messages[0]
    assert set(first) == set(shapes.MESSAGE_COLUMNS) - {"body_b64"}
    assert (first["queue_id"], first["tags"], first["keys"]) == (3, "paid", ["k1"])
    assert first["properties"]["tenant"] == "a"
    assert first["msg_id"] == receipts[0]["msg_id"]
    assert first["unique_key"] == receipts[0]["unique_key"]


def test_what_consume_prints_produce_takes(node: RunningNode) -> None:
    objects = [
        {"topic": "from", "queue_id": 1, "body": "a", "tags": "t", "keys": ["x", "y"], "flag": 7},
        {"topic": "from", "queue_id": 1, "body_b64": "AP8=", "born_timestamp": 5},
        {"topic": "from", "queue_id": 1, "body": "", "born_host": "1.2.3.4:5",
         "reconsume_times": 2, "properties": {"KEYS": "p  q", "WAIT": "true"}},
    ]  # fmt: skip
    lines = "\n".join(json.dumps(one) for one in objects).encode()
    assert len(rows(keelog(node, "produce", "-", "--jsonl", stdin=lines))) == 3
    printed = keelog(node, "consume", "from", "-e")
    first = rows(printed)
    assert (first[0]["flag"], first[1]["born_timestamp"]) == (7, 5)
    assert (first[2]["born_host"], first[2]["reconsume_times"]) == ("1.2.3.4:5", 2)
    refused = keelog(node, "produce", "to", "--jsonl", stdin=printed.stdout)
    assert refused.returncode == 1
    assert_three_lines(refused)
    assert b"line 1: it is of topic 'from', not of to" in refused.stderr
    again = keelog(node, "produce", "to", "--jsonl", "--any-topic", stdin=printed.stdout)
    assert len(rows(again)) == 3
    second = rows(keelog(node, "consume", "to", "-e"))
    of_a_place = {"topic", "physical_offset", "msg_id", "store_size", "store_timestamp"}
    for before, after in zip(first, second, strict=True):
        for one in (before, after):
            one["properties"].pop("__CRC32#")
        assert {k: v for k, v in before.items() if k not in of_a_place} == {
            k: v for k, v in after.items() if k not in of_a_place
        }


def test_places_counts_and_formats(node: RunningNode) -> None:
    stdin = b"".join(b"%d\n" % number for number in range(20))
    rows(keelog(node, "produce", "places", "--queue", "0", stdin=stdin))

    def values(*words: str) -> list[bytes]:
        done = keelog(node, "consume", "places", "-f", r"%v\n", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    everything = [b"%d" % number for number in range(20)]
    assert values("-e") == everything
    assert values("-o", "5:8") == everything[5:8]
    assert values("-o", "-3", "-e") == everything[-3:]
    assert values("-o", "+18", "-e") == everything[18:]
    assert values("-o", "end", "-e") == []
    assert values("-o", "@-1h:end") == values("-o", "-1h:end") == everything
    assert values("-n", "4") == everything[:4]
    assert values("-o", "-2", "-n", "2") == everything[-2:]
    assert values("-o", "+18", "-n", "1") == everything[18:19]
    assert values("-e", "--tags", "none-has-this") == []


def test_consume_follows_what_is_produced_later(node: RunningNode) -> None:
    rows(keelog(node, "produce", "later", stdin=b"old\n"))
    command = [sys.executable, "-m", "keelog", "consume", "later", "-n", "3", "-f", "%v\n"]
    environment = {**os.environ, "KEELOG_NODE": node.endpoint}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"old\n"
        rows(keelog(node, "produce", "later", stdin=b"new\n"))
        assert follower.stdout.readline() == b"new\n"
        rows(keelog(node, "produce", "later", stdin=b"last\n"))
        assert follower.stdout.readline() == b"last\n"
        assert follower.wait(30) == 0


def test_arguments_files_and_keys_become_messages(node: RunningNode, tmp_path: Path) -> None:
    binary = tmp_path / "picture"
    binary.write_bytes(b"\x00\xff\nline\n")
    assert len(rows(keelog(node, "produce", "given", "hello", "b c", "--queue", "0"))) == 2
    files = ["--file", str(binary), "--file", "-"]
    rows(keelog(node, "produce", "given", *files, "--queue", "0", stdin=b"a\nb\n"))
    keyed = keelog(node, "produce", "given", "-K", "::", "--queue", "0", stdin=b"k1::x::y\n::z\n")
    assert len(rows(keyed)) == 2
    found = list(node.client.tail("given", "earliest", until_end=True))
    bodies = [b"hello", b"b c", binary.read_bytes(), b"a\nb\n", b"x::y", b"z"]
    assert [message.body for message in found] == bodies
    assert [message.keys for message in found] == [[], [], [], [], ["k1"], []]
    bad = keelog(node, "produce", "given", "-K", "::", stdin=b"no separator\n")
    assert (bad.returncode, b"line 1: it has no '::'" in bad.stderr) == (1, True)
    for words in (["x", "--file", "f"], ["x", "--jsonl"], ["-K", ""], ["--any-topic"]):
        assert keelog(node, "produce", "given", *words).returncode == 2


def test_quiet_prints_one_line_on_stderr(node: RunningNode) -> None:
    done = keelog(node, "produce", "quiet", "--quiet", stdin=b"x\n" * 2500)
    assert (done.returncode, done.stdout) == (0, b"")
    assert re.fullmatch(rb"2,500 messages stored in \d+ s\n", done.stderr), done.stderr


def test_the_first_lines_of_a_new_topic_are_spread_over_its_queues(node: RunningNode) -> None:
    receipts = rows(keelog(node, "produce", "spread", stdin=b"x\n" * 1000))
    counts = Counter(receipt["queue_id"] for receipt in receipts)
    assert (len(counts), set(counts.values())) == (8, {125})
    node.client.create_topic("narrow", 2, exist_ok=True)
    receipts = rows(keelog(node, "produce", "narrow", stdin=b"x\n" * 1000))
    assert {receipt["queue_id"] for receipt in receipts} == {0, 1}


def test_a_closed_pipe_ends_consume_with_0(node: RunningNode) -> None:
    rows(keelog(node, "produce", "pipe", stdin=b"x" * 500 + b"\n" + b"y\n" * 5000))
    command = [sys.executable, "-m", "keelog", "consume", "pipe", "-e"]
    environment = {**os.environ, "KEELOG_NODE": node.endpoint}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_formats_of_output(node: RunningNode) -> None:
    rows(keelog(node, "produce", "formats", "--queue", "0", stdin=b"a\nb\n"))
    document = json.loads(keelog(node, "consume", "formats", "-e", "--json").stdout)
    assert [message["body"] for message in document] == ["a", "b"]
    text = keelog(node, "consume", "formats", "-e", "--format", "csv").stdout.decode()
    assert [row["body"] for row in csv.DictReader(text.splitlines())] == ["a", "b"]
    table = keelog(node, "consume", "formats", "-e", "--format", "table").stdout.splitlines()
    assert table[0].split() == [name.encode() for name in shapes.MESSAGE_TABLE]
    assert len(table) == 3
    bare = rows(keelog(node, "consume", "formats", "-e", "--no-body"))
    assert all("body" not in row and "body_b64" not in row for row in bare)
    assert rows(keelog(node, "consume", "formats", "-e", "--raw-body"))[0]["body_b64"] == "YQ=="


def test_a_change_of_a_topic_leaves_the_rest_and_says_what_groups_lose(node: RunningNode) -> None:
    rows(keelog(node, "topic", "create", "wide", "--queues", "4", "--perm", "7"))
    rows(keelog(node, "produce", "wide", "--queue", "3", stdin=b"1\n2\n3\n"))
    kept = keelog(node, "topic", "create", "wide", "--retention", "24")
    assert rows(kept) == [{"topic": "wide", "queues": 4, "created": False}]
    assert kept.stderr == b""
    described = rows(keelog(node, "topic", "describe", "wide"))[0]
    assert (described["perm"], described["retention_hours"]) == (7, 24)
    node.client.commit_cursor("wide", "billing", {0: 0, 1: 0, 2: 0, 3: 1})
    node.wait_dispatched()
    fewer = keelog(node, "topic", "create", "wide", "--queues", "2")
    assert fewer.returncode == 0
    assert b"queues from 2 on have 3 messages" in fewer.stderr
    assert b"group billing has not read 2 of them" in fewer.stderr
    (group,) = node.client.groups("billing")
    assert group.lag == 2, "what it does not read any more is not read"
    assert rows(keelog(node, "topic", "create", "wide", "--queues", "4"))[0]["queues"] == 4


def test_topics_are_made_listed_described_and_removed(node: RunningNode) -> None:
    made = {"topic": "made", "queues": 3, "created": True}
    assert rows(keelog(node, "topic", "create", "made", "--queues", "3")) == [made]
    again = rows(keelog(node, "topic", "create", "made", "--queues", "5"))
    assert again == [{"topic": "made", "queues": 5, "created": False}]
    rows(keelog(node, "produce", "made", "--queue", "2", stdin=b"x\n"))
    assert len(rows(keelog(node, "consume", "made", "-e"))) == 1
    described = rows(keelog(node, "topic", "describe", "made"))[0]
    queue = described["queues"][2]
    assert queue["bytes"] > 0 < queue.pop("oldest_ms")
    assert queue == {
        "topic": "made", "queue_id": 2, "min_offset": 0, "max_offset": 1, "bytes": queue["bytes"],
    }  # fmt: skip
    assert described["write_queues"] == 5
    listed = {row["topic"]: row for row in rows(keelog(node, "topic", "ls"))}
    assert listed["made"]["messages"] == 1
    purged = rows(keelog(node, "topic", "purge", "made", "--before", "end", "--yes"))
    assert [(one["topic"], one["queues"]) for one in purged] == [
        ("made", [{"queue_id": 2, "min_offset": 1}])
    ]
    unsure = keelog(node, "topic", "rm", "made")
    assert (unsure.returncode, unsure.stdout) == (2, b"")
    assert b"try: keelog topic rm made --yes" in unsure.stderr
    (gone,) = rows(keelog(node, "topic", "rm", "made", "--yes"))
    assert gone["left_in_log_bytes"] == purged[0]["left_in_log_bytes"] > 0
    assert {**gone, "left_in_log_bytes": 0} == {
        "topic": "made", "deleted": True, "left_in_log_bytes": 0, "until": None,
    }  # fmt: skip
    assert "made" not in {row["topic"] for row in rows(keelog(node, "topic", "ls"))}
    assert keelog(node, "topic", "rm", "made", "--yes").returncode == 3


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"n\n", 130), (b"\n", 130)])
def test_on_a_terminal_a_removal_asks(node: RunningNode, typed: bytes, code: int) -> None:
    node.client.create_topic("asked", 1)
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["keelog", "topic", "rm", "asked", "--node", node.endpoint]
        os.execv(sys.executable, [sys.executable, "-m", *words])
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 65536)
        assert b"cannot be brought back" in shown
        os.write(terminal, typed)
        with suppress(OSError):
            while os.read(terminal, 65536):
                pass
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == code
    assert ("asked" in {info.topic for info in node.client.topics()}) == (code != 0)


def test_messages_are_found_by_id_place_and_key(node: RunningNode) -> None:
    receipt = rows(keelog(node, "produce", "finds", "--key", "f-1", stdin=b"found\n"))[0]
    node.wait_dispatched()
    place = [str(receipt[name]) for name in ("queue_id", "queue_offset", "physical_offset")]
    for words in (
        [receipt["msg_id"]],
        ["--physical-offset", place[2]],
        ["--topic", "finds", "--queue", place[0], "--offset", place[1]],
        ["--topic", "finds", "--unique-key", receipt["unique_key"]],
    ):
        assert rows(keelog(node, "msg", "get", *words))[0]["body"] == "found"
    find = ["msg", "find", "--topic", "finds", "--key"]
    assert [row["body"] for row in rows(keelog(node, *find, "f-1"))] == ["found"]
    assert len(rows(keelog(node, *find, "f-1", "--since", "-1h", "--until", "-0s"))) <= 1
    nothing = keelog(node, *find, "f-2")
    assert nothing.returncode == 3
    assert_three_lines(nothing)


def test_status_and_health_tell_of_every_process(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    status = json.loads(keelog(node, "status", "--json").stdout)
    assert {"ready", "store", "processes", "log", "disk"} <= set(status)
    assert {*("min", "appended", "committed", "flushed", "readable", "epoch")} <= set(status["log"])
    row = {
        *("role", "index", "pid", "state", "restarts", "uptime_s", "rss_bytes", "cpu_s"),
        *("endpoint", "offset", "lag_bytes"),
    }
    assert all(row <= set(process) for process in status["processes"])
    table = keelog(node, "status", "--format", "table").stdout.decode()
    for name in ("writer 0", "queue 0", "queue 1", "index 0", "reader 0", "offset", "lag"):
        assert name in table
    monkeypatch.setenv("COLUMNS", "80")
    narrow = keelog(node, "status", "--format", "table").stdout.decode()
    assert "writer 0" in narrow
    assert "endpoint" in table
    assert "endpoint" not in narrow
    top = rows(keelog(node, "top", "--once", "--interval", "0.1"))[0]
    assert {"records_per_s", "appended_bytes_per_s"} <= set(top["rates"])
    health = keelog(node, "health", "--json")
    assert health.returncode == 0
    checks = json.loads(health.stdout)["checks"]
    assert all({"name", "ok", "detail"} <= set(check) for check in checks)


def test_sync_waits_for_the_disk(node: RunningNode) -> None:
    receipts = rows(keelog(node, "produce", "synced", "--sync", stdin=b"a\nb\n"))
    assert all(receipt["flushed"] is True for receipt in receipts)


def test_a_bad_line_after_good_ones_is_a_partial_success(node: RunningNode) -> None:
    done = keelog(node, "produce", "partial", "--jsonl", stdin=b'{"body":"a"}\n{"body":1}\n')
    assert done.returncode == 7
    assert len(done.stdout.splitlines()) == 1
    assert b"line 2" in done.stderr
    deep = keelog(node, "produce", "partial", "--jsonl", stdin=b"[" * 100_000)
    assert_three_lines(deep)
    assert b"line 1" in deep.stderr
    alone = keelog(node, "produce", "partial", "--jsonl", stdin=b'{"body":1}\n')
    assert alone.returncode == 1
    assert_three_lines(alone)


def test_after_an_unknown_outcome_the_look_up_comes_before_sending_again(
    node: RunningNode,
) -> None:
    node.client.create_topic("unknown")
    (writer,) = node.pids()["writer"]
    words = [sys.executable, "-m", "keelog", "produce", "unknown", "--timeout", "2"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "KEELOG_NODE": node.endpoint},
    ) as run:  # fmt: skip
        assert run.stdin
        assert run.stdout
        run.stdin.write(b"one\n")
        run.stdin.flush()
        assert json.loads(run.stdout.readline())["status"] == "PUT_OK"
        try:
            os.kill(writer, signal.SIGSTOP)
            _, said = run.communicate(b"two\n", timeout=60)
        finally:
            os.kill(writer, signal.SIGCONT)
    assert run.returncode == 7, said
    hint = said.decode().splitlines()[-1].removeprefix("try: ")
    look_up, _, then = hint.partition("; ")
    again = "send message 2 again, and what comes after message 2"
    assert then == f"if it is not there, {again}", said
    found = keelog(node, *look_up.split()[1:])
    assert (found.returncode, json.loads(found.stdout)["body"]) == (0, "two")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["consume", "no-such-topic", "-e"], 3),
        (["topic", "describe", "no-such-topic"], 3),
        (["msg", "get", "--physical-offset", "999999999"], 3),
        (["consume", "lines", "-e", "--queue", "999"], 3),
        (["msg", "get"], 2),
        (["consume", "lines", "-o", "nowhere"], 2),
        (["consume", "lines", "-f", "%z"], 2),
        (["produce", "-"], 2),
        (["produce", "lines", "-p", "x"], 2),
        (["topic", "create", "bad topic"], 1),
    ],
)
def test_what_cannot_be_has_its_exit_code_and_three_lines(
    node: RunningNode, words: list[str], code: int
) -> None:
    rows(keelog(node, "produce", "lines", "--queue", "3", stdin=b"one\n"))
    done = keelog(node, *words)
    assert done.returncode == code, done.stderr
    assert_three_lines(done)


@pytest.mark.parametrize(
    "words", [["status"], ["topic", "ls"], ["consume", "t", "-e"], ["produce", "t"]]
)
def test_a_node_that_is_not_there_is_exit_code_4(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEELOG_TIMEOUT", "1")
    done = keelog(NOWHERE, *words, stdin=b"x\n")
    assert done.returncode == 4
    assert_three_lines(done)


def test_health_of_no_node_is_4_and_still_a_document() -> None:
    done = keelog(NOWHERE, "health", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["ready"] is False


def test_the_demo_ends_with_0_on_a_real_store(tmp_path: Path) -> None:
    done = keelog(NOWHERE, "demo", "--from", "small-clean", "--directory", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr.decode()
    summary = json.loads(done.stdout)
    assert summary["sent"] == summary["stored"] == summary["pulled_equal"] == 7000
    assert summary["found_by_key"] == summary["found_by_time"] == summary["looked_up"]
    assert summary["verified"]["findings"] == 0
    assert Path(summary["store"]).is_dir()


def test_topics_tell_their_bytes_and_age(node: RunningNode) -> None:
    before = now_ms()
    lines = b"".join(b"%0*d\n" % (number % 200 + 1, number) for number in range(9_000))
    rows(keelog(node, "produce", "sized", "--queue", "0", stdin=lines))
    rows(keelog(node, "produce", "sized", "--queue", "1", stdin=b"a\nbc\n"))
    node.wait_dispatched()
    stored = rows(keelog(node, "consume", "sized", "-e", "--no-body"))
    taken = [sum(one["store_size"] for one in stored if one["queue_id"] == n) for n in (0, 1)]

    (topic,) = [row for row in rows(keelog(node, "topic", "ls")) if row["topic"] == "sized"]
    (described,) = rows(keelog(node, "topic", "describe", "sized"))
    assert described["queues"][1]["bytes"] == taken[1]
    assert described["queues"][0]["bytes"] == pytest.approx(taken[0], rel=0.05)
    assert topic["bytes"] == sum(queue["bytes"] for queue in described["queues"])
    assert before <= topic["oldest_ms"] == stored[0]["store_timestamp"] <= now_ms()
    (status,) = rows(keelog(node, "status"))
    assert status["retention"]["oldest_ms"] <= topic["oldest_ms"]
    text = keelog(node, "topic", "ls", "--format", "table").stdout.decode()
    assert text.split()[:5] == ["topic", "queues", "messages", "size", "oldest"]
    assert "oldest message: 20" in keelog(node, "status", "--format", "table").stdout.decode()


def test_csv_that_was_printed_is_sent_again(node: RunningNode) -> None:
    text = 'key,tags,body,properties\no-1,paid,"a, ""b""\nc","{""tenant"":""x""}"\no-2,,ü,\n'
    saved = text.encode("utf-8-sig")  # as spreadsheets do
    rows(keelog(node, "produce", "csv-in", "--csv", "--queue", "0", stdin=saved))
    printed = keelog(node, "consume", "csv-in", "-e", "--format", "csv")
    again = keelog(node, "produce", "csv-out", "--csv", "--any-topic", stdin=printed.stdout)
    assert len(rows(again)) == 2

    def messages(topic: str) -> list[dict[str, Any]]:
        found = rows(keelog(node, "consume", topic, "-e", "--queue", "0"))
        names = ("body", "keys", "tags", "born_timestamp", "unique_key")
        tenants = [one["properties"].get("tenant") for one in found]
        kept = [{name: one[name] for name in names} for one in found]
        return [one | {"tenant": tenant} for one, tenant in zip(kept, tenants, strict=True)]

    first, second = messages("csv-in")
    assert (first["body"], first["keys"], first["tags"]) == ('a, "b"\nc', ["o-1"], "paid")
    assert (second["body"], second["tags"], first["tenant"]) == ("ü", "", "x")
    assert messages("csv-out") == [first, second]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"body,price\na,1\n", b"the column 'price', which no message has"),
        (b"body,tags\na\n", b"line 1: it has not as many cells as the header"),
        (b"body,tags\na,b,c\n", b"line 1: it has not as many cells as the header"),
        (b"body,queue_id\na,x\n", b"line 1: invalid literal for int"),
        (b"body\n\xff\n", b"line 1: 'utf-8' codec can't encode"),
        (b'body\n"a\n', b"is not CSV: unexpected end of data"),
    ],
)
def test_csv_that_is_no_message_is_refused(node: RunningNode, text: bytes, why: bytes) -> None:
    done = keelog(node, "produce", "csv-bad", "--csv", stdin=text)
    assert_three_lines(done)
    assert why in done.stderr
