"""Classes declared as data: read with Java's tolerance, written as Java reads it."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.remoting.bodies import (
    BrokerData,
    HeartbeatData,
    MessageQueue,
    ResetOffsetBody,
    TopicRouteData,
)
from protocol.remoting.codes import BadCommand
from protocol.remoting.header_fields import REQUEST_HEADERS
from protocol.remoting.java_json import (
    JSON_BODY_BYTES_MAX,
    Int32,
    java_class,
    read_body,
    write_body,
)


class Inner(NamedTuple):
    queue_id: Int32 = 0
    name: str | None = None


class Sample(NamedTuple):
    client_id: Annotated[str, "clientID"]
    offset: int = 0
    small: Int32 | None = 7
    is_open: bool = False
    rate: float = 0.0
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    by_id: Mapping[int, str] = {}
    by_queue: Mapping[Inner, int] = {}
    any_thing: Any = None


def test_names_are_in_camel_case_and_absent_fields_have_their_defaults() -> None:
    names = [field.name for field in java_class(Sample).fields]
    assert names[:4] == ["clientID", "offset", "small", "isOpen"]
    assert read_body(Sample, b'{"clientID":"a","small":null,"unknown":[1]}') == Sample("a")


def test_values_are_taken_in_the_forms_that_java_takes() -> None:
    body = (
        b'{"clientID":5,"offset":"-9","isOpen":"TRUE","rate":1,"many":[{"queueId":"3"}],'
        b'"byId":{0:"x","1":"y"},"byQueue":{{"queueId":4}:2},"anyThing":{"a":[null]}}'
    )
    found = read_body(Sample, body)
    assert found == Sample(
        "5",
        -9,
        is_open=True,
        rate=1.0,
        many=(Inner(3),),
        by_id={0: "x", 1: "y"},
        by_queue={Inner(4): 2},
        any_thing={"a": [None]},
    )
    assert read_body(Sample, write_body(found, standard=True)) == found
    assert read_body(Sample, write_body(found, standard=False)) == found


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "body is missing"),
        (b"[]", "Sample is list"),
        (b"{}", "field clientID is missing"),
        (b'{"clientID":null}', "field clientID is missing"),
        (b'{"clientID":[]}', "field clientID is list"),
        (b'{"clientID":"a","offset":"x"}', "field offset is 'x'"),
        (b'{"clientID":"a","offset":9223372036854775808}', "field offset is int"),
        (b'{"clientID":"a","offset":true}', "field offset is bool"),
        (b'{"clientID":"a","small":2147483648}', "field small is int"),
        (b'{"clientID":"a","many":{}}', "field many is dict"),
        (b'{"clientID":"a","many":[1]}', "Inner is int"),
        (b'{"clientID":"a","byId":[]}', "field byId is list"),
        (b'{"clientID":"a","byQueue":{"x":1}}', "field byQueue is dict"),
        (b'{"clientID":"a","anyThing":' + b"[" * 34 + b"]" * 34 + b"}", "field anyThing is list"),
        (b'{"clientID":"a"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (JSON_BODY_BYTES_MAX + 1), "a body of 1048577 bytes"),
    ],
)
def test_a_body_that_is_not_as_declared_is_refused_by_name(body: bytes, reason: str) -> None:
    with pytest.raises(BadCommand, match=reason) as caught:
        read_body(Sample, body)
    assert (caught.value.code, caught.value.status) == (1, "SYSTEM_ERROR")


def test_integer_keys_have_quotes_in_standard_json_alone() -> None:
    route = TopicRouteData((BrokerData("b", {0: "h:1"}, "c"),))
    assert b'"brokerAddrs":{"0":"h:1"}' in write_body(route, standard=True)
    assert b'"brokerAddrs":{0:"h:1"}' in write_body(route, standard=False)
    assert b"orderTopicConf" not in write_body(route, standard=True)


def test_a_key_that_is_an_object_never_has_quotes() -> None:
    body = ResetOffsetBody({MessageQueue("T", "b", 3): 7})
    expected = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:7}}'
    assert write_body(body, standard=True) == write_body(body, standard=False) == expected


texts = st.text(st.characters(exclude_categories=["Cs"]))
queues = st.builds(MessageQueue, texts, texts, st.integers(-(2**31), 2**31 - 1))


@given(st.dictionaries(queues, st.integers(-(2**63), 2**63 - 1), max_size=5), st.booleans())
def test_maps_keyed_by_queues_come_back(offsets: dict[MessageQueue, int], standard: bool) -> None:
    body = ResetOffsetBody(offsets)
    assert read_body(ResetOffsetBody, write_body(body, standard=standard)) == body


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    found = read_body(HeartbeatData, b'{"clientID":"a\\ud83d"}')
    assert found.client_id == "a?"
    assert write_body(["\ud83d"], standard=True) == b'["?"]'


ext_values = st.one_of(
    st.integers(-(2**64), 2**64).map(str),
    st.sampled_from(["true", "TRUE", "false", "1", "", "x", " 5", "4.0", "-0", "+3"]),
    texts,
)


@given(st.sampled_from(sorted(REQUEST_HEADERS)), st.data())
def test_the_compiled_reader_of_fields_agrees_with_the_plain_one(
    code: int, data: st.DataObject
) -> None:
    declared = REQUEST_HEADERS[code]
    names = [field.name for field in declared.fields]
    required = {name: data.draw(st.just("5") | ext_values) for name in names}
    left_out = data.draw(st.sets(st.sampled_from(names), max_size=3))
    ext = {name: value for name, value in required.items() if name not in left_out}

    def outcome(read: Any) -> Any:
        try:
            return read(ext)
        except BadCommand as error:
            return str(error)

    assert outcome(declared.read_ext) == outcome(declared.read)


def test_a_request_without_a_mandatory_field_is_refused_by_the_name_on_the_wire() -> None:
    with pytest.raises(BadCommand, match="field a is missing"):
        REQUEST_HEADERS[310].read_ext({})
    with pytest.raises(BadCommand, match="field queueId is 'x'"):
        REQUEST_HEADERS[30].read_ext({"topic": "t", "queueId": "x"})
    assert (
        REQUEST_HEADERS[30].read_ext({"topic": "t", "queueId": "-1", "lo": "true"}).queue_id == -1
    )
