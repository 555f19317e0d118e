"""What one request costs a node's gateway and a real name server, in CPU time and bytes.

`python -m scripts.scale.costs --json FILE` starts a node, and RocketMQ's name server where Java and
Maven are found, and asks each kind of request many times over one connection. CPU time is that of
the whole process, so it holds on a machine that others use too.
"""

import argparse
import json
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from keelog.bench.node_process import ANY_DISK, Node
from node.supervisor.bind import free_ports
from protocol.record.codec import CRC_MASK
from protocol.remoting import bodies
from protocol.remoting.codes import RequestCode
from protocol.remoting.java_json import write_body
from scripts.command_line import new_file, print_rows, real_number
from scripts.load.remoting_sends import PipelinedRequests
from scripts.rivals.proc import cpu_seconds
from scripts.rivals.rocketmq import RivalMissing, class_path, start_name_server

SUBSCRIPTIONS = 10
"""Topics of the group that beats."""
MEMBERS = 100
TOPICS = 1_000
BROKERS = 100
QUEUES = 8
TIMES = 20_000
REGISTRATIONS = 20
WARM = 500
START_S = 30.0


class Cost(NamedTuple):
    """Of one request: CPU time of the server, bytes of the request's body and of the reply's."""

    server: str
    request: str
    cpu_us: float
    body_bytes: int
    reply_bytes: int


class RepeatedRequest(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes = b""


class CostMeter(NamedTuple):
    """Measures requests to one process."""

    server: str
    pid: int
    port: int

    def cost(self, name: str, asked: RepeatedRequest, times: int = TIMES, warm: int = WARM) -> Cost:
        """Asks `times` times after `warm` times that do not count; few one after the other."""
        with PipelinedRequests("127.0.0.1", self.port) as requests:
            for number in range(warm + times):
                if number == warm:
                    requests.wait()
                    began, bytes_before = cpu_seconds([self.pid]), requests.reply_bytes
                requests.ask(*asked)
                if times < WARM:
                    requests.wait()
            requests.wait()
            used = cpu_seconds([self.pid]) - began
            replied = (requests.reply_bytes - bytes_before) // times
        return Cost(self.server, name, used / times * 1e6, len(asked.body), replied)


def heart_beat(member: int, topics: int = SUBSCRIPTIONS) -> RepeatedRequest:
    """34 of a client with one group."""
    wanted = tuple(bodies.SubscriptionData(f"scale-{n}", "*") for n in range(topics))
    group = bodies.ConsumerData("scale-group", subscription_data_set=wanted)
    beat = bodies.HeartbeatData(f"127.0.0.1@{member:06d}", consumer_data_set=(group,))
    return RepeatedRequest(RequestCode.HEART_BEAT, {}, write_body(beat, standard=True))


def create_topic(topic: str) -> RepeatedRequest:
    """17: eight queues."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES)}
    fields |= {"writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG"}
    fields |= {"topicSysFlag": "0", "order": "false"}
    return RepeatedRequest(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def await_listening(port: int) -> None:
    """A node is ready before its gateway is."""
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=START_S).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def gateway_costs(folder: Path) -> Iterator[Cost]:
    """What a node's gateway takes for each request that clients repeat by the clock."""
    port = free_ports(4) + 3
    settings = [*ANY_DISK, f"serve.remoting=127.0.0.1:{port}"]
    with ExitStack() as ends, Node(folder / "node", settings, readers=1) as node:
        await_listening(port)
        with PipelinedRequests("127.0.0.1", port) as setup:
            for number in range(SUBSCRIPTIONS):
                setup.ask(*create_topic(f"scale-{number}"))
        for member in range(MEMBERS):
            setup = ends.enter_context(PipelinedRequests("127.0.0.1", port))
            setup.ask(*heart_beat(member))
            setup.wait()
        meter = CostMeter("gateway", node.pids()["gateway"], port)
        group = {"consumerGroup": "scale-group"}
        commit = {**group, "topic": "scale-0", "queueId": "0", "commitOffset": "0"}
        members = RepeatedRequest(RequestCode.GET_CONSUMER_LIST_BY_GROUP, group)
        route = RepeatedRequest(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "scale-0"})
        yield meter.cost(f"heart-beat, {SUBSCRIPTIONS} topics", heart_beat(0))
        yield meter.cost(f"members of a group of {MEMBERS}", members)
        yield meter.cost("route of a topic on one node", route)
        yield meter.cost(
            "commit of a queue's offset",
            RepeatedRequest(RequestCode.UPDATE_CONSUMER_OFFSET, commit),
        )


def registration(broker: int, topics: Iterable[str]) -> RepeatedRequest:
    """103 of one of many brokers."""
    table = {name: bodies.TopicConfig(name, QUEUES, QUEUES) for name in topics}
    body = write_body(bodies.RegisterBrokerBody(bodies.TopicConfigTable(table)), standard=True)
    fields = {
        "brokerName": f"node-{broker:03d}",
        "brokerAddr": f"127.0.0.1:{20_000 + broker}",
        "clusterName": "scale",
        "brokerId": "0",
        "haServerAddr": f"127.0.0.1:{20_000 + broker}",
        "compressed": "false",
        "bodyCrc32": str(crc32(body) & CRC_MASK),
    }
    return RepeatedRequest(RequestCode.REGISTER_BROKER, fields, body)


def name_server_costs(folder: Path) -> Iterator[Cost]:
    """What RocketMQ's name server takes to register a node, and for a route over all nodes."""
    port = free_ports(1)
    with ExitStack() as ends:
        names = start_name_server(class_path(), folder / "names", f"127.0.0.1:{port}")
        ends.enter_context(names)
        # Who ends a connection takes its brokers with it, so this one stays.
        setup = ends.enter_context(PipelinedRequests("127.0.0.1", port))
        for broker in range(BROKERS):
            setup.ask(*registration(broker, ("wide", "other")))
        setup.wait()
        meter = CostMeter("name server", names.pid, port)
        route = RepeatedRequest(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "wide"})
        yield meter.cost(f"route of a topic on {BROKERS} nodes", route)
        topics = [f"scale-{number}" for number in range(TOPICS)]
        # Registrations are large, and a few warm the name server.
        yield meter.cost(
            f"registration of a node with {TOPICS} topics",
            registration(BROKERS, topics), REGISTRATIONS, REGISTRATIONS,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser("python -m scripts.scale.costs", description=__doc__)
    parser.add_argument("--json", type=new_file, help="where the figures go")
    parser.add_argument(
        "--sends", type=real_number, required=True,
        help="messages/s of a node with 64 callers, by scripts.rivals.gateway --loads 0",
    )  # fmt: skip
    options = parser.parse_args()
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="keelog-scale-") as name:
        folder = Path(name)

        def rows() -> Iterator[list[str]]:
            for cost in chain(gateway_costs(folder), name_server_costs(folder)):
                costs.append(cost)
                yield [*cost[:2], *(f"{one:,.0f}" for one in cost[2:])]

        try:
            print_rows(("server", "request", "CPU, us", "body, bytes", "reply, bytes"), rows())
        except RivalMissing as error:
            raise SystemExit(f"error: {error}") from error
    if options.json:
        document = {"sends_per_s": options.sends, "costs": [cost._asdict() for cost in costs]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
