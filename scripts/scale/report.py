"""Models of clusters of nodes: computed from measured costs, and played through with their clocks.

`python -m scripts.scale.report --costs docs/figures/scale_costs.json --markdown docs/scale.md`
writes the tables of docs/scale.md; it starts nothing and takes seconds.

Capacity: what a cluster of a size asks of each node and name server, from measured costs.

Placement: where topics lie on the nodes of a cluster, and how even the load is before and after
losses. RocketMQ places nothing by itself: an operator makes a topic on all nodes of a cluster
(`updateTopic -c`), or on chosen ones (`-b`). The ways here are those.

Failover: what clients see when a node is lost, played through with RocketMQ's own clocks. Name
servers drop a node when its connection ends, or after silence. Each client asks for routes by a
clock of its own. Until all members of a group have asked, some divide the old queues among
themselves and some the new ones: a queue may have two owners, or none.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from keelog.gateway.members import MEMBERS_MAX
from keelog.gateway.service import CONNECTIONS_MAX
from node.writer.topic_table import QUEUES_MAX, TOPICS_MAX
from scripts.command_line import grid, old_file
from scripts.docs.pages import fill_part

BEAT_S = 30.0
REGISTER_S = 30.0
ROUTES_S = 30.0
"""A client asks for routes so often (pollNameServerInterval)."""
COMMIT_S = 5.0
"""A member reports the offsets of its queues so often (persistConsumerOffsetInterval)."""
REBALANCE_S = 20.0
"""A member divides the queues anew so often (rocketmq.client.rebalance.waitInterval)."""
FIXED_BYTES = 200
"""Of a registration, beside its topics."""
NAME_SERVERS = 3
ALL, RANDOM, LEAST = "all nodes", "random nodes", "least loaded nodes"
WAYS = (ALL, RANDOM, LEAST)
SILENCE_S = 120.0
"""A name server forgets a silent node after this (brokerChannelExpiredTime)."""
SCAN_S = 5.0
"""A name server looks so often (scanNotActiveBrokerInterval)."""
PROCESS, MACHINE = "its connections end", "it falls silent"
CAUSES = (PROCESS, MACHINE)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`clients` in all, each with `topics_per_client` topics of `width` nodes, in groups of
    `members`; `topics` of `queues_per_node` queues on each of their nodes."""

    nodes: int
    clients: int
    topics: int
    width: int
    queues_per_node: int
    topics_per_client: int
    members: int


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """CPU time in us of one request, and bytes for each topic or node in it. All measured."""

    sends_per_node: float
    """Messages a second that one node takes, through its gateway."""
    beat_us: float
    members_us_each: float
    """For each member of the list."""
    commit_us: float
    route_us_per_node: float
    route_bytes_per_node: float
    register_us_per_topic: float
    register_bytes_per_topic: float

    @classmethod
    def read(cls, file: Path) -> "NodeCosts":
        """From what `scripts.scale.costs` wrote."""
        found = json.loads(file.read_text(encoding="utf-8"))
        by_name = {str(cost["request"]).split(",")[0]: cost for cost in found["costs"]}

        def of(name: str, field: str, share: int = 1) -> float:
            return float(str(by_name[name][field])) / share

        return cls(
            float(found["sends_per_s"]),
            of("heart-beat", "cpu_us"),
            of("members of a group of 100", "cpu_us", 100),
            of("commit of a queue's offset", "cpu_us"),
            of("route of a topic on 100 nodes", "cpu_us", 100),
            of("route of a topic on 100 nodes", "reply_bytes", 100),
            of("registration of a node with 1000 topics", "cpu_us", 1000),
            of("registration of a node with 1000 topics", "body_bytes", 1000),
        )


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """What the plan asks for: cores are processors that are busy all the time."""

    messages_per_s: float
    queues_per_node: float
    topics_per_node: float
    connections_per_node: float
    gateway_cores: float
    """For heart-beats, member lists and commits, without any message."""
    name_server_cores: float
    """Of each name server, if clients are spread evenly over three."""
    name_server_mb_per_s: float

    def limits(self, plan: ClusterPlan) -> dict[str, float]:
        """How much of each limit is used; 1 is all of it."""
        return {
            "connections of a node": self.connections_per_node / CONNECTIONS_MAX,
            "members of a group": plan.members / MEMBERS_MAX,
            "queues of a node": self.queues_per_node / QUEUES_MAX,
            "topics of a node": self.topics_per_node / TOPICS_MAX,
            "a gateway's one core": self.gateway_cores,
            "a name server's two cores": self.name_server_cores / 2,
        }


def needs(plan: ClusterPlan, costs: NodeCosts) -> ClusterNeeds:
    """Computes. A client is connected to all nodes of its topics; those are drawn at random."""
    missed = (1 - plan.width / plan.nodes) ** plan.topics_per_client
    connections = plan.clients * (1 - missed)
    queues = plan.topics * plan.width * plan.queues_per_node / plan.nodes
    topics = plan.topics * plan.width / plan.nodes
    lists = plan.clients * plan.topics_per_client / plan.nodes / REBALANCE_S
    # Each queue of a node has an owner in each group; a topic has one group here.
    commits = queues / COMMIT_S
    gateway_us = (
        connections / BEAT_S * costs.beat_us
        + lists * plan.members * costs.members_us_each
        + commits * costs.commit_us
    )
    routes = plan.clients * plan.topics_per_client / ROUTES_S / NAME_SERVERS
    registrations = plan.nodes / REGISTER_S
    name_server_us = (
        routes * plan.width * costs.route_us_per_node
        + registrations * topics * costs.register_us_per_topic
    )
    name_server_bytes = routes * plan.width * costs.route_bytes_per_node + registrations * (
        FIXED_BYTES + topics * costs.register_bytes_per_topic
    )
    return ClusterNeeds(
        plan.nodes * costs.sends_per_node,
        queues,
        topics,
        connections,
        gateway_us / 1e6,
        name_server_us / 1e6,
        name_server_bytes / 1e6,
    )


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
    producers = routes_s + rng.uniform(0, ROUTES_S, plan.producers)
    asked = rng.uniform(0, ROUTES_S, plan.members) + rng.uniform(0, REBALANCE_S, plan.members)
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


NODES = (1, 3, 10, 30, 100)
CLIENTS_PER_NODE = 50
QUEUES_OF_NODE = 1_000
QUEUES_EACH = 4
"""Of a topic on each of its nodes."""
WIDE = PlacementPlan(100, 1_000, 100, 1)
NARROW = PlacementPlan(100, 6_250, 4, 4)
LOST = (0, 1, 3, 10)
RUNS = 50
SEED = 20_261_124
GROUPS = (8, 50, 500)


def capacity_table(costs: NodeCosts, *, width: int | None) -> str:
    """A row for each size of a cluster; `width` None: each topic is on all nodes."""

    def rows() -> Iterator[list[str]]:
        for nodes in NODES:
            on = min(nodes, width or nodes)
            topics = QUEUES_OF_NODE // QUEUES_EACH * nodes // on
            clients = CLIENTS_PER_NODE * nodes
            plan = ClusterPlan(nodes, clients, topics, on, QUEUES_EACH, 5, 10)
            need = needs(plan, costs)
            first = max(need.limits(plan).items(), key=lambda one: one[1])
            yield [
                f"{nodes:,}", f"{plan.clients:,}", f"{need.messages_per_s / 1e6:.2f}",
                f"{need.queues_per_node:,.0f}", f"{need.connections_per_node:,.0f}",
                f"{need.gateway_cores:.1%}", f"{need.name_server_cores:.1%}",
                f"{need.name_server_mb_per_s:.2f}", f"{first[0]}, {first[1]:.0%}",
            ]  # fmt: skip

    head = ["nodes", "clients", "M messages/s", "queues of a node", "connections of a node"]
    head += ["gateway, of a core", "name server, of a core", "MB/s of it", "nearest limit"]
    return grid(head, list(rows()))


def breaking_table(costs: NodeCosts) -> str:
    """At how many clients each limit of a cluster of 100 nodes is reached."""

    def reached(width: int) -> dict[str, int]:
        found: dict[str, int] = {}
        plan = ClusterPlan(100, 100, 25_000 // width, width, QUEUES_EACH, 5, 10)
        for clients in np.unique(np.geomspace(100, 3_000_000, 400).astype(int)):
            now = replace(plan, clients=int(clients))
            for name, used in needs(now, costs).limits(now).items():
                if used >= 1:
                    found.setdefault(name, int(clients))
        return found

    wide, narrow = reached(100), reached(4)
    names = sorted({*wide, *narrow}, key=lambda name: wide.get(name, 10**9))
    said = [
        [f"{of[name]:,}" if name in of else "above 3 M" for of in (wide, narrow)] for name in names
    ]
    rows = [[name, *cells] for name, cells in zip(names, said, strict=True)]
    return grid(("limit", "topics on all nodes", "topics on four nodes"), rows)


def placement_table() -> str:
    """How even the load is before and after losses, for both kinds of topics."""

    def rows() -> Iterator[list[str]]:
        for kind, plan in (("1,000 on 100 nodes", WIDE), ("6,250 on 4 nodes", NARROW)):
            for way in WAYS if plan is NARROW else (ALL,):
                rng = np.random.default_rng(SEED)
                on = place(plan, way, rng)
                order = rng.permutation(plan.nodes)
                found = [spread(plan, on, order[:count]) for count in LOST]
                yield [
                    f"{kind}, {way}",
                    *(f"{one.most_load:.2f}" for one in found),
                    f"{found[1].touched:,}",
                    f"{found[-1].without_node:,}",
                ]

    head = ["topics", *(f"busiest node, {count} lost" for count in LOST)]
    return grid([*head, "touched by 1 loss", "lost by 10 losses"], list(rows()))


def failover_table() -> str:
    """Medians and the most of many losses of one node of 100."""

    def rows() -> Iterator[list[str]]:
        for cause in CAUSES:
            for members in GROUPS:
                rng = np.random.default_rng(SEED)
                plan = FailoverPlan(100, 10, members, producers=100)
                runs = [lose_a_node(plan, cause, rng) for _ in range(RUNS)]
                queues = (plan.nodes - 1) * plan.queues_per_node
                yield [
                    f"{cause}, {members} members",
                    f"{median(one.routes_s for one in runs):.1f}",
                    f"{median(one.last_producer_s for one in runs):.0f}",
                    f"{median(one.last_member_s for one in runs):.0f}",
                    f"{median(one.failed_share for one in runs):.2%}",
                    f"{median(one.moved_share for one in runs):.0%}",
                    f"{median(one.doubled_queue_s for one in runs) / queues:.2f}",
                    f"{median(one.unowned_queue_s for one in runs) / queues:.2f}",
                ]

    head = ["loss of one node of 100", "gone from routes after, s", "last producer knows after, s"]
    head += ["last member knows after, s", "sends tried twice until then", "queues that move"]
    head += ["s with two owners, each queue", "s with none"]
    return grid(head, list(rows()))


def main() -> None:
    parser = argparse.ArgumentParser("python -m scripts.scale.report", description=__doc__)
    parser.add_argument("--costs", type=old_file, required=True, help="by scripts.scale.costs")
    parser.add_argument("--markdown", type=old_file, help="the page whose parts are written anew")
    options = parser.parse_args()
    costs = NodeCosts.read(options.costs)
    parts = {
        "scale wide": capacity_table(costs, width=None),
        "scale narrow": capacity_table(costs, width=4),
        "scale limits": breaking_table(costs),
        "scale placement": placement_table(),
        "scale failover": failover_table(),
    }
    for name, text in parts.items():
        if options.markdown:
            fill_part(Path(options.markdown), name, text)
        else:
            print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
