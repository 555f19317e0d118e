"""The tables of docs/scale.md.

`python -m scripts.scale.report --costs docs/figures/scale_costs.json --markdown docs/scale.md`
computes and simulates; it starts nothing and takes seconds.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from scripts.docs.pages import fill_part
from scripts.option_types import old_file
from scripts.output import grid
from scripts.scale.model import (
    ALL,
    CAUSES,
    WAYS,
    ClusterPlan,
    FailoverPlan,
    NodeCosts,
    PlacementPlan,
    lose_a_node,
    needs,
    place,
    spread,
)

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
    """Prints the tables, or writes them into the page."""
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
