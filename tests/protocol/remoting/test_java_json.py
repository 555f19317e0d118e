"""Java's JSON: keys without quotes, keys that are objects, and nothing else that JSON has not."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.remoting.java_json import parse_java_json

QUEUE = '{"brokerName":"b","queueId":3,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{1:2, 3 :{4:"{5:6}"}}', {"1": 2, "3": {"4": "{5:6}"}}),
        ('{\n\t-1:"a"\t}', {"-1": "a"}),
        (f'{{"t":{{{QUEUE}:{{"a":1}}}}}}', {"t": {QUEUE: {"a": 1}}}),
        (
            f"{{{QUEUE}:1,{{}} :2, 5:[{QUEUE},{QUEUE}]}}",
            {QUEUE: 1, "{}": 2, "5": [json.loads(QUEUE)] * 2},
        ),
        ('{{"topic":"a}:{\\"b"}:1}', {'{"topic":"a}:{\\"b"}': 1}),
        ('["{1:2}", 7]', ["{1:2}", 7]),
    ],
)
def test_java_s_keys_become_texts(text: str, expected: Any) -> None:
    assert parse_java_json(text) == expected


@pytest.mark.parametrize(
    "text", ["{", "{a:1}", "{1.5:1}", "{[1]:1}", "[1:2]", '{"a":{"b":1}:1}', ""]
)
def test_what_java_does_not_write_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse_java_json(text)


keys = st.one_of(
    st.text(),
    st.integers(),
    st.fixed_dictionaries({"topic": st.text(), "queueId": st.integers()}).map(json.dumps),
)
values = st.recursive(
    st.none() | st.integers() | st.text() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def as_java(value: Any) -> str:
    """Writes integer keys without quotes, and keys that hold an object as that object."""
    if isinstance(value, dict):
        pairs = []
        for key, item in value.items():
            is_odd = isinstance(key, int) or '"queueId"' in key
            pairs.append(f"{key if is_odd else json.dumps(key)} :{as_java(item)}")
        return f"{{ {', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(as_java, value))}]"
    return json.dumps(value, ensure_ascii=False)


def with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return list(map(with_text_keys, value)) if isinstance(value, list) else value


@given(values)
def test_whatever_java_writes_is_read(value: Any) -> None:
    if "queueId" not in str(value) or "\\" not in as_java(value):
        assert parse_java_json(as_java(value)) == with_text_keys(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"' + '\\"' * 300_000,
        "{" * 500_000,
        "{," * 300_000,
        "{ " + " " * 500_000,
        '{,{"a' * 100_000,
        "{1" + "1" * 500_000,
        "{" + '{"a":1},' * 60_000,
    ],
    ids=["quotes", "braces", "commas", "spaces", "keys", "digits", "objects"],
)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    began = time.process_time()
    with pytest.raises((ValueError, RecursionError)):
        parse_java_json(text)
    assert time.process_time() - began < 2.0
