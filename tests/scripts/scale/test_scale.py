"""Clusters on paper: the arithmetic agrees with what clients really do."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.client.consumer.engine import averagely
from protocol.remoting.bodies import MessageQueue
from scripts.docs.pages import parts_of
from scripts.scale import report

ROOT = Path(__file__).parents[3]
COSTS = report.NodeCosts.read(ROOT / "docs/figures/scale_costs.json")
PLAN = report.ClusterPlan(100, 5_000, 250, 100, 4, 5, 10)
NARROW = report.PlacementPlan(10, 200, 3, 2)


@given(st.integers(1, 60), st.integers(1, 20))
def test_queues_are_divided_as_members_divide_them(queues: int, members: int) -> None:
    all_queues = [MessageQueue("t", "b", number) for number in range(queues)]
    ids = [f"{number:03d}" for number in range(members)]
    divided = report.owners(queues, members)
    for number, own in enumerate(ids):
        taken = [queue.queue_id for queue in averagely(all_queues, ids, own)]
        assert taken == np.flatnonzero(divided == number).tolist()


@pytest.mark.parametrize("way", [report.RANDOM, report.LEAST])
def test_each_topic_is_on_as_many_nodes_as_planned(way: str) -> None:
    on = report.place(NARROW, way, np.random.default_rng(1))
    assert (on.sum(axis=1) == NARROW.width).all()


def test_topics_on_all_nodes_load_them_alike_before_and_after_a_loss() -> None:
    on = report.place(NARROW, report.ALL, np.random.default_rng(1))
    assert report.spread(NARROW, on, np.array([], int)).most_load == pytest.approx(1.0)
    after = report.spread(NARROW, on, np.array([3, 7]))
    assert after.most_load == pytest.approx(10 / 8)
    assert (after.touched, after.without_node) == (NARROW.topics, 0)


def test_a_topic_is_lost_when_all_of_its_nodes_are() -> None:
    on = report.place(NARROW, report.LEAST, np.random.default_rng(1))
    lost = np.flatnonzero(on[0])
    found = report.spread(NARROW, on, lost)
    assert found.without_node == int((on[:, lost].sum(axis=1) == NARROW.width).sum()) >= 1


def test_the_least_loaded_nodes_are_more_even_than_random_ones() -> None:
    def busiest(way: str) -> float:
        on = report.place(NARROW, way, np.random.default_rng(1))
        return report.spread(NARROW, on, np.array([], int)).most_load

    assert busiest(report.LEAST) < busiest(report.RANDOM)


@pytest.mark.parametrize("cause", report.CAUSES)
def test_a_group_of_one_never_has_two_owners_of_a_queue(cause: str) -> None:
    outcome = report.lose_a_node(report.FailoverPlan(10, 4, 1, 5), cause, np.random.default_rng(2))
    assert (outcome.doubled_queue_s, outcome.unowned_queue_s, outcome.moved_share) == (0, 0, 0)


def test_a_silent_node_stays_in_the_routes_for_two_minutes() -> None:
    plan = report.FailoverPlan(10, 4, 7, 5)
    outcome = report.lose_a_node(plan, report.MACHINE, np.random.default_rng(3))
    assert 120 <= outcome.routes_s <= 125
    assert outcome.routes_s < outcome.last_producer_s <= outcome.routes_s + 30
    assert 0 < outcome.failed_share < 1 / plan.nodes


def test_clients_of_topics_on_few_nodes_need_fewer_connections() -> None:
    wide = report.needs(PLAN, COSTS)
    narrow = report.needs(report.ClusterPlan(100, 5_000, 6_250, 4, 4, 5, 10), COSTS)
    assert wide.connections_per_node == PLAN.clients
    assert narrow.connections_per_node < PLAN.clients / 5
    assert wide.queues_per_node == narrow.queues_per_node == 1_000


def test_the_page_holds_what_the_measured_costs_give() -> None:
    parts = parts_of((ROOT / "docs/scale.md").read_text())
    assert parts["scale wide"] == report.capacity_table(COSTS, width=None)
    assert parts["scale narrow"] == report.capacity_table(COSTS, width=4)
    assert parts["scale limits"] == report.breaking_table(COSTS)
    assert parts["scale placement"] == report.placement_table()
    assert parts["scale failover"] == report.failover_table()
