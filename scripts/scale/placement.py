"""Where topics lie on the nodes of a cluster, and how even the load is before and after losses.

RocketMQ places nothing by itself: an operator makes a topic on all nodes of a cluster
(`updateTopic -c`), or on chosen ones (`-b`). The ways here are those.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALL, RANDOM, LEAST = "all nodes", "random nodes", "least loaded nodes"
WAYS = (ALL, RANDOM, LEAST)


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """`topics` topics of `queues_per_node` queues on each of `width` nodes out of `nodes`.

    Topics are not alike: the n-th has 1/n of the first one's messages, to the power `skew`.
    """

    nodes: int
    topics: int
    width: int
    queues_per_node: int
    skew: float = 1.0

    @property
    def queues(self) -> int:
        """Of all topics on all nodes."""
        return self.topics * self.width * self.queues_per_node

    def weights(self) -> NDArray[np.float64]:
        """Each topic's share of the messages; all together 1."""
        weights = 1.0 / np.arange(1, self.topics + 1) ** self.skew
        return np.asarray(weights / weights.sum())


def place(plan: PlacementPlan, way: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which nodes have a topic: an array of topics x nodes. The largest topics are placed first."""
    on = np.zeros((plan.topics, plan.nodes), bool)
    if way == ALL:
        on[:] = True
        return on
    load = np.zeros(plan.nodes)
    for topic, weight in enumerate(plan.weights()):
        if way == RANDOM:
            chosen = rng.choice(plan.nodes, plan.width, replace=False)
        else:
            # Of nodes with the same load any: else the first ones would get all small topics.
            chosen = np.lexsort((rng.random(plan.nodes), load))[: plan.width]
        on[topic, chosen] = True
        load[chosen] += weight / plan.width
    return on


@dataclass(frozen=True, slots=True)
class LoadSpread:
    """`most_load`: the busiest living node's share, as a multiple of an even share of all nodes.

    `without_node`: topics of which no node is left. `touched`: topics that lost queues.
    """

    most_load: float
    touched: int
    without_node: int


def spread(plan: PlacementPlan, on: NDArray[np.bool_], lost: NDArray[np.int64]) -> LoadSpread:
    """After the nodes `lost` are gone and producers share their part among a topic's others."""
    left = on.copy()
    left[:, lost] = False
    widths = left.sum(axis=1)
    shares = plan.weights() / np.maximum(widths, 1)
    load = (left * shares[:, None]).sum(axis=0)
    touched = int(on[:, lost].any(axis=1).sum())
    return LoadSpread(float(load.max() * plan.nodes), touched, int((widths == 0).sum()))
