"""What a consumer may be asked for, and what it tells the node of that."""

from datetime import UTC, datetime
from typing import Any

import pytest

from keelog.client.consumer.options import consumer_settings
from keelog.client.transport.routes import Routes, gateway_place
from protocol.errors import BadRequest, NotAllowed, NotConnected
from protocol.record.java_hash import java_hash


def test_tags_go_with_their_hashes_and_the_retry_topic_with_all() -> None:
    settings = consumer_settings("g", ["t", "u"], {"tags": " A || B||A "}, 7)
    assert settings.subscriptions.keys() == {"t", "u", "%RETRY%g"}
    wanted = settings.subscriptions["t"]
    assert (wanted.sub_string, wanted.tags_set) == ("A || B||A", ("A", "B"))
    assert wanted.code_set == (java_hash("A"), java_hash("B"))
    assert (wanted.sub_version, wanted.expression_type) == (7, "TAG")
    assert settings.subscriptions["%RETRY%g"].sub_string == "*"


def test_each_topic_may_have_tags_of_its_own() -> None:
    settings = consumer_settings("g", {"t": "A", "u": "*"}, {}, 1)
    found = {topic: one.tags_set for topic, one in settings.subscriptions.items()}
    assert found == {"t": ("A",), "u": (), "%RETRY%g": ()}


def test_an_expression_in_sql_is_sent_as_it_is() -> None:
    wanted = consumer_settings("g", "t", {"sql": "a > 5"}, 1).subscriptions["t"]
    assert (wanted.sub_string, wanted.expression_type, wanted.tags_set) == ("a > 5", "SQL92", ())


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("latest", "CONSUME_FROM_LAST_OFFSET"),
        ("earliest", "CONSUME_FROM_FIRST_OFFSET"),
        (datetime(2026, 11, 20, tzinfo=UTC), "CONSUME_FROM_TIMESTAMP"),
    ],
)
def test_the_start_is_told_in_rocketmqs_words(start: Any, words: str) -> None:
    settings = consumer_settings("g", "t", {"start": start}, 1)
    assert settings.consume_from_where == words
    if not isinstance(start, str):
        assert settings.start_ms == 1_795_132_800_000


@pytest.mark.parametrize(
    ("group", "topics", "options"),
    [
        ("", "t", {}),
        ("a b", "t", {}),
        (None, "t", {}),
        ("g", "", {}),
        ("g", [], {}),
        ("g", 5, {}),
        ("g", ["t", 5], {}),
        ("g", {"t": 5}, {}),
        ("g", {"t": "*"}, {"tags": "A"}),
        ("g", "t", {"tags": "A", "sql": "a > 5"}),
        ("g", "t", {"start": "somewhere"}),
        ("g", "t", {"start": 5}),
        ("g", "t", {"max_messages": 0}),
        ("g", "t", {"max_bytes": True}),
        ("g", "t", {"max_retries": -1}),
        ("g", "t", {"tag": "A"}),
    ],
)
def test_what_makes_no_sense_is_refused(group: Any, topics: Any, options: Any) -> None:
    with pytest.raises(BadRequest):
        consumer_settings(group, topics, options, 1)


def test_a_node_without_a_gateway_is_named_with_what_to_do() -> None:
    with pytest.raises(NotAllowed, match="has no gateway") as found:
        gateway_place(Routes.of({}), "tcp://127.0.0.1:7850")
    assert "--remoting" in found.value.hint
    with pytest.raises(NotConnected, match="not up yet"):
        gateway_place(Routes.of({"remoting": ""}), "tcp://127.0.0.1:7850")


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("tcp://10.0.0.1:10911", ("10.0.0.1", 10911)),
        ("tcp://[::1]:10911", ("::1", 10911)),
        ("tcp://db7.example.org:1", ("db7.example.org", 1)),
    ],
)
def test_the_place_of_a_gateway_is_host_and_port(endpoint: str, place: tuple[str, int]) -> None:
    assert gateway_place(Routes.of({"remoting": endpoint}), "x") == place
