"""What each operation of the wire needs."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.decision import (
    ALL_OF_KIND,
    Action,
    Entry,
    Kind,
    Need,
    deciding_entry,
    parse_resource,
)
from protocol.access.needs import (
    ANYBODY,
    OF_OTHERS,
    SUPER,
    UNCLEAR,
    Needs,
    Super,
    need,
)
from protocol.access.own_needs import (
    BOUND_TO_USER,
    LISTS,
    OWN_NEEDS,
    RECORD_ACTIONS,
    SUPER_ALONE,
    own_needs,
    own_record_needs,
)
from protocol.errors import NotAllowed

ROOT = Path(__file__).resolve().parents[3]
SERVERS = ("node/writer", "node/reader", "node/supervisor", "keelog/replication")
PUB, SUB, GET, UPDATE = Action.PUB, Action.SUB, Action.GET, Action.UPDATE
CLUSTER = "DefaultCluster"
BOTH = {"topic": "t", "group": "g"}
OF_CLUSTER = need(Kind.CLUSTER, CLUSTER, GET)


def asked(operation: str, **fields: Any) -> Needs:
    return own_needs(operation, {"v": 1, "op": operation, "id": 1, **fields}, CLUSTER)


def of_topic(*actions: Action) -> Needs:
    return (need(Kind.TOPIC, "t", *actions),)


def of_group(*actions: Action) -> Needs:
    return (need(Kind.GROUP, "g", *actions),)


def is_allowed(needs: Needs, *entries: Entry) -> bool:
    """Whether a normal user with this list may."""
    wanted = [one for one in needs if isinstance(one, Need)]
    found = [deciding_entry(entries, (), one, "") for one in wanted]
    return len(wanted) == len(needs) and all(one is not None and one.allow for one in found)


@cache
def operations_of_the_servers() -> set[str]:
    """The names that are compared with an operation, in any module of the servers."""
    paths = (path for folder in SERVERS for path in (ROOT / folder).rglob("*.py"))
    trees = [ast.parse(path.read_text()) for path in paths]
    constants = {
        node.targets[0].id: node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    compared: list[ast.AST] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Match) and getattr(node.subject, "id", "") == "operation":
            compared += [case.pattern for case in node.cases]
        if isinstance(node, ast.Compare) and getattr(node.left, "id", "") == "operation":
            compared += [constants.get(_name(one), one) for one in node.comparators]
    texts = (one for whole in compared for one in ast.walk(whole) if isinstance(one, ast.Constant))
    return {one.value for one in texts if isinstance(one.value, str)}


def _name(node: ast.AST) -> str:
    name: str = getattr(node, "id", "") or getattr(node, "attr", "")
    return name


@pytest.mark.attack(72)
def test_every_operation_of_the_servers_has_needs() -> None:
    undecided = sorted(operations_of_the_servers() - OWN_NEEDS.keys() - SUPER_ALONE)
    assert not undecided, (
        f"the servers know {undecided}, which only Super users may ask: say in"
        " protocol/access/own_needs.py what they need, in OWN_NEEDS, or add them to SUPER_ALONE"
    )


def test_no_operation_has_needs_that_nobody_serves() -> None:
    assert sorted([*OWN_NEEDS, *SUPER_ALONE]) == sorted(operations_of_the_servers())
    assert RECORD_ACTIONS.keys() | BOUND_TO_USER | LISTS <= OWN_NEEDS.keys()


@pytest.mark.attack(72)
def test_an_operation_that_is_not_decided_is_for_super_users_alone() -> None:
    assert asked("format", **BOTH) == asked("", **BOTH) == SUPER


def test_a_send_needs_pub_of_its_topic() -> None:
    assert asked("send", **BOTH) == of_topic(PUB)
    assert asked("send", topic="%RETRY%g") == of_group(SUB)


@pytest.mark.attack(41)
@pytest.mark.parametrize("operation", ["append", "stage"])
def test_records_that_are_brought_need_pub_of_each_of_their_topics(operation: str) -> None:
    assert asked(operation) == ANYBODY
    assert own_record_needs(operation, "t") == of_topic(PUB)
    assert own_record_needs(operation, "%RETRY%g") == of_group(SUB)
    assert own_record_needs(operation, min(OF_OTHERS)) == SUPER


@pytest.mark.attack(61)
def test_a_query_belongs_to_a_user() -> None:
    assert asked("publish") == asked("unstage") == ANYBODY
    assert {"stage", "publish", "unstage"} == BOUND_TO_USER


@pytest.mark.parametrize("operation", ["pull", "find", "offsets", "seek"])
def test_who_reads_a_topic_needs_sub_of_it(operation: str) -> None:
    assert asked(operation, **BOTH) == of_topic(SUB)
    assert asked(operation, topic="%RETRY%g", group="mine") == of_group(SUB)


def test_a_message_is_got_with_sub_of_its_own_topic() -> None:
    assert asked("get", topic="t", unique_key="k") == of_topic(SUB)
    assert asked("get", physical_offset=0) == asked("get", msg_id="0A") == ANYBODY
    assert own_record_needs("get", "t") == own_record_needs("find", "t") == of_topic(SUB)
    assert own_record_needs("pull", "t") == SUPER


@pytest.mark.attack(61)
def test_cursors_need_topic_and_group() -> None:
    assert asked("cursor_get", **BOTH) == (*of_topic(SUB, GET), *of_group(SUB, GET))
    assert asked("cursor_commit", **BOTH) == (*of_topic(SUB, UPDATE), *of_group(SUB, UPDATE))
    foreign = asked("cursor_commit", topic="t", group="victim")
    assert not is_allowed(foreign, entry("Topic:t"), entry("Group:g"))


def test_topics_and_groups_are_made_and_removed_by_whom_their_name_is_given() -> None:
    assert asked("create_topic", **BOTH) == of_topic(Action.CREATE)
    removal = of_topic(Action.DELETE)
    assert asked("delete_topic", **BOTH) == asked("purge_topic", **BOTH) == removal
    assert asked("delete_group", **BOTH) == of_group(Action.DELETE)


@pytest.mark.parametrize("operation", ["topics", "groups", "members", "routes", "health", "ping"])
def test_anybody_asks_for_lists_and_for_the_way(operation: str) -> None:
    assert asked(operation) == ANYBODY


def test_places_of_one_group_need_a_right_to_it() -> None:
    assert asked("groups", group="g") == of_group(SUB, GET)


def test_the_status_needs_get_of_the_cluster() -> None:
    assert asked("status") == (OF_CLUSTER,)


@pytest.mark.attack(61)
@pytest.mark.parametrize("operation", ["fetch", "layout"])
def test_files_need_the_cluster_and_all_topics(operation: str) -> None:
    needs = asked(operation, kind="log", topic="t", topics=["t"])
    assert needs == (OF_CLUSTER, need(Kind.TOPIC, ALL_OF_KIND, SUB))
    cluster = entry("Cluster:DefaultCluster")
    assert is_allowed(needs, cluster, entry("Topic:*"))
    assert not is_allowed(needs, cluster, entry("Topic:t"), entry("Topic:a*"))


def entry(resource: str) -> Entry:
    return Entry(parse_resource(resource), frozenset({Action.ALL}), allow=True)


@given(st.sampled_from(sorted(OWN_NEEDS)))
def test_an_empty_list_allows_what_anybody_may_and_nothing_else(operation: str) -> None:
    needs = asked(operation, **BOTH)
    assert is_allowed(needs) == (needs == ANYBODY)
    assert is_allowed(needs, entry("*"))


@pytest.mark.parametrize(
    ("operation", "missing"),
    [("send", "topic"), ("pull", "topic"), ("cursor_get", "group"), ("delete_group", "group")],
)
@pytest.mark.parametrize("value", [None, 1, b"t", ["t"]])
def test_a_request_without_its_topic_or_group_is_refused(
    operation: str, missing: str, value: object
) -> None:
    with pytest.raises(NotAllowed, match=UNCLEAR):
        asked(operation, **{**BOTH, missing: value})


def test_needs_hold_no_right_of_super_users_by_accident() -> None:
    ordinary = [one for operation in OWN_NEEDS for one in asked(operation, **BOTH)]
    assert not [one for one in ordinary if isinstance(one, Super)]
