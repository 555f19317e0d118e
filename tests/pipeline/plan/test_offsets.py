"""Positions of a stream: one JSON form each, which comes back, and lag from two of them."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.bounds import QueueAt
from keelog.pipeline.errors import BadCheckpoint
from keelog.pipeline.micro_batch import (
    INITIAL_KEY,
    StreamPosition,
    TopicAt,
    lag,
    lag_by_queue,
    parse_position,
)

QUEUES = st.builds(
    QueueAt, st.sampled_from(["a", "b", "%RETRY%g", "ü"]), st.sampled_from(["n1", "n2"]),
    st.integers(0, 12),
)  # fmt: skip
GENERATIONS = st.dictionaries(
    st.builds(TopicAt, st.sampled_from(["a", "ü"]), st.sampled_from(["n1", "n2"])),
    st.integers(1, 2**63 - 1),
)
POSITIONS = st.builds(
    StreamPosition,
    st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=9),
    st.booleans(),
    GENERATIONS,
)


@given(POSITIONS)
def test_a_position_comes_back_from_its_json(position: StreamPosition) -> None:
    assert parse_position(json.loads(json.dumps(position.to_json()))) == position


@given(POSITIONS, st.randoms(use_true_random=False))
def test_one_position_has_one_text(position: StreamPosition, rnd: random.Random) -> None:
    items = list(position.offsets.items())
    rnd.shuffle(items)
    text = json.dumps(position.to_json())
    again = StreamPosition(dict(items), position.is_initial, position.generations)
    assert json.dumps(again.to_json()) == text
    assert json.dumps(position.to_json(), sort_keys=True) == text


def test_the_form_is_topic_node_queue() -> None:
    offsets = {QueueAt("topicA", "node1", 0): 23, QueueAt("topicA", "node1", 10): 2**53 + 1}
    text = '{"topicA": {"node1": {"0": 23, "10": 9007199254740993}}}'
    assert json.dumps(StreamPosition(offsets).to_json()) == text
    assert StreamPosition({}, True).to_json() == {INITIAL_KEY: True}


@pytest.mark.parametrize(
    "text",
    [
        "[]", "1", '{"a": 1}', '{"a": {}}', '{"a": {"n": {}}}', '{"a": {"n": 1}}',
        '{"a": {"n": {"x": 1}}}', '{"a": {"n": {"01": 1}}}', '{"a": {"n": {"0": -1}}}',
        '{"a": {"n": {"0": 1.0}}}', '{"a": {"n": {"0": true}}}', '{"#initial": 1}',
    ],
)  # fmt: skip
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(BadCheckpoint, match=r"\[KEELOG_BAD_CHECKPOINT\]"):
        parse_position(json.loads(text))


def test_lag_is_what_stands_behind_the_batch() -> None:
    source = {
        "endOffset": '{"a": {"n": {"0": 5, "1": 9}}}',
        "latestOffset": '{"a": {"n": {"0": 8, "1": 7}}, "b": {"n": {"0": 4}}}',
    }
    other = {"endOffset": '{"a": {"0": 1}}', "latestOffset": '{"a": {"0": 9}}'}
    progress = {"sources": [source, other]}
    expected = {QueueAt("a", "n", 0): 3, QueueAt("a", "n", 1): 0, QueueAt("b", "n", 0): 4}
    assert lag_by_queue(progress) == expected
    assert lag_by_queue(json.dumps(progress)) == expected
    assert lag(progress) == 7
    assert lag(None) == 0
