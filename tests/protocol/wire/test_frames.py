"""Headers from anywhere: a map, or BadRequest, and errors that arrive as they were raised."""

import math
import struct
from typing import Annotated, Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import protocol.errors
from protocol.errors import (
    BadRequest,
    BusyError,
    CorruptError,
    IllegalMessage,
    MqError,
    NodeBusy,
    NotLoggedIn,
    OffsetOutOfRange,
    RefusedError,
    StoreDamaged,
    TopicRemoved,
    UnknownOperation,
)
from protocol.request_fields import Field, RequestLayout
from protocol.wire.frames import (
    HEADER_BYTES_MAX,
    LIST_ITEMS_MAX,
    MAP_ITEMS_MAX,
    REQUEST_ID_MAX,
    VERSION,
    answer,
    check_envelope,
    id_within,
    pack,
    refusal,
    refusal_error,
    request_id,
    unpack,
    unpack_answer,
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.binary(max_size=8),
)
NAMES = st.one_of(
    st.sampled_from(["v", "op", "id", "ok", "error", "topic"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=6)

KINDS = [
    kind
    for kind in vars(protocol.errors).values()
    if isinstance(kind, type) and issubclass(kind, MqError)
]


class Fields(NamedTuple):
    topic: Annotated[str | None, Field("")] = None
    queue: Annotated[int, Field("", low=0, high=2**63 - 1)] = 0


FIELDS = RequestLayout(Fields)


def examine(header: dict[str, Any]) -> None:
    """What a server does with a header before it knows anything about it."""
    request_id(header)
    check_envelope(header)
    FIELDS.parse(header)


@given(HEADERS)
def test_a_header_comes_back_as_packed(header: dict[str, Any]) -> None:
    assert unpack(pack(header)) == header
    assert unpack(memoryview(pack(header))) == header
    assert unpack_answer(pack(header)) == header


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_a_map_or_a_bad_request(frame: bytes) -> None:
    for read in (unpack, unpack_answer):
        try:
            header = read(frame)
        except BadRequest as error:
            assert error.reason
        else:
            assert isinstance(header, dict)


@given(HEADERS, st.data())
def test_a_damaged_header_is_a_map_or_refused(header: dict[str, Any], data: st.DataObject) -> None:
    frame = bytearray(pack(header))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        found = unpack(bytes(frame))
        assert isinstance(found, dict)
        examine(found)
    except (BadRequest, UnknownOperation) as refused:
        assert refused.reason


@given(HEADERS.filter(bool), st.data())
def test_a_cut_header_is_a_bad_request(header: dict[str, Any], data: st.DataObject) -> None:
    frame = pack(header)
    with pytest.raises(BadRequest):
        unpack(frame[: data.draw(st.integers(0, len(frame) - 1))])


def nested(depth: int, opener: bytes, closer: bytes) -> bytes:
    return b"\x81\xa1v" + opener * depth + closer


MAP, ENTRY = b"\x81", b"\x81\xa5topic"
HOSTILE: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("a number", b"\x01"),
    ("a list", b"\x91\x01"),
    ("nil", b"\xc0"),
    ("never used", b"\xc1"),
    ("lists 10,000 deep", nested(10_000, b"\x91", b"\x90")),
    ("maps 10,000 deep", nested(10_000, b"\x81\xa1v", b"\x80")),
    ("lists of 4 GiB", ENTRY + b"\xdd\xff\xff\xff\xff"),
    ("a map of 4 GiB", b"\xdf\xff\xff\xff\xff"),
    ("bytes of 4 GiB", ENTRY + b"\xc6\xff\xff\xff\xff"),
    ("text of 4 GiB", ENTRY + b"\xdb\xff\xff\xff\xff"),
    ("an extension of 4 GiB", ENTRY + b"\xc9\xff\xff\xff\xff\x05"),
    ("an extension", ENTRY + b"\xd4\x05\x00"),
    ("a timestamp", ENTRY + b"\xd6\xff\0\0\0\0"),
    ("a timestamp of nothing", ENTRY + b"\xc7\x00\xff"),
    ("a timestamp out of range", ENTRY + b"\xc7\x0c\xff" + b"\xff" * 12),
    ("text that is no UTF-8", ENTRY + b"\xa1\xff"),
    ("a lone surrogate", ENTRY + b"\xa3\xed\xa0\x80"),
    ("a number as key", b"\x81\x01\x01"),
    ("a list as key", b"\x81\x90\x01"),
    ("nil as key", b"\x81\xc0\x01"),
    ("something behind", pack({"v": 1}) + b"\xc0"),
    ("too long a list", pack({"topic": list(range(LIST_ITEMS_MAX + 1))})),
    ("too many fields", pack({str(i): i for i in range(MAP_ITEMS_MAX + 1)})),
    ("too many bytes", pack({"body": bytes(HEADER_BYTES_MAX)})),
]


@pytest.mark.parametrize("frame", [row[1] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_header_is_a_bad_request(frame: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        unpack(frame)
    assert caught.value.reason
    assert len(caught.value.reason) < 500
    pack(refusal(0, caught.value))


@pytest.mark.parametrize("depth", [100, 500, 900, 990, 1_000, 1_010, 1_020, 1_024])
@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1v"])
def test_a_deeply_nested_value_is_refused_wherever_it_stands(depth: int, opener: bytes) -> None:
    value = opener * depth + b"\xc0"
    for name in (b"v", b"op", b"id", b"topic"):
        rest = {"v": VERSION, "op": "ping", "id": 1}
        rest.pop(name.decode(), None)
        frame = bytes([0x81 + len(rest)]) + pack(rest)[1:] + msgpack.packb(name.decode()) + value
        with pytest.raises((BadRequest, UnknownOperation)):
            examine(unpack(frame))


def test_of_a_key_named_twice_the_last_value_counts() -> None:
    assert unpack(b"\x82\xa1v\x01\xa1v\x02") == {"v": 2}


def test_a_header_says_its_size_limit() -> None:
    frame = pack({"body": bytes(100)})
    assert unpack(frame, len(frame))
    with pytest.raises(BadRequest, match=f"{len(frame)} bytes, {len(frame) - 1} are allowed"):
        unpack(frame, len(frame) - 1)


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, "\ud800", object(), {1, 2}, [["x"] * 3, object()]]
)
def test_what_msgpack_cannot_hold_is_a_bad_request(value: object) -> None:
    with pytest.raises(BadRequest, match="not for the wire"):
        pack({"value": value})


def test_a_value_that_holds_itself_is_a_bad_request() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadRequest):
        pack({"value": loop})


@pytest.mark.parametrize("value", [None, -1, True, 1.0, "1", b"1", [1], {}, 2**63, 2**64 - 1])
def test_an_unusable_id_is_refused_under_the_id_0(value: object) -> None:
    header = {"v": VERSION, "op": "ping", "id": value}
    assert request_id(header) == 0
    with pytest.raises(BadRequest, match="no id"):
        check_envelope(header)


@pytest.mark.parametrize("value", [0, 1, REQUEST_ID_MAX])
def test_an_id_is_any_number_of_63_bits(value: int) -> None:
    header = {"v": VERSION, "op": "ping", "id": value}
    assert request_id(header) == value
    assert check_envelope(header) == "ping"


@pytest.mark.parametrize("value", [None, 0, 2, -1, True, 1.0, math.nan, "1", b"", [], {"a": []}])
def test_another_version_is_an_unknown_operation(value: object) -> None:
    with pytest.raises(UnknownOperation) as caught:
        check_envelope({"v": value, "op": "ping", "id": 1})
    assert caught.value.hint == "this node speaks version 1"


@pytest.mark.parametrize("value", [None, 1, b"ping", ["ping"]])
def test_an_operation_is_a_text(value: object) -> None:
    with pytest.raises(BadRequest, match="operation"):
        check_envelope({"v": VERSION, "op": value, "id": 1})


def test_a_good_answer_has_its_fields() -> None:
    header = answer(7, offset=5)
    assert header == {"v": VERSION, "id": 7, "ok": True, "offset": 5}


def make(kind: type[MqError]) -> MqError:
    if issubclass(kind, CorruptError):
        return kind("commitlog/0", 123, "no magic", "look")
    if issubclass(kind, TopicRemoved):
        return kind("it is gone", "begin anew", generation=9)
    if issubclass(kind, OffsetOutOfRange):
        return kind("too early", "start at 7", earliest=7, latest=9)
    return kind("the reason", "the hint")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was_raised(kind: type[MqError]) -> None:
    error = make(kind)
    header = unpack_answer(pack(refusal(7, error)))
    assert (header["id"], header["ok"]) == (7, False)
    assert header["error"]["retriable"] is issubclass(kind, BusyError)
    with pytest.raises(kind) as caught:
        raise refusal_error(header)
    assert type(caught.value) is kind
    assert vars(caught.value) == vars(error) | (
        {"retry_after": 0.1}
        if isinstance(error, NodeBusy)
        else {"local": None}
        if isinstance(error, NotLoggedIn)
        else {}
    )
    assert str(caught.value) == str(error)
    assert (caught.value.code, caught.value.status) == (error.code, error.status)


def test_the_time_to_wait_arrives_too() -> None:
    error = NodeBusy("full", "later")
    error.retry_after = 2.5
    with pytest.raises(NodeBusy) as caught:
        raise refusal_error(refusal(1, error))
    assert caught.value.retry_after == 2.5


@pytest.mark.parametrize(
    ("kind", "retriable", "family"),
    [
        ("NewError", False, RefusedError),
        ("NewError", True, BusyError),
        ("ForkedClient", False, RefusedError),
        ("__doc__", False, RefusedError),
        ("ClassVar", True, BusyError),
        (None, None, RefusedError),
        (["x"], 1, BusyError),
    ],
)
def test_an_unknown_kind_becomes_the_family_that_it_names(
    kind: object, retriable: object, family: type[MqError]
) -> None:
    error = {"kind": kind, "retriable": retriable, "reason": "why", "hint": "what"}
    with pytest.raises(family) as caught:
        raise refusal_error({"ok": False, "error": error})
    assert type(caught.value) is family
    assert (caught.value.reason, caught.value.hint) == ("why", "what")


@given(st.one_of(VALUES, st.fixed_dictionaries({"kind": st.sampled_from(KINDS)})), st.data())
def test_any_refusal_raises_one_of_our_errors(error: Any, data: st.DataObject) -> None:
    if isinstance(error, dict) and isinstance(error.get("kind"), type):
        error = {
            "kind": error["kind"].__name__,
            **data.draw(
                st.dictionaries(
                    st.sampled_from(
                        ["reason", "hint", "where", "offset", "found", "earliest", "retry_after"]
                    ),
                    VALUES,
                )
            ),
        }
    with pytest.raises(MqError) as caught:
        raise refusal_error({"ok": False, "error": error})
    assert isinstance(caught.value.reason, str)
    assert isinstance(caught.value.hint, str)


def test_every_error_belongs_to_one_family_and_says_what_rocketmq_says() -> None:
    for kind in KINDS:
        assert kind.code >= 1
        assert kind.status == kind.status.upper()
        assert kind.retriable == issubclass(kind, BusyError), kind
        assert kind.__doc__


def test_a_damage_names_file_offset_and_what_stands_there() -> None:
    error = StoreDamaged("commitlog/00000000000000000000", 165, "magic is 00000001")
    assert str(error) == "commitlog/00000000000000000000, offset 165: magic is 00000001"


def test_a_size_over_64_bits_does_not_pass_as_a_number() -> None:
    frame = b"\x81\xa5queue\xcf" + struct.pack(">Q", 2**64 - 1)
    with pytest.raises(BadRequest):
        FIELDS.parse(unpack(frame))


def test_a_message_error_stays_a_refusal() -> None:
    assert issubclass(IllegalMessage, RefusedError)


def test_the_id_is_found_before_what_is_wrong_with_a_header() -> None:
    long = list(range(LIST_ITEMS_MAX + 1))
    assert id_within(pack({"v": 1, "op": "send", "id": 7, "keys": long})) == 7
    assert id_within(pack({"v": 1, "nested": {"id": 3}, "id": 7})[:-1] + b"\x08") == 8
    assert id_within(pack({"id": 2**64 - 1})) == id_within(pack({"id": "7"})) == 0
    assert id_within(pack({"keys": long, "id": 7})) == 0
    assert id_within(pack({"op": "x" * 2_000, "id": 7})) == 0


@given(st.binary(max_size=64) | HEADERS.map(pack))
def test_any_bytes_have_an_id_or_none(frame: bytes) -> None:
    assert 0 <= id_within(frame) <= REQUEST_ID_MAX
    assert id_within(b"\x91" * 2_000) == 0
