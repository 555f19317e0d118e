"""Every golden store as RocketMQ shows it: each message, unit, header and recorded answer.

Through the library all of them, through the command line a sample.
"""

import base64
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from keelog.cli.main import run
from node.store.opening import StoppedStore
from node.store.query.filters import parse_tags
from node.store.query.look_up import Boundary, FindRequest, find, offset_by_time
from node.store.query.pull import PulledRecords, PullRequest, get_message
from node.store.verify.verify import verify
from protocol.errors import NotFound
from protocol.record.codec import Record, unit_tags_code
from tests.support.golden import STORES, Facts, GetStore, Row, facts
from tests.support.golden_view import (
    WITHOUT_DERIVED_FILES,
    golden_view,
    message_fact,
    size_pairs,
    size_settings,
)

EVERY_STORE = pytest.mark.parametrize("name", STORES)
HEADER_NAMES = {
    "begin_timestamp": "beginTimestamp",
    "end_timestamp": "endTimestamp",
    "begin_physical_offset": "beginPhyOffset",
    "end_physical_offset": "endPhyOffset",
    "slot_count": "hashSlotCount",
    "index_count": "indexCount",
}
PULL_NAMES = {
    "status": "status",
    "next_begin_offset": "nextBeginOffset",
    "min_offset": "minOffset",
    "max_offset": "maxOffset",
}


def of_kind(known: Facts, op: str) -> Iterator[Row]:
    return (query for query in known.queries if query["op"] == op)


def expected_body(fact: Row, body: bytes) -> bool:
    if "bodySha256" in fact:
        return bool(hashlib.sha256(body).hexdigest() == fact["bodySha256"])
    return bool(body == base64.b64decode(fact["body"]))


@EVERY_STORE
def test_every_message_is_as_rocketmq_read_it(golden: GetStore, name: str) -> None:
    known = facts(name)
    with golden_view(golden(name), known) as store:
        log = store.log
        assert (log.min_offset, log.end) == (
            known.state["minPhyOffset"],
            known.state["maxPhyOffset"],
        )
        records: list[Record] = []
        for columns in log.columns(log.min_offset):
            records += [columns.record(row) for row in range(len(columns))]
        assert log.stopped is None
    for record, fact in zip(records, known.messages, strict=True):
        assert message_fact(record) == {key: fact[key] for key in message_fact(record)}
        assert record.head.magic - (1 << 32) == fact["magic"]
        assert zlib.crc32(record.raw) == int(fact["recordCrc32"])
        assert record.properties_raw == base64.b64decode(fact["propertiesString"] or "")
        assert record.properties == (fact["properties"] or {})
        assert unit_tags_code(record) == fact["tagsCode"]
        assert expected_body(fact, record.raw_body)


@EVERY_STORE
def test_every_queue_has_rocketmqs_bounds_and_units(golden: GetStore, name: str) -> None:
    known = facts(name)
    expected: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for fact in known.queue_units:
        row = tuple(fact[key] for key in ("index", "physicalOffset", "size", "tagsCode"))
        expected.setdefault((fact["topic"], fact["queueId"]), []).append(row)
    with golden_view(golden(name), known) as store:
        assert [tuple(queue) for queue in store.queues()] == sorted(
            (fact["topic"], fact["queueId"]) for fact in known.state["queues"]
        )
        for fact in known.state["queues"]:
            queue = store.queue(fact["topic"], fact["queueId"])
            assert queue is not None
            low, high = queue.min_offset, queue.max_offset
            assert (low, high) == (fact["minOffset"], fact["maxOffset"])
            units = queue.units(low, high - low).tolist()
            rows = [(low + row, *unit) for row, unit in enumerate(units)]
            assert rows == expected.get((fact["topic"], fact["queueId"]), [])


def pull(store: StoppedStore, query: Row) -> PulledRecords:
    request = PullRequest(query["maxMsgNums"], tags=parse_tags(query["filter"]))
    queue = store.queue(query["topic"], query["queueId"])
    return get_message(store.log, queue, query["offset"], request)


@EVERY_STORE
def test_every_pull_is_answered_as_rocketmq_did(golden: GetStore, name: str) -> None:
    known = facts(name)
    with golden_view(golden(name), known) as store:
        for query in of_kind(known, "getMessage"):
            result = pull(store, query)
            assert {
                "status": result.status.value,
                "nextBeginOffset": result.next_begin_offset,
                "minOffset": result.min_offset,
                "maxOffset": result.max_offset,
                "bufferTotalSize": len(result.payload),
                "queueOffsets": result.queue_offsets.tolist(),
                "phyOffsets": result.physical_offsets.tolist(),
            }.items() <= query.items(), query


@EVERY_STORE
def test_every_search_by_time_is_answered_as_rocketmq_did(golden: GetStore, name: str) -> None:
    known = facts(name)
    with golden_view(golden(name), known) as store:
        for query in of_kind(known, "getOffsetInQueueByTime"):
            queue = store.queue(query["topic"], query["queueId"])
            boundary = Boundary[query["boundary"]]
            found = offset_by_time(store.log, queue, query["timestamp"], boundary)
            assert found == query["result"], query


@EVERY_STORE
def test_every_look_up_by_offset_is_answered_as_rocketmq_did(golden: GetStore, name: str) -> None:
    known = facts(name)
    with golden_view(golden(name), known) as store:
        for query in of_kind(known, "lookMessageByOffset"):
            if query["msgId"] is None:
                with pytest.raises(NotFound):
                    store.log.look_up(query["offset"])
            else:
                assert store.log.look_up(query["offset"]).message_id == query["msgId"]


@EVERY_STORE
def test_the_index_is_as_rocketmq_has_it_after_recovery(golden: GetStore, name: str) -> None:
    known = facts(name)
    with golden_view(golden(name), known) as store:
        headers = [file.header._asdict() for file in store.index.files()]
        assert [
            {theirs: header[ours] for ours, theirs in HEADER_NAMES.items()} for header in headers
        ] == [
            {theirs: fact[theirs] for theirs in HEADER_NAMES.values()}
            for fact in known.index_headers
        ]
        for query in known.index_queries:
            found = store.index.query(
                query["topic"],
                query["key"],
                query["maxNum"],
                query["begin"],
                query["end"],
                query.get("maxMsgsNumBatch", 64),
            )
            assert found == query["phyOffsets"], query


@EVERY_STORE
def test_find_confirms_rocketmqs_candidates_by_their_text(golden: GetStore, name: str) -> None:
    known = facts(name)
    texts: dict[tuple[str, str], list[int]] = {}
    for fact in known.messages:
        properties = fact["properties"] or {}
        keys = {properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")} - {None, ""}
        if (fact["sysFlag"] & 0xC) != 0xC:
            for key in keys:
                texts.setdefault((fact["topic"], key), []).append(fact["physicalOffset"])
    asked = {(query["topic"], query["key"]) for query in known.index_queries[::7]}
    with golden_view(golden(name), known) as store:
        for topic, key in sorted(asked & set(texts)):
            offsets: list[int] = []
            cursor: str | None = None
            while True:
                page = find(store, FindRequest(topic, key, limit=5, cursor=cursor))
                offsets += [record.physical_offset for record in page.records]
                cursor = page.cursor
                if cursor is None:
                    break
            assert offsets == sorted(texts[topic, key], reverse=True)


@EVERY_STORE
def test_verify_finds_no_damage_in_what_rocketmq_wrote(golden: GetStore, name: str) -> None:
    known = facts(name)
    report = verify(golden(name), deep=True, settings=size_settings(name, known))
    assert report.ok, report.findings[:3]
    assert report.records == known.state["messages"]
    kinds = {finding.kind for finding in report.findings}
    if name == "small-torn":
        assert kinds == {"torn_tail", "unit_dangling", "entry_dangling"}
    elif name in WITHOUT_DERIVED_FILES:
        assert kinds == {"unit_missing", "entry_missing"}
    else:
        assert not kinds


# Through the command line.


def command(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, list[Row], str]:
    """Exit code, the lines of stdout as objects, stderr."""
    code = run([str(word) for word in words])
    talk = capsys.readouterr()
    return code, [json.loads(line) for line in talk.out.split("\n") if line], talk.err


def sizes(name: str) -> list[str]:
    return [word for pair in size_pairs(name, facts(name)) for word in ("-X", pair)]


@EVERY_STORE
def test_dump_prints_every_message(
    golden: GetStore, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, rows, talk = command(capsys, "store", "dump", golden(name), "--raw")
    assert code == 0
    assert talk.startswith("torn tail: ") == (name == "small-torn")
    for row, fact in zip(rows, facts(name).messages, strict=True):
        assert row["physical_offset"] == fact["physicalOffset"]
        assert row["msg_id"] == fact["msgId"]
        assert row["properties"] == (fact["properties"] or {})
        assert zlib.crc32(base64.b64decode(row["record_b64"])) == int(fact["recordCrc32"])


@EVERY_STORE
def test_dump_prints_every_unit_and_every_index_entry(
    golden: GetStore, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    known = facts(name)
    arguments = ("store", "dump", golden(name), *sizes(name), "--what")
    code, units, _ = command(capsys, *arguments, "queues")
    assert code == 0
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    theirs = ("topic", "queueId", "index", "physicalOffset", "size", "tagsCode")
    assert sorted(tuple(unit[key] for key in names) for unit in units) == sorted(
        tuple(fact[key] for key in theirs) for fact in known.queue_units
    )
    code, headers, _ = command(capsys, *arguments, "index", "--headers")
    assert code == 0
    assert [[header[ours] for ours in HEADER_NAMES] for header in headers] == [
        [fact[theirs] for theirs in HEADER_NAMES.values()] for fact in known.index_headers
    ]
    code, entries, _ = command(capsys, *arguments, "index")
    assert code == 0
    in_file = Counter(entry["file"] for entry in entries)
    assert [in_file[header["file"]] + 1 for header in headers] == [
        header["index_count"] for header in headers
    ]


@EVERY_STORE
def test_get_seek_and_find_print_rocketmqs_answers(
    golden: GetStore, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    known = facts(name)
    root = golden(name)
    for query in list(of_kind(known, "getMessage"))[3::97]:
        words = ["--topic", query["topic"], "--queue", query["queueId"], "--no-body"]
        words += ["--offset", query["offset"], "--count", query["maxMsgNums"], *sizes(name)]
        if query["filter"] is not None:
            words += ["--tags", query["filter"]]
        code, (answer,), _ = command(capsys, "store", "get", root, *words)
        assert code == (0 if query["status"] == "FOUND" else 3)
        assert {
            theirs: answer[ours] for ours, theirs in PULL_NAMES.items()
        }.items() <= query.items()
        offsets = [message["physical_offset"] for message in answer["messages"]]
        assert offsets == query["phyOffsets"]
        numbers = [message["queue_offset"] for message in answer["messages"]]
        assert numbers == query["queueOffsets"]
    for query in list(of_kind(known, "getOffsetInQueueByTime"))[5::211]:
        words = ["--topic", query["topic"], "--queue", query["queueId"], *sizes(name)]
        words += ["--time", query["timestamp"], "--boundary", query["boundary"].lower()]
        assert command(capsys, "store", "seek", root, *words)[:2] == (
            0,
            [{"offset": query["result"]}],
        )
    for query in known.index_queries[7::389]:
        words = ["--topic", query["topic"], "--key", query["key"], "--since", query["begin"]]
        words += ["--until", query["end"], "--limit", query["maxNum"], *sizes(name)]
        code, rows, _ = command(capsys, "store", "find", root, "--candidates", *words)
        assert [row["physical_offset"] for row in rows] == query["phyOffsets"]
        assert code == (0 if rows else 3)
