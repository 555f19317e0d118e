"""What clients see when a node of a cluster is lost, played through with RocketMQ's own clocks.

Name servers drop a node when its connection ends, or after silence. Each client asks for routes by
a clock of its own. Until all members of a group have asked, some divide the old queues among
themselves and some the new ones: a queue may have two owners, or none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

POLL_S = 30.0
"""A client asks for routes so often (pollNameServerInterval)."""
SILENCE_S = 120.0
"""A name server forgets a silent node after this (brokerChannelExpiredTime)."""
SCAN_S = 5.0
"""It looks so often (scanNotActiveBrokerInterval)."""
REBALANCE_S = 20.0
"""It divides the queues anew so often (rocketmq.client.rebalance.waitInterval)."""
PROCESS, MACHINE = "its connections end", "it falls silent"
CAUSES = (PROCESS, MACHINE)


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """A topic of `nodes` x `queues_per_node` queues, with one group of `members`."""

    nodes: int
    queues_per_node: int
    members: int
    producers: int


@dataclass(frozen=True, slots=True)
class FailoverOutcome:
    """Of one loss. Times are seconds after it; queue-seconds are of the queues that still exist."""

    routes_s: float
    """Until the name server no longer names the node."""
    last_producer_s: float
    last_member_s: float
    failed_share: float
    """Of the sends until the last producer knew: first tried at the lost node, then elsewhere."""
    doubled_queue_s: float
    unowned_queue_s: float
    moved_share: float
    """Of the queues that still exist: those with another owner afterwards."""


def owners(queues: int, members: int) -> NDArray[np.int64]:
    """The member of each queue, both by number (AllocateMessageQueueAveragely)."""
    share, rest = divmod(queues, members)
    sizes = np.full(members, share)
    sizes[:rest] += 1
    return np.repeat(np.arange(members), sizes)


def lose_a_node(plan: FailoverPlan, cause: str, rng: np.random.Generator) -> FailoverOutcome:
    """Plays one loss of one node through."""
    routes_s = rng.uniform(0, 1) if cause == PROCESS else SILENCE_S + rng.uniform(0, SCAN_S)
    producers = routes_s + rng.uniform(0, POLL_S, plan.producers)
    asked = rng.uniform(0, POLL_S, plan.members) + rng.uniform(0, REBALANCE_S, plan.members)
    members = np.sort(routes_s + asked)
    doubled, unowned, moved = _ownership(plan, members, rng)
    return FailoverOutcome(
        routes_s,
        float(producers.max()),
        float(members.max()),
        float(producers.mean() / producers.max()) / plan.nodes,
        doubled,
        unowned,
        moved,
    )


def _ownership(
    plan: FailoverPlan, known: NDArray[np.float64], rng: np.random.Generator
) -> tuple[float, float, float]:
    """Queue-seconds with two or more owners and with none, and the share of queues that move.

    `known` says when each member knows, ascending; which member that is has nothing to do with its
    place in the order of ids.
    """
    ranks = rng.permutation(plan.members)
    lost = int(rng.integers(plan.nodes)) * plan.queues_per_node
    stays = np.ones(plan.nodes * plan.queues_per_node, bool)
    stays[lost : lost + plan.queues_per_node] = False
    before = owners(len(stays), plan.members)[stays]
    after = owners(int(stays.sum()), plan.members)
    knows = np.zeros(plan.members, bool)
    doubled = unowned = 0.0
    for number, rank in enumerate(ranks[:-1]):
        knows[rank] = True
        # A queue's old owner keeps it until it knows; the new one takes it when it knows.
        count = (~knows[before]).astype(int) + knows[after]
        count[(before == after) & (count > 1)] = 1
        lasts_s = known[number + 1] - known[number]
        doubled += lasts_s * int((count > 1).sum())
        unowned += lasts_s * int((count == 0).sum())
    return doubled, unowned, float((before != after).mean())
