"""A Java broker and a node with the same store, each with its tools and its clients."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keelog.bench.node_process import ANY_DISK, Node
from node.supervisor.bind import free_ports
from protocol.ids import offset_message_id, parse_host, parse_offset_message_id
from scripts.rivals.rocketmq import (
    SMALL_HEAP,
    Addresses,
    Jvm,
    RocketMQ,
    class_path,
    start_name_server,
)
from tests.clients.mqadmin.cases import AdminCase

TOOLS = Path(__file__).parents[1] / "tools"
"""The Maven project of AdminTool."""
CLUSTER, BROKER = "DefaultCluster", "broker-a"
TOPIC, SIDE_TOPIC = "Orders", "Sides"
GROUP, LIVE, PRODUCERS = "billing", "live", "shown-producers"
QUEUES = 4
CONSUMED, BEHIND = 40, 8
"""Messages of TOPIC, of which GROUP has consumed the first."""
SEGMENT = 16 << 20
COMMITTED_S = 6.5
"""A Java consumer commits each 5 s."""
TOOL_HEAP = ("-Xms256m", "-Xmx512m")
BROKER_HEAP = (*SMALL_HEAP, "-XX:+UseSerialGC")
BROKER_SETTINGS: Mapping[str, object] = {
    "brokerClusterName": CLUSTER,
    "brokerName": BROKER,
    "mappedFileSizeCommitLog": SEGMENT,
    "enablePropertyFilter": "true",
}


class AdminTool(Jvm):
    """RocketMQ's admin tools in a warm process."""

    def __init__(self, home: Path, options: Sequence[str] = ()) -> None:
        """`options`: of its Java."""
        # So that a command cannot end the process.
        may_exit = "-Djava.security.manager=allow"
        home_of_logs = f"-Drocketmq.home.dir={home}"
        command = [*TOOL_HEAP, *options, may_exit, home_of_logs]
        command += ["-cp", class_path(TOOLS), "AdminTool"]
        super().__init__("mqadmin", home, command, talks=True, folder=home)
        self.hear()


@dataclass
class AdminSide:
    """One of the two. `names` is what the braces of cases stand for."""

    tool: AdminTool
    names: dict[str, str] = field(default_factory=dict)

    def run(self, case: AdminCase) -> str:
        """What a command has printed."""
        words = [word.format(**self.names) for word in case.words]
        answer = self.tool.ask("run", args=words, limit_s=case.limit_s)
        return str(answer["text"])

    def join(self) -> None:
        """The clients whose connections the tools show come and consume what there is."""
        found = self.tool.ask(
            "join", name_server=self.names["name_server"], topic=TOPIC, group=LIVE,
            producers=PRODUCERS, side_topic=SIDE_TOPIC, count=CONSUMED + BEHIND,
        )  # fmt: skip
        self.names["client_id"] = found["client_id"]


def _names(home: Path, addresses: Addresses, ids: Mapping[str, Any]) -> dict[str, str]:
    folder = home / "files"
    folder.mkdir(exist_ok=True)
    topic = {"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    (folder / "topics.json").write_text(json.dumps([topic]))
    (folder / "groups.json").write_text(json.dumps([{"groupName": "listed-group"}]))
    _, offset = parse_offset_message_id(ids["offset_ids"][7])
    return {
        "name_server": addresses.name_server,
        "broker": addresses.broker,
        "name": BROKER,
        "cluster": CLUSTER,
        "topic": TOPIC,
        "side_topic": SIDE_TOPIC,
        "group": GROUP,
        "live": LIVE,
        "producers": PRODUCERS,
        "unique_key": ids["ids"][7],
        "offset_id": offset_message_id(parse_host(addresses.broker), offset),
        "folder": str(folder),
        "home": str(home),
        "tools": str(home.with_name(f"tools-of-{home.name}")),
    }


def start_sides(
    ends: ExitStack,
    home: Path,
    prepare: Callable[[AdminTool, Addresses], Mapping[str, str]] = lambda *_: {},
) -> Sequence[AdminSide]:
    """The broker's side and the node's: both run on the store that the broker has written.

    `prepare` writes more to it, and returns more names. What they started ends with `ends`.
    """
    classes, addresses = class_path(), Addresses.free()
    names = start_name_server(classes, home / "names", addresses.name_server)
    ends.callback(names.kill)
    broker = RocketMQ(classes, home / "broker", addresses, BROKER_SETTINGS, BROKER_HEAP)
    ends.callback(broker.kill)
    broker.start()
    tool = AdminTool(home / "tools-of-broker")
    ends.callback(tool.kill)
    ids = _write(tool, addresses)
    more = prepare(tool, addresses)
    broker.stop()
    store = home / "node" / "store"
    shutil.copytree(broker.store, store, ignore=shutil.ignore_patterns("lock", "abort"))
    broker.start()
    first = free_ports(4)
    ours = Addresses(f"127.0.0.1:{first + 3}", f"127.0.0.1:{first + 3}")
    pairs = [
        *ANY_DISK, f"serve.remoting={ours.broker}", f"broker.broker_name={BROKER}",
        f"broker.broker_cluster_name={CLUSTER}", f"mapped_file_size_commit_log={SEGMENT}",
        # As a broker: records are as long then.
        "enabled_append_prop_crc=false",
    ]  # fmt: skip
    node = Node(store, pairs, readers=1).start()
    ends.callback(node.kill)
    node_tool = AdminTool(home / "tools-of-node")
    ends.callback(node_tool.kill)
    sides = (
        AdminSide(tool, {**_names(home / "broker", addresses, ids), **more}),
        AdminSide(node_tool, {**_names(home / "node", ours, ids), **more}),
    )
    for side in sides:
        _await_routes(side.tool, side.names["name_server"])
        side.join()
    time.sleep(COMMITTED_S)
    return sides


def _write(tool: AdminTool, addresses: Addresses) -> dict[str, Any]:
    """Topics, messages, and a group that has consumed a part of them."""
    target = ["-n", addresses.name_server, "-c", CLUSTER]
    # Until the broker has registered, the tools know no cluster.
    _await_routes(tool, addresses.name_server, ["TBW102"])
    for topic in (TOPIC, SIDE_TOPIC):
        queues = ["-r", str(QUEUES), "-w", str(QUEUES)]
        _must(tool, ["updateTopic", "-t", topic, *queues, *target], "success")
    _must(tool, ["updateSubGroup", "-g", GROUP, *target], "success")
    _await_routes(tool, addresses.name_server)
    fill = {"name_server": addresses.name_server, "topic": TOPIC}
    first = tool.ask("fill", count=CONSUMED, **fill)
    tool.ask(
        "join", name_server=addresses.name_server, topic=TOPIC, group=GROUP,
        producers="first-producers", side_topic=SIDE_TOPIC, count=CONSUMED,
    )  # fmt: skip
    tool.ask("leave")
    tool.ask("fill", count=BEHIND, **fill)
    return first


def _must(tool: AdminTool, words: list[str], said: str) -> None:
    text = tool.ask("run", args=words, limit_s=20.0)["text"]
    assert said in text, text


def _await_routes(
    tool: AdminTool, name_server: str, topics: Sequence[str] = (TOPIC, SIDE_TOPIC)
) -> None:
    deadline = time.monotonic() + 60.0
    for topic in topics:
        words = ["topicRoute", "-t", topic, "-n", name_server]
        while "brokerDatas" not in tool.ask("run", args=words, limit_s=20.0)["text"]:
            assert time.monotonic() < deadline, "no route"
            time.sleep(0.2)
