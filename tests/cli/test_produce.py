"""What stdin becomes before it is sent."""

import base64
import fcntl
import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelog.cli.messages.produce import LINE_BYTES_MAX, Defaults, message_of, read_batches
from protocol.errors import IllegalMessage, MqError

PLAIN = Defaults("orders", 2, "paid", ("k",), {"tenant": "a"})
EMPTY = Defaults("", None, None, (), {})


def batches(data: bytes, batch: int) -> list[list[bytes]]:
    reader, writer = os.pipe()
    try:
        os.write(writer, data)
        os.close(writer)
        return list(read_batches(reader, batch))
    finally:
        os.close(reader)


def of(fields: dict[str, Any], defaults: Defaults = EMPTY) -> Any:
    return message_of(json.dumps(fields).encode(), 1, True, defaults)


def test_each_line_is_a_message_and_a_last_one_needs_no_line_end() -> None:
    assert batches(b"a\n\nb\r\nc", 10) == [[b"a", b"", b"b\r", b"c"]]
    assert batches(b"a\nb\n", 10) == [[b"a", b"b"]]
    assert batches(b"", 10) == []


def test_batches_are_no_larger_than_asked() -> None:
    assert batches(b"1\n2\n3\n4\n5\n", 2) == [[b"1", b"2"], [b"3", b"4"], [b"5"]]


def test_what_comes_slowly_is_given_out_at_once() -> None:
    reader, writer = os.pipe()
    found = read_batches(reader, 1000)
    os.write(writer, b"first\nhal")
    assert next(found) == [b"first"]
    os.write(writer, b"f\n")
    os.close(writer)
    assert next(found) == [b"half"]
    assert list(found) == []
    os.close(reader)


def test_a_descriptor_may_have_a_number_that_select_does_not_take() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1024)
    os.close(reader)
    os.write(writer, b"a\nb\n")
    os.close(writer)
    assert list(read_batches(high, 10)) == [[b"a", b"b"]]
    os.close(high)


def test_a_line_without_an_end_is_refused() -> None:
    with Path("/dev/zero").open("rb") as endless, pytest.raises(IllegalMessage, match="more than"):
        list(read_batches(endless.fileno(), 1000))
    assert LINE_BYTES_MAX > 4 * 1024 * 1024 * 4 // 3


def test_a_plain_line_gets_what_the_options_say() -> None:
    message = message_of(b"\xff", 1, False, PLAIN)
    assert (message.body, message.queue_id, message.tags) == (b"\xff", 2, "paid")
    assert (tuple(message.keys), message.properties) == (("k",), {"tenant": "a"})


def test_an_object_says_more_than_the_options() -> None:
    message = of({"body": "x", "queue_id": 0, "tags": "t", "keys": ["a", "b"], "flag": 7}, PLAIN)
    assert (message.topic, message.queue_id, message.tags) == ("orders", 0, "t")
    assert (list(message.keys), message.flag) == (["a", "b"], 7)
    assert of({"topic": "t", "body": "x"}).queue_id is None


def test_binary_bodies_come_as_base64() -> None:
    encoded = base64.b64encode(b"\0\xff").decode()
    assert of({"topic": "t", "body_b64": encoded}).body == b"\0\xff"


def test_stored_keys_keep_their_spaces() -> None:
    message = of({"topic": "t", "body": "", "keys": ["a", "b"], "properties": {"KEYS": "a  b"}})
    assert message.draft("t", "U", 0).properties["KEYS"] == "a  b"
    assert not message.key_list()


def test_a_compressed_body_stays_marked_and_a_transaction_does_not() -> None:
    message = of({"topic": "t", "body": "", "sys_flag": 0x1 | 0x4 | 0x10 | 0x100})
    assert message.sys_flag == 0x101


def outcome(line: bytes, defaults: Defaults) -> str:
    try:
        return repr(astuple(message_of(line, 3, True, defaults)))
    except MqError as error:
        return repr((type(error), error.reason, error.hint))


words = st.sampled_from(["a", "orders", "", "a b", "ü", "\0"])
usual_fields = {
    "body": words,
    "topic": st.sampled_from(["orders", "other", None, ""]),
    "tags": words | st.none(),
    "keys": words | st.lists(words, max_size=2) | st.none(),
    "queue_id": st.sampled_from([0, 1, None]),
}
odd_fields: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from([*usual_fields]),
    st.sampled_from([-7, 1.0, False, 2**70, "\ud800", [1], ["\ud800"], {}, None]),
    max_size=1,
)


@settings(max_examples=400)
@given(
    usual=st.fixed_dictionaries({}, optional=usual_fields),
    odd=odd_fields,
    defaults=st.builds(
        Defaults,
        st.sampled_from(["", "orders"]),
        st.sampled_from([None, 5]),
        st.sampled_from([None, "paid"]),
        st.sampled_from([(), ("k",)]),
        st.sampled_from([{}, {}, {"tenant": "a"}, {"KEYS": "k"}]),
        is_any_topic=st.booleans(),
        delays=st.sampled_from([{}, {"delay": 2.0}]),
    ),
    is_ascii=st.booleans(),
)
def test_usual_objects_become_what_objects_with_more_fields_become(
    usual: dict[str, Any], odd: dict[str, Any], defaults: Defaults, is_ascii: bool
) -> None:
    fields = {"body": "x", **usual, **odd}
    line, with_more = (
        json.dumps(found, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
        for found in (fields, {**fields, "note": 1})
    )
    assert outcome(line, defaults) == outcome(with_more, defaults)


@pytest.mark.parametrize(
    "line",
    [
        b'{"topic":"t","body":"x"}\r',
        b'\xef\xbb\xbf{"topic":"t","body":"x"}',
        b'{"topic":"t","body":"y","body":"x"}',
        b'{"topic":"t","body":"y","body":1,"body":"x"}',
        '{"topic":"t","body":"x"}'.encode("utf-16"),
        b'{"topic":"t","bo\\u0064y":"\\u0078"}',
    ],
)
def test_an_object_may_be_written_in_many_ways(line: bytes) -> None:
    assert outcome(line, EMPTY) == outcome(b'{"topic":"t","body":"x"}', EMPTY)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"topic":"t"}',
        b'{"topic":"t","body":"a","body_b64":"YQ=="}',
        b'{"topic":"t","body":1}',
        b'{"body":"x"}',
        b'{"topic":"t","body_b64":"?"}',
        b'{"topic":"t","body":"x","queue_id":"1"}',
        b'{"topic":"t","body":"x","queue_id":true}',
        b'{"topic":"t","body":"x","keys":[1]}',
        b'{"topic":"t","body":"x","properties":{"a":{"b64":"/w=="}}}',
        b'{"topic":"t","body":"\\ud800"}',
        b"\xff",
    ],
)
def test_a_bad_object_is_refused_with_its_line_number(line: bytes) -> None:
    with pytest.raises(MqError, match="line 17: "):
        message_of(line, 17, True, EMPTY)
