"""What a cluster of a size asks of each node and name server, from measured costs."""

import json
from dataclasses import dataclass
from pathlib import Path

from keelog.gateway.members import MEMBERS_MAX
from keelog.gateway.service import CONNECTIONS_MAX
from node.writer.topic_table import QUEUES_MAX, TOPICS_MAX

BEAT_S = 30.0
REGISTER_S = 30.0
POLL_S = 30.0
COMMIT_S = 5.0
"""A member reports the offsets of its queues so often (persistConsumerOffsetInterval)."""
REBALANCE_S = 20.0
FIXED_BYTES = 200
"""Of a registration, beside its topics."""


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


NAME_SERVERS = 3


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
    routes = plan.clients * plan.topics_per_client / POLL_S / NAME_SERVERS
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
