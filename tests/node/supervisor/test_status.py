"""The status is what its declaration says, in the answer, in the help and in the metrics."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from node.access.tls_settings import TlsState
from node.runtime.run_files import (
    ElectedState,
    FollowersState,
    FollowState,
    TimerState,
    write_elected,
    write_follow_state,
    write_followers,
    write_timer_state,
)
from node.runtime.settings import Settings, load_settings
from node.runtime.state_page import run_dir
from node.supervisor.bind import Advertised
from node.supervisor.monitoring.metrics import Exporter
from node.supervisor.options import Options
from node.supervisor.plan import name_local_sockets, plan_children
from node.supervisor.status import HealthStatus, NodeView, Status, health, routes, status
from protocol.names import COMMIT_LOG_DIR
from protocol.status import as_json, facts_of, shape_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    (tmp_path / COMMIT_LOG_DIR).mkdir()
    write_follow_state(tmp_path, FollowState(lag_ms=1_500, metadata={"topics": "away"}))
    write_elected(tmp_path, ElectedState(in_sync=(1, 2)))
    write_followers(tmp_path, FollowersState(needed=1))
    write_timer_state(tmp_path, TimerState(pending=3, delivered=4))
    return tmp_path


def view(root: Path, settings: Settings) -> NodeView:
    children = plan_children(1, 1, True, with_gateway=True, with_followers=True)
    return NodeView(
        root, Options(root), settings, children, Advertised(), True, False,
        now=2.0, started_at=1.0, tls=TlsState("enforcing", 86_400_000, ""),
    )  # fmt: skip


def records(kind: type) -> Iterator[type]:
    """A declared record, and those in it."""
    yield kind
    for hint in get_type_hints(kind).values():
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and inner.__module__.startswith(("node.", "protocol.")):
                yield from records(inner)


def test_who_asks_over_the_local_socket_goes_on_over_those_of_the_others(root: Path) -> None:
    node = view(root, load_settings([]))
    name_local_sockets(node.children, "ipc://@keelog-1")
    for number, child in enumerate(node.children):
        child.endpoint = f"tcp://127.0.0.1:{number}"
    writer, reader = "ipc://@keelog-1-writer-0", "ipc://@keelog-1-reader-0"
    own = routes(node, is_own=True)
    assert (own["writer"], own["readers"], own["local"]) == (writer, [reader], {})
    assert own["bulk"] == {reader: f"{reader}-bulk"}
    others = routes(node)
    assert (others["writer"], others["readers"]) == ("tcp://127.0.0.1:0", ["tcp://127.0.0.1:3"])
    assert others["local"] == {"tcp://127.0.0.1:0": writer, "tcp://127.0.0.1:3": reader}
    far = routes(replace(node, takes_local=False))
    assert (far["local"], far["bulk"], far["readers"]) == ({}, {}, others["readers"])


@pytest.mark.parametrize("settings", ["follow=m:1", "controller_id=7"])
def test_the_answers_have_the_declared_fields_in_their_order(root: Path, settings: str) -> None:
    node = view(root, load_settings([settings]))
    for kind, found in ((Status, status(node)), (HealthStatus, health(node))):
        answer, shape = as_json(found), shape_of(kind)
        assert list(answer) == list(shape)
        inner = {name for name, inside in shape.items() if isinstance(inside, dict)}
        for name in inner & {name for name in answer if answer[name] is not None}:
            assert list(answer[name]) == list(shape[name]), name


def test_every_metric_that_a_field_names_is_in_a_scrape(root: Path) -> None:
    texts = [
        Exporter(lambda one=one: view(root, load_settings([one]))).text().decode()  # type: ignore[misc]
        for one in ("follow=m:1", "controller_id=7")
    ]
    named = {fact.metric for kind in records(Status) for fact in facts_of(kind).values()} - {""}
    assert len(named) > 15
    missing = [name for name in named if not any(f"\n{name}" in text for text in texts)]
    assert missing == []


def test_a_metric_is_in_seconds_or_counts_where_its_field_is_in_ms_or_a_list(root: Path) -> None:
    def value(setting: str, name: str) -> float:
        text = Exporter(lambda: view(root, load_settings([setting]))).text().decode()
        (line,) = (line for line in text.splitlines() if line.startswith(name))
        return float(line.rpartition(" ")[2])

    assert value("follow=m:1", "keelog_replica_lag_seconds") == 1.5
    assert value("controller_id=7", "keelog_elected_in_sync") == 2
    assert value("follow=m:1", "rocketmq_timer_dequeue_total") == 4


def test_a_shape_says_the_kind_and_the_meaning_of_a_field() -> None:
    shape: dict[str, Any] = shape_of(Status)
    assert shape["ready"] == "true or false"
    assert shape["cause"] == "text, or null"
    assert shape["log"]["min"] == "integer: where the log begins"
    assert list(shape["following"]["metadata"]) == [
        *("topics", "groups", "offsets", "delays", "timers")
    ]
    assert shape["elected"]["in_sync"] == ["integer: nodes of which a master may be elected"]
