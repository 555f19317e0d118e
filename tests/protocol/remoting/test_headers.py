"""Headers in both forms come back, all that Java takes is taken, and the plain codec agrees."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.remoting import headers as headers_module
from protocol.remoting.codes import BrokenFrame, Language
from protocol.remoting.headers import (
    EXT_FIELDS_MAX,
    RemotingHeader,
    Serialization,
    decode_header,
    decode_json_plain,
    encode_binary,
    encode_header,
    encode_json_plain,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
headers = st.builds(
    RemotingHeader,
    code=int32,
    opaque=int32,
    flag=int32,
    ext=st.dictionaries(texts, texts, max_size=20),
    remark=st.none() | texts,
    language=st.sampled_from(Language),
    serialization=st.just(Serialization.JSON),
    version=int32,
)


def decoded(data: bytes, serialization: int = Serialization.JSON) -> RemotingHeader:
    return decode_header(serialization, memoryview(data))


@given(headers)
def test_a_json_header_comes_back_and_the_plain_codec_agrees(header: RemotingHeader) -> None:
    data = encode_header(header)
    assert decoded(data) == header
    assert decode_json_plain(memoryview(data)) == header
    assert json.loads(data) == json.loads(encode_json_plain(header))
    assert decoded(encode_json_plain(header)) == header


@given(headers, int16, int16)
def test_a_binary_header_comes_back(header: RemotingHeader, code: int, version: int) -> None:
    header = header._replace(code=code, version=version, serialization=Serialization.ROCKETMQ)
    assert decoded(encode_header(header), Serialization.ROCKETMQ) == header


def test_a_code_above_16_bits_arrives_as_another_in_the_binary_form() -> None:
    pop = RemotingHeader(200050, 1, serialization=Serialization.ROCKETMQ)
    assert decoded(encode_binary(pop), Serialization.ROCKETMQ).code == 3442


@given(headers, st.data())
def test_a_binary_header_that_is_cut_is_refused(
    header: RemotingHeader, data: st.DataObject
) -> None:
    header = header._replace(code=1, version=1, serialization=Serialization.ROCKETMQ)
    whole = encode_header(header)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BrokenFrame):
        decoded(whole[:end], Serialization.ROCKETMQ)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_binary_header_or_a_typed_error(data: bytes) -> None:
    try:
        decoded(data, Serialization.ROCKETMQ)
    except BrokenFrame as error:
        assert str(error).isprintable()


numbers = st.one_of(
    int32,
    st.integers(),
    st.booleans(),
    st.floats(),
    st.none(),
    int32.map(str),
    texts,
    st.just([]),
)
anything = st.recursive(
    numbers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "code": numbers,
        "opaque": numbers,
        "flag": numbers,
        "version": numbers,
        "language": st.sampled_from(["JAVA", "GO", "KLINGON"]) | numbers,
        "remark": numbers,
        "extFields": st.dictionaries(texts, numbers | st.text(), max_size=4) | numbers,
        "other": anything,
    },
)


def outcome(decode: Any, data: bytes) -> RemotingHeader | str:
    try:
        header: RemotingHeader = decode(memoryview(data))
    except BrokenFrame as error:
        return str(error)
    return header


@given(documents, st.booleans())
def test_both_decoders_of_json_agree_on_any_document(document: Any, escaped: bool) -> None:
    data = json.dumps(document, ensure_ascii=escaped).encode("utf-8", "replace")
    found = outcome(lambda view: decode_header(Serialization.JSON, view), data)
    assert found == outcome(decode_json_plain, data)


@given(headers, st.data())
def test_both_decoders_of_json_agree_on_damaged_headers(
    header: RemotingHeader, data: st.DataObject
) -> None:
    damaged = bytearray(encode_header(header))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(
        st.sampled_from([b"", b"\\ud83d", b"\\ude00", b"\xff", b"1e2", b".0", b"{", b'"', b"\x01"])
        | st.binary(max_size=3)
    )
    found = outcome(lambda view: decode_header(Serialization.JSON, view), bytes(damaged))
    assert found == outcome(decode_json_plain, bytes(damaged))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{}", RemotingHeader(0, 0, ext={}, language=Language.JAVA, version=0)),
        (
            '{"version":317,"extFields":{"n":4,"t":true,"f":1.5,"0":null,"s":"x"},"opaque":-7,"code":"10"}',
            RemotingHeader(
                10,
                -7,
                ext={"n": "4", "t": "true", "f": "1.5", "s": "x"},
                language=Language.JAVA,
                version=317,
            ),
        ),
        (
            '{"language":9,"code":11,"unknown":[{}],"extFields":null,"remark":null}',
            RemotingHeader(11, 0, ext={}, language=Language.GO, version=0),
        ),
        (
            '{"language":"KLINGON","code":11}',
            RemotingHeader(11, 0, ext={}, language=Language.OTHER, version=0),
        ),
        (
            '{"code":1,"extFields":{"a":"\\ud83d\\ude00 \\ud83d"}}',
            RemotingHeader(1, 0, ext={"a": "😀 ?"}, language=Language.JAVA, version=0),
        ),
    ],
)
def test_what_java_takes_is_taken(document: str, expected: RemotingHeader) -> None:
    assert decoded(document.encode()) == expected


def test_answers_have_text_values_in_compact_json() -> None:
    request = RemotingHeader(310, 5, language=Language.GO)
    data = encode_header(request.answer(0, {"queueId": "3", "p": "a\x01b\x02"}))
    assert data == (
        b'{"code":0,"extFields":{"queueId":"3","p":"a\\u0001b\\u0002"},"flag":1,'
        b'"language":"OTHER","opaque":5,"serializeTypeCurrentRPC":"JSON","version":513}'
    )


@pytest.mark.parametrize("serialization", Serialization)
def test_too_many_fields_are_refused(serialization: Serialization) -> None:
    for count, is_good in ((EXT_FIELDS_MAX, True), (EXT_FIELDS_MAX + 1, False)):
        ext = {f"field-{number}": "x" for number in range(count)}
        data = encode_header(RemotingHeader(1, 1, ext=ext, serialization=serialization))
        if is_good:
            assert decoded(data, serialization).ext == ext
        else:
            with pytest.raises(BrokenFrame, match="257 fields"):
                decoded(data, serialization)


def test_a_deeply_nested_header_is_refused_and_ends_no_process() -> None:
    for nest in ("[", '{"a":'):
        with pytest.raises(BrokenFrame, match="not JSON"):
            decoded(('{"x":' + nest * 20_000).encode())


def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    for serialization in Serialization:
        header = RemotingHeader(1, 1, ext={"a": "\ud83d"}, serialization=serialization)
        assert decoded(encode_header(header), serialization).ext == {"a": "?"}


def test_msgspec_takes_what_clients_write_and_leaves_the_rest() -> None:
    header = RemotingHeader(310, 5, ext={"a": "ü"}, remark="why")
    assert headers_module._usual_header(encode_header(header)).ext == {"a": "ü"}
    assert encode_header(header) == encode_json_plain(header)
    for other in (b'{"code":"1"}', b'{"new":1}', b'{"extFields":{"a":1}}', b'{"language":3}'):
        with pytest.raises(msgspec.DecodeError):
            headers_module._usual_header(other)
        decoded(other)
