"""Options: what they select, and what is refused with which condition and which hint."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.options import TAKEN, parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from keelog.pipeline.stores.access import StoreAt, parse_address
from protocol.errors import MqError
from tests.pipeline.facts_as_rows import read_rows
from tests.support.golden import GetStore, Row, facts

NAME = "small-clean"


def condition_of(error: MqError) -> str:
    assert str(error).startswith(f"[{error.condition}] ")
    assert ". Try: " in str(error)
    return error.condition


@pytest.mark.parametrize(
    ("options", "condition", "words"),
    [
        ({"foo": "1"}, "UNKNOWN_OPTION", "subscribePattern"),
        ({"table": "index", "subscribe": "a"}, "UNKNOWN_OPTION", "minPartitions"),
        ({"table": "queues", "tags": "a"}, "UNKNOWN_OPTION", "queueIds"),
        ({"table": "queue"}, "BAD_OPTION", "messages, queues, index"),
        ({"columns": "topic,offset"}, "UNKNOWN_COLUMN", "queueOffset"),
        ({"columns": "topic,Topic"}, "UNKNOWN_COLUMN", "twice"),
        ({"columns": ""}, "UNKNOWN_COLUMN", "queueOffset"),
        ({"table": "queues", "columns": "body"}, "UNKNOWN_COLUMN", "tagsCode"),
        ({"subscribe": "a", "subscribePattern": "b"}, "BAD_OPTION", "only one"),
        ({"subscribe": "a,,b"}, "BAD_OPTION", "empty name"),
        ({"subscribePattern": "("}, "BAD_OPTION", "regular expression"),
        ({"assign": "{}"}, "BAD_OPTION", "JSON object"),
        ({"assign": '{"a": 1}'}, "BAD_OPTION", '{"topic": [0, 1]}'),
        ({"assign": '{"a": [true]}'}, "BAD_OPTION", '{"topic": [0, 1]}'),
        ({"assign": '{"a": [0], "a": [1]}'}, "BAD_OPTION", "twice"),
        ({"queueIds": "0,-1"}, "BAD_OPTION", "0,1,2"),
        ({"startingOffsets": "latest"}, "BAD_OPTION", "no row"),
        ({"endingOffsets": "earliest"}, "BAD_OPTION", "no row"),
        ({"startingOffsets": "soon"}, "BAD_OPTION", "no JSON"),
        ({"startingOffsets": '{"a": 1}'}, "BAD_OPTION", '"node"'),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "BAD_OPTION", '"node"'),
        ({"startingOffsets": '{"a": {"0": "1"}}'}, "BAD_OPTION", '"node"'),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "BAD_OPTION", '"node"'),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "BAD_OPTION", "no row"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "BAD_OPTION", "no row"),
        ({"startingTimestamp": "now"}, "BAD_OPTION", "milliseconds"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": "1"}}'}, "BAD_OPTION", "17000"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "BAD_OPTION", "17000"),
        ({"endingOffsetsByTimestamp": "5"}, "BAD_OPTION", "JSON object"),
        ({"startingOffsetsByTimestampStrategy": "both"}, "BAD_OPTION", "latest"),
        ({"maxOffsetsPerTrigger": "5"}, "UNKNOWN_OPTION", "endingOffsets"),
        ({"schema": "avro"}, "BAD_OPTION", "keelog, kafka"),
        ({"includeHeaders": "true"}, "BAD_OPTION", "schema=kafka"),
        ({"schema": "kafka", "columns": "body"}, "UNKNOWN_COLUMN", "key, value, topic"),
        ({"minPartitions": "0"}, "BAD_OPTION", "from 1 to 100000"),
        ({"minPartitions": "100001"}, "BAD_OPTION", "from 1 to 100000"),
        ({"maxPartitionBytes": "0"}, "BAD_OPTION", "from 1 on"),
        ({"maxPartitionBytes": "1g"}, "BAD_OPTION", "from 1 on"),
        ({"maxRecordsPerPartition": "10"}, "BAD_OPTION", "subscribePattern"),
        ({"failOnDataLoss": "maybe"}, "BAD_OPTION", "true, false"),
        ({"onCorruptRecord": "ignore"}, "BAD_OPTION", "fail, skip, report"),
        ({"tags": "||"}, "BAD_OPTION", "A || B"),
        ({"store.max_index": "1"}, "BAD_OPTION", "max_index_num"),
        ({"nodes": "{}"}, "BAD_OPTION", "load("),
        ({"path": "http://bucket/store"}, "STORE_UNREADABLE", "tcp://host:port"),
        ({"path": "file://elsewhere/store"}, "STORE_UNREADABLE", "mount"),
        ({"path": "s3://bucket/store?region=x"}, "BAD_OPTION", "fs.region"),
        ({"path": "tcp://host"}, "BAD_OPTION", "tcp://127.0.0.1:7850"),
        ({"path": "tcp://host:1/store"}, "BAD_OPTION", "tcp://127.0.0.1:7850"),
        ({"path": "tcp://host:x"}, "BAD_OPTION", "path for each store"),
        ({"fetch.inFlight": "many"}, "BAD_OPTION", "whole number"),
        ({"fetch.windowBytes": "5000000"}, "BAD_OPTION", "4194304"),
        ({"fetch.inFlight": "0"}, "BAD_OPTION", "from 1 to 64"),
        ({"path": "/no/such/store"}, "NOT_A_STORE", "name the folder that holds commitlog/"),
        ({"subscribe": "nosuch"}, "UNKNOWN_TOPIC", "one of"),
        ({"assign": '{"unicode": [99]}'}, "UNKNOWN_TOPIC", "one of [0"),
        ({"startingOffsets": '{"nosuch": {"0": 1}}'}, "UNKNOWN_TOPIC", "not read"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_with_what_would_be_right(
    golden: GetStore, options: dict[str, str], condition: str, words: str
) -> None:
    topics = {fact["topic"] for fact in facts(NAME).state["queues"]}
    given_ = {name: value.replace("unicode", min(topics)) for name, value in options.items()}
    with pytest.raises(MqError) as caught:
        read_rows(**{"path": str(golden(NAME)), **given_})
    assert condition_of(caught.value) == f"KEELOG_{condition}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": "/a", "paths": '["/b"]'},
        {"paths": "/a"},
        {"paths": "0"},
        {"paths": "[]"},
        {"paths": '{"a": "/b"}'},
        {"path": "//[a"},
        {"path": "/a\0b"},
    ],
)
def test_which_store_must_be_said_once(options: dict[str, str]) -> None:
    with pytest.raises(MqError, match=r"KEELOG_BAD_OPTION"):
        parse_options(options)


def test_a_relative_path_counts_from_the_drivers_folder(
    golden: GetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden(NAME)
    monkeypatch.chdir(root)
    (store,) = parse_options({"path": "."}).stores
    assert store == StoreAt(NAME, str(root))


def test_what_is_no_store_is_refused_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path, file):
        with pytest.raises(MqError, match=rf"\[KEELOG_NOT_A_STORE\] {path}"):
            read_rows(path=str(path))


def test_a_read_that_names_some_queues_must_say_each_of_their_offsets(golden: GetStore) -> None:
    topic, (first, *rest) = queues_of_one_topic()
    options = {"path": str(golden(NAME)), "subscribe": topic}
    offsets = json.dumps({topic: {str(first): 0}})
    with pytest.raises(MqError, match=rf"BAD_OPTION.*{topic}/{rest[0]} of {NAME}"):
        read_rows(**options, startingOffsets=offsets)
    assert read_rows(**options, queueIds=str(first), startingOffsets=offsets)


@given(
    st.dictionaries(
        st.sampled_from(sorted({*TAKEN["messages"], "other"})),
        st.one_of(st.text(max_size=8), st.sampled_from(["earliest", "1", "{}", '{"a":{"0":1}}'])),
        max_size=4,
    )
)
def test_any_options_at_all_are_taken_or_refused_with_an_error_of_ours(
    options: dict[str, str],
) -> None:
    try:
        parsed = parse_options(options)
    except MqError as error:
        assert condition_of(error).startswith("KEELOG_")
    else:
        assert parsed.stores and parsed.columns


def queues_of_one_topic() -> tuple[str, list[int]]:
    """A topic with several queues, and its queues."""
    queues: dict[str, list[int]] = {}
    for fact in facts(NAME).state["queues"]:
        queues.setdefault(fact["topic"], []).append(fact["queueId"])
    topic = max(sorted(queues), key=lambda name: len(queues[name]))
    return topic, sorted(queues[topic])


def places(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    return Counter((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def expected_places(topics: set[str], ids: set[int] | None = None) -> Counter[tuple[str, int, int]]:
    return Counter(
        (fact["topic"], fact["queueId"], fact["index"])
        for fact in facts(NAME).queue_units
        if fact["topic"] in topics and (ids is None or fact["queueId"] in ids)
    )


@pytest.mark.parametrize("table", ["messages", "queues"])
def test_topics_and_queues_select_their_rows(golden: GetStore, table: str) -> None:
    path = str(golden(NAME))
    topic, ids = queues_of_one_topic()
    other = min({fact["topic"] for fact in facts(NAME).state["queues"]} - {topic})

    def read(**options: str) -> Counter[tuple[str, int, int]]:
        return places(read_rows(path=path, table=table, **options))

    assert read(subscribe=f"{topic}, {other}") == expected_places({topic, other})
    assert read(topics=topic) == expected_places({topic})
    assert read(subscribePattern=f"{topic}|{other}x?") == expected_places({topic, other})
    assert read(subscribePattern=topic[:-1]) == Counter(), "a pattern must match the whole name"
    assert read(assign=json.dumps({topic: ids[:2]})) == expected_places({topic}, set(ids[:2]))
    assert read(subscribe=topic, queueIds="1,2") == expected_places({topic}, {1, 2})


def test_offsets_bound_each_queue(golden: GetStore) -> None:
    topic, (queue, *_) = queues_of_one_topic()
    options = {"path": str(golden(NAME)), "assign": json.dumps({topic: [queue]})}
    all_of_it = [place[2] for place in expected_places({topic}, {queue})]

    def offsets(start: int | None = None, end: int | None = None) -> list[int]:
        bounds = {"startingOffsets": start, "endingOffsets": end}
        given_ = {
            name: json.dumps({topic: {NAME: {str(queue): value}}})
            for name, value in bounds.items()
            if value is not None
        }
        return [row["queueOffset"] for row in read_rows(**options, **given_)]

    assert offsets(5) == [at for at in all_of_it if at >= 5]
    assert offsets(5, 9) == [5, 6, 7, 8]
    assert offsets(5, 5) == []
    assert offsets(-2, -1) == all_of_it
    end = max(all_of_it) + 1
    assert offsets(end) == []
    for bad in ((end + 1, None), (None, end + 1), (6, 5)):
        with pytest.raises(MqError, match=r"\[KEELOG_OFFSET_OUT_OF_RANGE\]"):
            offsets(*bad)


def test_offsets_that_retention_has_removed_are_a_loss_with_its_count(golden: GetStore) -> None:
    name = "trimmed"
    fact = next(fact for fact in facts(name).state["queues"] if fact["minOffset"] > 2)
    topic, queue, low = fact["topic"], fact["queueId"], fact["minOffset"]
    options = {
        "path": str(golden(name)),
        "assign": json.dumps({topic: [queue]}),
        "startingOffsets": json.dumps({topic: {str(queue): low - 2}}),
    }
    with pytest.raises(MqError, match=rf"\[KEELOG_DATA_LOSS\] {topic}/{queue} .*: 2 messages"):
        read_rows(**options)
    rows = read_rows(**options, failOnDataLoss="false")
    assert [row["queueOffset"] for row in rows] == list(range(low, fact["maxOffset"]))


def test_times_bound_each_queue_by_store_time(golden: GetStore) -> None:
    known = facts(NAME).messages
    times = sorted(fact["storeTimestamp"] for fact in known)
    start, end = times[len(times) // 3], times[2 * len(times) // 3]
    rows = read_rows(path=str(golden(NAME)), startingTimestamp=str(start), endingTimestamp=str(end))
    assert sorted(row["physicalOffset"] for row in rows) == [
        fact["physicalOffset"] for fact in known if start <= fact["storeTimestamp"] < end
    ]
    path = str(golden(NAME))
    assert len(read_rows(path=path, startingTimestamp="0")) == len(known)
    assert read_rows(path=path, startingTimestamp=str(times[-1] + 1)) == []
    assert read_rows(path=path, startingTimestamp=str(end), endingTimestamp=str(start)) == []


def test_each_queue_may_have_times_of_its_own(golden: GetStore) -> None:
    topic, ids = queues_of_one_topic()
    known = [fact for fact in facts(NAME).messages if fact["topic"] == topic]
    times = sorted(fact["storeTimestamp"] for fact in known)
    starts = {str(queue): times[len(times) * queue // 20] for queue in ids}
    ends = {str(queue): times[-1] - queue for queue in ids}
    options = {
        "path": str(golden(NAME)),
        "subscribe": topic,
        "startingOffsetsByTimestamp": json.dumps({topic: starts}),
        "endingOffsetsByTimestamp": json.dumps({topic: {NAME: ends}}),
    }
    # A time for each queue wins over offsets, one for all over both.
    of_each = read_rows(**options, startingOffsets="{}", endingOffsets="earliest")
    assert sorted(row["physicalOffset"] for row in of_each) == [
        fact["physicalOffset"]
        for fact in known
        if starts[str(fact["queueId"])] <= fact["storeTimestamp"] < ends[str(fact["queueId"])]
    ]
    of_all = read_rows(**options, startingTimestamp=str(times[-9]), endingTimestamp=str(times[-2]))
    assert sorted(row["physicalOffset"] for row in of_all) == [
        fact["physicalOffset"] for fact in known if times[-9] <= fact["storeTimestamp"] < times[-2]
    ]


def test_a_time_that_no_message_has_reached_is_an_error_or_the_end(golden: GetStore) -> None:
    topic, (queue, *_) = queues_of_one_topic()
    late = max(fact["storeTimestamp"] for fact in facts(NAME).messages) + 1
    options = {"path": str(golden(NAME)), "assign": json.dumps({topic: [queue]})}
    of_each = {"startingOffsetsByTimestamp": json.dumps({topic: {str(queue): late}})}
    of_all = {"startingTimestamp": str(late)}
    for asked in (of_each, {**of_all, "startingOffsetsByTimestampStrategy": "error"}):
        with pytest.raises(MqError, match=rf"OFFSET_OUT_OF_RANGE.*{topic}/{queue} .*{late}"):
            read_rows(**options, **asked)
    for asked in (of_all, {**of_each, "startingOffsetsByTimestampStrategy": "latest"}):
        assert read_rows(**options, **asked) == []


def test_schema_kafka_has_the_same_messages_under_kafkas_names(golden: GetStore) -> None:
    path = str(golden("mixed-kinds"))
    ours = read_rows(path=path)
    kafkas = read_rows(path=path, schema="kafka", includeHeaders="true")
    assert list(read_rows(path=path, schema="kafka")[0]) == list(kafkas[0])[:-1]
    assert any(row["headers"] for row in kafkas)
    assert kafkas == [
        {
            "key": row["properties"]["KEYS"].encode() if "KEYS" in row["properties"] else None,
            "value": row["body"],
            "topic": row["topic"],
            "partition": row["queueId"],
            "offset": row["queueOffset"],
            "timestamp": row["storeTimestamp"],
            "timestampType": 1,
            "headers": [
                {"key": name, "value": value.encode()} for name, value in row["properties"].items()
            ]
            or None,
        }
        for row in ours
    ]


@pytest.mark.parametrize("name", ["small-clean", "mixed-kinds"])
def test_tags_select_by_their_text(golden: GetStore, name: str) -> None:
    known = facts(name).messages
    counts = Counter((fact["properties"] or {}).get("TAGS") for fact in known if fact["queued"])
    plain = [tag for tag in counts if tag and "|" not in tag and tag.strip() == tag]
    one, two = sorted(plain, key=lambda tag: counts[tag])[-2:]
    rows = read_rows(path=str(golden(name)), tags=f"{one} || {two}")
    assert Counter(row["tags"] for row in rows) == {one: counts[one], two: counts[two]}
    assert read_rows(path=str(golden(name)), tags="no-such-tag") == []


def test_records_per_partition_are_kept(golden: GetStore) -> None:
    topic, _ = queues_of_one_topic()
    options = {"path": str(golden(NAME)), "subscribe": topic, "maxRecordsPerPartition": "37"}
    parts = plan_parts(parse_options(options))
    counts = [sum(batch.num_rows for batch in read_part(part)) for part in parts]
    assert max(counts) <= 37
    assert sum(counts) == expected_places({topic}).total()


def test_columns_are_given_in_the_order_asked_for_and_no_others(golden: GetStore) -> None:
    rows = read_rows(path=str(golden(NAME)), columns="queueoffset, topic")
    assert list(rows[0]) == ["queueOffset", "topic"]
    assert len(rows) == len(facts(NAME).messages)


def test_several_stores_are_one_table_with_their_names(golden: GetStore) -> None:
    nodes = {"a": str(golden(NAME)), "b": f"file://{golden('trimmed')}"}
    rows = read_rows(nodes=json.dumps(nodes), columns="node,physicalOffset", minPartitions="5")
    assert Counter(row["node"] for row in rows) == {
        "a": len(facts(NAME).messages),
        "b": len(facts("trimmed").messages),
    }
    paths = json.dumps(list(nodes.values()))
    assert {row["node"] for row in read_rows(paths=paths, columns="node")} == {NAME, "trimmed"}
    with pytest.raises(MqError, match=r"KEELOG_BAD_OPTION.*nodes"):
        read_rows(paths=json.dumps([str(golden(NAME))] * 2))


def test_a_bare_host_with_a_port_is_a_node_unless_there_is_such_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_address("localhost:7850") == "tcp://localhost:7850"
    (tmp_path / "localhost:7850").mkdir()
    assert parse_address("./localhost:7850") == str(tmp_path / "localhost:7850")
