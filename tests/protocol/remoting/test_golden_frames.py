"""Frames that RocketMQ's client, tools, broker and name server sent are read, and come back."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.remoting import bodies
from protocol.remoting.batch import batch_items
from protocol.remoting.codes import BadCommand, BrokenFrame
from protocol.remoting.frame_reader import frame_head
from protocol.remoting.header_fields import REQUEST_HEADERS, SendMessageHeader, request_fields
from protocol.remoting.headers import (
    Serialization,
    decode_json_plain,
    encode_json_plain,
)
from protocol.remoting.java_json import Int32, parse_java_json, read_body, write_body
from tests.protocol.remoting.golden_frames import (
    GoldenFrame,
    ReadFrame,
    golden_frames,
    read_all,
    read_one,
)


class SubscriptionGroupTable(NamedTuple):
    """201: all groups of a broker, and what is forbidden to each."""

    subscription_group_table: Mapping[str, bodies.SubscriptionGroupConfig] = {}
    forbidden_table: Mapping[str, Mapping[str, Int32]] = {}
    data_version: bodies.DataVersion = bodies.DataVersion()


class ConsumerRunningInfo(NamedTuple):
    """307 from a client: what it does. The details of its queues are passed on as they are."""

    properties: Mapping[str, Any] = {}
    subscription_set: tuple[bodies.SubscriptionData, ...] = ()
    mq_table: Mapping[bodies.MessageQueue, Any] = {}
    mq_pop_table: Mapping[bodies.MessageQueue, Any] = {}
    status_table: Mapping[str, Any] = {}
    user_consumer_info: Mapping[str, str] = {}
    jstack: str | None = None


REQUEST_BODIES: dict[int, type[Any]] = {
    34: bodies.HeartbeatData,
    41: bodies.LockBatchBody,
    42: bodies.LockBatchBody,
    46: bodies.CheckClientBody,
    103: bodies.RegisterBrokerBody,
    200: bodies.SubscriptionGroupConfig,
}
ANSWER_BODIES: dict[int, type[Any]] = {
    38: bodies.ConsumerIdList,
    41: bodies.LockedQueues,
    103: bodies.KVTable,
    105: bodies.TopicRouteData,
    106: bodies.ClusterInfo,
    201: SubscriptionGroupTable,
    202: bodies.TopicStatsTable,
    206: bodies.TopicList,
    208: bodies.ConsumeStats,
    222: bodies.ResetOffsetBody,
    307: ConsumerRunningInfo,
    317: bodies.ConsumeStatsList,
    351: bodies.TopicConfig,
}
IN_JAVAS_ORDER = (34, 41, 42, 46, 105, 200, 351)
"""Bodies without maps: their bytes come back, for Java writes the fields of a class sorted."""


def body_class(golden: GoldenFrame, frame: ReadFrame) -> type[Any] | None:
    if not frame.body:
        return None
    if golden.answers is None:
        return REQUEST_BODIES.get(frame.header.code)
    return ANSWER_BODIES.get(golden.answers)


def test_every_frame_is_read_and_comes_back() -> None:
    seen = set()
    for golden in golden_frames():
        frame = read_one(golden.data)
        again = read_one(frame_head(frame.header, len(frame.body)) + frame.body)
        assert again == frame
        assert frame.header.is_answer == (golden.answers is not None)
        seen.add((frame.header.serialization, golden.answers or frame.header.code))
    assert len(golden_frames()) > 100
    assert {(0, 310), (1, 310), (0, 10), (0, 320), (1, 320), (0, 11), (1, 11), (0, 34)} <= seen


def test_the_binary_form_has_javas_bytes_but_for_the_order_of_fields() -> None:
    binary = [golden.data for golden in golden_frames() if golden.data[4]]
    same = 0
    for data in binary:
        header, body = read_one(data)
        again = frame_head(header, len(body)) + body
        assert len(again) <= len(data), "Java also writes fields that are empty"
        same += sorted(again) == sorted(data)
    assert same > len(binary) / 2 > 5


def test_the_plain_codec_of_json_agrees_on_every_header() -> None:
    for golden in golden_frames():
        frame = read_one(golden.data)
        if frame.header.serialization == Serialization.JSON:
            header_end = 8 + int.from_bytes(golden.data[5:8], "big")
            assert decode_json_plain(memoryview(golden.data)[8:header_end]) == frame.header
            theirs = json.loads(golden.data[8:header_end])
            if not theirs.get("extFields"):
                theirs.pop("extFields", None)
            ours = json.loads(encode_json_plain(frame.header))
            assert ours == {**theirs, "serializeTypeCurrentRPC": "JSON"}


def test_the_fields_of_every_request_are_as_declared() -> None:
    codes = set()
    for golden in golden_frames():
        header = read_one(golden.data).header
        if golden.answers is None and header.code in REQUEST_HEADERS:
            declared = REQUEST_HEADERS[header.code]
            assert request_fields(header) == declared.read(header.ext)
            codes.add(header.code)
    assert codes >= {10, 310, 320, 325, 11, 361, 14, 15, 35, 36, 38, 105, 17}


def test_a_send_has_the_same_fields_in_each_version_and_form() -> None:
    sends = {}
    for golden in golden_frames():
        frame = read_one(golden.data)
        if frame.body == b"hello":
            sends[frame.header.serialization, frame.header.code] = request_fields(frame.header)
    assert len(sends) == 3
    for send in sends.values():
        assert isinstance(send, SendMessageHeader)
        assert (send.producer_group, send.topic, send.default_topic) == (
            "frames-producer",
            "frames",
            "TBW102",
        )
        assert (send.default_topic_queue_nums, send.flag, send.sys_flag, send.batch) == (
            4,
            0,
            0,
            False,
        )
        assert "größe\x0112 €\x02" in send.properties
        assert "KEYS\x01order-1 order-2\x02" in send.properties


def test_a_batch_is_divided_into_its_messages() -> None:
    batches = 0
    for golden in golden_frames():
        frame = read_one(golden.data)
        if golden.answers is None and frame.header.code == 320:
            assert request_fields(frame.header).batch
            items = batch_items(memoryview(frame.body))
            assert [bytes(item.body) for item in items] == [b"first", b"second", b"third"]
            assert [item.flag for item in items] == [0, 0, 0]
            assert all(b"UNIQ_KEY\x01" in bytes(item.properties) for item in items)
            batches += 1
    assert batches == 2


def test_every_declared_body_says_the_same_after_reading_and_writing() -> None:
    seen = set()
    for golden in golden_frames():
        frame = read_one(golden.data)
        kind = body_class(golden, frame)
        if kind is None:
            continue
        value = read_body(kind, frame.body)
        forms = [write_body(value, standard=standard) for standard in (True, False)]
        for written in forms:
            assert read_body(kind, written) == value
            ours, theirs = parse_java_json(written.decode()), parse_java_json(frame.body.decode())
            assert without_nulls(ours) == without_nulls(theirs)
        code = golden.answers or frame.header.code
        assert code not in IN_JAVAS_ORDER or frame.body in forms
        seen.add((code, golden.answers is not None))
    assert seen == {(code, False) for code in REQUEST_BODIES} | {
        (code, True) for code in ANSWER_BODIES
    }


def without_nulls(found: Any) -> Any:
    """Maps without null, and with the keys that are objects in one form."""
    if isinstance(found, dict):
        return {key: without_nulls(value) for key, value in found.items() if value is not None}
    return [without_nulls(one) for one in found] if isinstance(found, list) else found


def use(data: bytes) -> None:
    """Does with some bytes what a node does with those of a stranger."""
    kinds = {*REQUEST_BODIES.values(), *ANSWER_BODIES.values()}
    for header, body in read_all(data):
        ways: list[Callable[[], Any]] = [partial(read_body, kind, body) for kind in kinds]
        ways.append(partial(batch_items, memoryview(body)))
        if header.code in REQUEST_HEADERS:
            ways.append(partial(request_fields, header))
        for way in ways:
            try:
                way()
            except BadCommand as error:
                assert error.code == 1
                assert str(error).isprintable()


@given(st.data())
def test_a_damaged_frame_raises_nothing_but_the_typed_errors(data: st.DataObject) -> None:
    golden = data.draw(st.sampled_from(golden_frames()))
    damaged = bytearray(golden.data)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["set", "cut", "put", "digit"])):
            case "set":
                damaged[at] = data.draw(st.integers(0, 255))
            case "digit":
                damaged[at : at + 1] = data.draw(st.sampled_from([b"-", b"9", b'"', b"{", b"null"]))
            case "cut":
                del damaged[at : at + data.draw(st.integers(1, 20))]
            case "put":
                damaged[at:at] = data.draw(st.binary(max_size=20))
        damaged = damaged or bytearray(1)
    if data.draw(st.booleans()):  # the length is true again: damage is found further in
        damaged[:4] = max(len(damaged) - 4, 0).to_bytes(4, "big")
    try:
        use(bytes(damaged))
    except BrokenFrame as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("kind", [*REQUEST_BODIES.values()])
def test_a_request_without_a_body_is_refused(kind: type[Any]) -> None:
    with pytest.raises(BadCommand, match="body is missing"):
        read_body(kind, b"")
