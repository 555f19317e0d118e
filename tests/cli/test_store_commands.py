"""`keelog store …`: shapes, exit codes and errors, on directories that RocketMQ wrote."""

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keelog.cli.main import run
from node.store.checkpoints import Floor, own_dir
from tests.support.golden import GetStore, Row, facts
from tests.support.golden_view import size_pairs

MESSAGE_KEYS = {
    *("topic", "queue_id", "queue_offset", "physical_offset", "store_size", "msg_id"),
    *("unique_key", "tags", "keys", "properties", "flag", "sys_flag", "born_timestamp"),
    *("born_host", "store_timestamp", "store_host", "body_crc", "reconsume_times"),
    *("prepared_transaction_offset", "version"),
}
FINDING_KEYS = {
    *("severity", "kind", "file", "offset", "topic", "queue_id", "queue_offset", "detail"),
    *("count", "try"),
}


class Answer:
    """What one command printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def rows(self) -> list[Row]:
        """The lines of stdout, one object each."""
        return [json.loads(line) for line in self.out.split("\n") if line]


class Keelog:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: Any) -> Answer:
        code = run(["store", *(str(word) for word in words)])
        talk = self._capsys.readouterr()
        return Answer(code, talk.out, talk.err)


@pytest.fixture
def keelog(capsys: pytest.CaptureFixture[str]) -> Keelog:
    return Keelog(capsys)


def test_a_message_has_the_shape_that_scripts_rely_on(golden: GetStore, keelog: Keelog) -> None:
    root = golden("mixed-kinds")
    answer = keelog("dump", root, "--limit", 200)
    assert answer.code == 0
    assert len(answer.rows) == 200
    for row in answer.rows:
        assert set(row) - {"body", "body_b64"} == MESSAGE_KEYS
        assert ("body" in row) != ("body_b64" in row)
    for option, keys in (("--no-body", set()), ("--raw-body", {"body_b64"})):
        (row,) = keelog("dump", root, "--limit", 1, option).rows
        assert set(row) - MESSAGE_KEYS == keys
    assert keelog("dump", root, "--limit", 0).rows == []


def test_dump_takes_one_topic_and_a_stretch_of_the_log(golden: GetStore, keelog: Keelog) -> None:
    root, messages = golden("small-clean"), facts("small-clean").messages
    orders = [m["physicalOffset"] for m in messages if m["topic"] == "orders"]
    found = keelog("dump", root, "--topic", "orders", "--no-body").rows
    assert [row["physical_offset"] for row in found] == orders
    first, last = messages[500]["physicalOffset"], messages[520]["physicalOffset"]
    for start in (first, first - 1):
        found = keelog("dump", root, "--from", start, "--to", last, "--no-body").rows
        assert [row["physical_offset"] for row in found] == [
            m["physicalOffset"] for m in messages[500:520]
        ]
    units = keelog("dump", root, "--what", "queues", "--from", first, "--to", last).rows
    assert {unit["physical_offset"] for unit in units} == {
        m["physicalOffset"] for m in messages[500:520] if m["queued"]
    }
    units = keelog("dump", root, "--what", "queues", "--topic", "orders").rows
    assert [unit["physical_offset"] for unit in units if unit["queue_id"] == 0] == [
        m["physicalOffset"] for m in messages if (m["topic"], m["queueId"]) == ("orders", 0)
    ]


def test_units_and_entries_have_their_shapes(golden: GetStore, keelog: Keelog) -> None:
    root = golden("small-clean")
    (unit,) = keelog("dump", root, "--what", "queues", "--limit", 1).rows
    assert list(unit) == [
        *("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    ]
    (entry,) = keelog("dump", root, "--what", "index", "--limit", 1).rows
    assert list(entry) == [
        *("file", "slot", "entry", "key_hash", "physical_offset", "time_diff_s", "prev")
    ]
    assert (entry["entry"], entry["slot"]) == (1, entry["key_hash"] % 500)
    refused = keelog("dump", root, "--what", "index", "--topic", "orders")
    assert refused.code == 2
    assert "do not name a topic" in refused.err


def test_damage_is_told_skipped_and_ends_with_5(golden_copy: GetStore, keelog: Keelog) -> None:
    root, messages = golden_copy("small-clean"), facts("small-clean").messages
    hit = messages[50]["physicalOffset"]
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(hit + 90)
        file.write(b"\x07\x07")
    answer = keelog("dump", root, "--no-body")
    assert answer.code == 5
    assert len(answer.rows) == len(messages) - 1
    assert f"offset {hit}: " in answer.err
    assert f"skipped to {messages[51]['physicalOffset']}" in answer.err
    checked = keelog("verify", root, "--deep")
    assert checked.code == 5
    (report,) = checked.rows
    assert report["ok"] is False
    assert all(set(finding) == FINDING_KEYS for finding in report["findings"])
    assert ("bad_crc", hit) in {(f["kind"], f["offset"]) for f in report["findings"]}


def test_a_torn_tail_ends_the_dump_with_0_and_a_line(golden: GetStore, keelog: Keelog) -> None:
    answer = keelog("dump", golden("small-torn"), "--no-body")
    assert answer.code == 0
    assert answer.err.startswith("torn tail: the log ends at offset 4568003: ")


def test_a_log_that_ends_below_what_was_durable_ends_the_dump_with_5(
    golden_copy: GetStore, keelog: Keelog
) -> None:
    root, found = golden_copy("small-clean"), facts("small-clean")
    durable, last = found.state["maxPhyOffset"], max((root / "commitlog").iterdir())
    own_dir(root).mkdir()
    floor = Floor(root)
    floor.save(durable)
    floor.close()
    last.unlink()
    answer = keelog("dump", root, "--no-body")
    left = [one for one in found.messages if one["physicalOffset"] < int(last.name)]
    assert (answer.code, len(answer.rows)) == (5, len(left))
    assert f"offset {int(last.name)}: the log ends here, everything below {durable}" in answer.err


def test_a_quick_check_says_what_it_did_not_read_and_a_deep_one_what_it_did(
    golden_copy: GetStore, keelog: Keelog
) -> None:
    root = golden_copy("small-clean")
    quick = keelog("verify", root, "--format", "table")
    assert quick.out == (
        "quick check: nothing found; records, units and entries were not read (--deep reads them)\n"
    )
    deep = keelog("verify", root, "--deep", "--format", "table")
    assert deep.out.startswith("no damage: ")
    assert deep.out.count("\n") == 1


def test_findings_for_people_are_grouped_and_end_with_the_commands_that_fix_them(
    golden_copy: GetStore, keelog: Keelog
) -> None:
    root = golden_copy("small-clean")
    folder = next(path for path in sorted((root / "consumequeue").iterdir()) if path.is_dir())
    shutil.rmtree(folder / "0")
    for extra in ([], ["--deep"]):
        answer = keelog("verify", root, *extra, "--format", "table")
        lines = answer.out.splitlines()
        assert "1 error" in lines[0]
        assert len([line for line in lines if "unit_missing" in line]) == 2
        assert lines[-1] == f"try: keelog store rebuild {root} --queues  (unit_missing)"
        assert not any(line.strip() in ("ok", "true", "false") for line in lines)


def test_verify_and_info_have_their_shapes(golden: GetStore, keelog: Keelog) -> None:
    for extra in ([], ["--deep"]):
        answer = keelog("verify", golden("small-clean"), *extra)
        assert answer.code == 0
        assert answer.rows == [
            {
                "ok": True,
                "read": dict.fromkeys(("records", "units", "entries"), bool(extra)),
                "clean_shutdown": True,
                "commit_log": {
                    "min_offset": 0,
                    "max_offset": 7_801_898,
                    "records": 7000,
                    "bytes": 7_801_898,
                },
                "queues": {"count": 30, "units": 7000},
                "index": {"files": 11, "entries": 21_197},
                "findings": [],
            }
        ]
    (info,) = keelog("info", golden("small-killed")).rows
    assert (info["last_owner"], info["clean_shutdown"]) == ("rocketmq", False)
    assert info["commit_log"]["segment_bytes"] == 262_144
    assert info["index"]["slots"] == 500
    assert info["queues"]["count"] == 30
    assert info["checkpoint"]["logics_physical_offset"] == 1_193_341


def test_limits_of_a_pull_are_rocketmqs_unless_raised(golden: GetStore, keelog: Keelog) -> None:
    words = ["--topic", "TopicTest", "--queue", 0, "--offset", 0, "--no-body", "--count", 100]
    (usual,) = keelog("get", golden("small-clean"), *words).rows
    assert len(usual["messages"]) == 32
    words += ["--max-messages", 50, "--max-bytes", 10_000_000]
    (raised,) = keelog("get", golden("small-clean"), *words).rows
    assert len(raised["messages"]) == 50
    assert raised["next_begin_offset"] == 50
    (few,) = keelog("get", golden("small-clean"), *words, "--max-bytes", 1).rows
    assert len(few["messages"]) == 1


def test_nothing_found_ends_with_3(golden: GetStore, keelog: Keelog) -> None:
    root = golden("small-clean")
    queue = ["--topic", "lonely", "--queue", 0]
    answer = keelog("get", root, *queue, "--offset", 99_999)
    assert (answer.code, answer.rows[0]["status"]) == (3, "OFFSET_OVERFLOW_BADLY")
    assert keelog("find", root, "--topic", "lonely", "--key", "no-such").code == 3
    unknown = keelog("find", root, "--topic", "no-such-topic", "--key", "k")
    assert unknown.code == 3
    assert "there is no topic" in unknown.err


def test_find_prints_messages_newest_first(golden: GetStore, keelog: Keelog) -> None:
    messages = facts("small-clean").messages
    tagged = [
        m["physicalOffset"]
        for m in reversed(messages)
        if m["topic"] == "orders" and (m["properties"] or {}).get("TAGS") == "TagA"
    ]
    words = ["find", golden("small-clean"), "--topic", "orders", "--key", "T#TagA", "--no-body"]
    assert [row["physical_offset"] for row in keelog(*words).rows] == tagged[:64]
    assert [row["physical_offset"] for row in keelog(*words, "--limit", 10_000).rows] == tagged
    unique = messages[7]["properties"]["UNIQ_KEY"]
    words = ["find", golden("small-clean"), "--topic", messages[7]["topic"], "--unique"]
    (row,) = keelog(*words, "--key", unique).rows
    assert row["unique_key"] == unique


@pytest.mark.parametrize("command", ["info", "dump", "verify", "repair", "rebuild"])
def test_what_is_no_store_is_refused_in_three_lines(
    tmp_path: Path, keelog: Keelog, command: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (tmp_path / "nothing", file, empty):
        answer = keelog(command, path)
        assert answer.code == 1
        assert answer.out == ""
        assert [line.split(":")[0] for line in answer.err.splitlines()] == ["error", "cause", "try"]
        assert str(path) in answer.err
    assert not list(empty.iterdir())


def test_a_gap_ends_reading_with_5_and_verify_names_it(
    golden_copy: GetStore, keelog: Keelog
) -> None:
    root = golden_copy("small-clean-533")
    gone = root / "commitlog" / f"{262_144:020d}"
    gone.unlink()
    answer = keelog("dump", root)
    assert answer.code == 5
    assert gone.name in answer.err
    (report,) = keelog("verify", root).rows
    assert "missing_segment" in {finding["kind"] for finding in report["findings"]}


def test_rebuild_makes_the_files_that_rocketmq_made(golden_copy: GetStore, keelog: Keelog) -> None:
    root = golden_copy("small-clean")
    before = {
        path.relative_to(root): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.parts[len(root.parts)] in ("consumequeue", "index")
    }
    answer = keelog("rebuild", root)
    assert answer.code == 0
    (report,) = answer.rows
    assert (report["records"] > 0, report["queues"], report["index_files"]) == (True, 30, 11)
    after = {path: (root / path).read_bytes() for path in before if path.parts[0] != "index"}
    assert after == {path: data for path, data in before.items() if path.parts[0] != "index"}
    index = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert index == [data for path, data in before.items() if path.parts[0] == "index"]
    assert keelog("verify", root, "--deep").rows[0]["ok"] is True


def test_rebuild_makes_only_what_it_is_told(golden_copy: GetStore, keelog: Keelog) -> None:
    root = golden_copy("cq-missing")
    sizes = [w for pair in size_pairs("cq-missing", facts("cq-missing")) for w in ("-X", pair)]
    assert keelog("rebuild", root, "--queues", *sizes).code == 0
    assert (root / "consumequeue").is_dir()
    assert not any((root / "index").glob("*"))
    shutil.rmtree(root / "consumequeue")
    assert keelog("rebuild", root, "--index", *sizes).code == 0
    assert len(list((root / "index").iterdir())) == 6
    assert not any((root / "consumequeue").glob("*/*/*"))


def test_rebuild_leaves_a_store_alone_that_somebody_holds(
    golden_copy: GetStore, keelog: Keelog
) -> None:
    root = golden_copy("crc32-property")
    with (root / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = keelog("rebuild", root)
    assert answer.code == 6
    assert "held by another process" in answer.err
    assert len(list((root / "index").iterdir())) == 3


def test_reading_needs_no_lock_and_writes_nothing(golden_copy: GetStore, keelog: Keelog) -> None:
    root = golden_copy("small-killed")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with (root / "lock").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for words in (
            ["info", root],
            ["dump", root, "--what", "index"],
            ["get", root, "--topic", "orders", "--queue", 0, "--offset", 1],
            ["verify", root, "--deep"],
        ):
            assert keelog(*words).code == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.process
def test_a_reader_of_the_dump_may_go_at_any_time(golden: GetStore) -> None:
    command = [sys.executable, "-m", "keelog", "store", "dump", str(golden("small-clean"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["physical_offset"] == 0
    process.stdout.close()
    talk = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert talk == b""
