"""The options of a supervisor, from `keelog serve` or a test, beside a store's settings.

Options, settings files and environment variables have their names and defaults from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from node.runtime.addresses import parse_follow
from node.runtime.settings import Settings, check_bounds, setting
from node.supervisor import bind
from node.supervisor.plan import ChildRole, RestartLimits
from protocol.addresses import DEFAULT_NODE
from protocol.errors import BadRequest, IllegalMessage
from protocol.names import check_topic, module_name

BROKER_ID_MAX = 2**31 - 1
QUEUE_WORKERS_MAX = 64
READERS_MAX = 64
MODULES: Mapping[ChildRole, str] = {
    ChildRole.WRITER: module_name("node.writer.loop"),
    ChildRole.QUEUE: module_name("workers.consume_queue"),
    ChildRole.INDEX: module_name("workers.index_file"),
    ChildRole.READER: module_name("node.reader.loop"),
    ChildRole.GATEWAY: module_name("keelog.gateway.loop"),
    ChildRole.TASKS: module_name("keelog.gateway.tasks.loop"),
    ChildRole.FOLLOWERS: module_name("keelog.replication.followers.loop"),
    ChildRole.CONSOLE: module_name("keelog.console.process"),
}
REPLICA = module_name("keelog.replication.replica.loop")
"""In the place of the writer, at a node that follows a master."""
FIRST_SLAVE = 1


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Checked when it is made: BadRequest for what cannot be."""

    bind: str = setting(
        DEFAULT_NODE,
        "the control socket, at an address or host name of this machine, or at all of them "
        "(`tcp://0.0.0.0:7850`; with IPv6 `tcp://*:7850`); the writer listens one port above, the "
        "readers above it; port 0 takes free ones",
    )
    queue_workers: int = setting(
        1, "processes that write the queues; each reads the whole log", most=QUEUE_WORKERS_MAX
    )
    readers: int = setting(1, "processes that answer pulls and look-ups", most=READERS_MAX)
    http: str = setting(
        "",
        "where /metrics, /livez, /readyz and /healthz are, as 7855 or 0.0.0.0:7855; empty: nowhere",
    )
    remoting: str = setting(
        "",
        "where RocketMQ's own clients connect, as 127.0.0.1:10911, and two ports below it; it is "
        "their `namesrvAddr` too; port 0 takes free ones; empty: nowhere",
    )
    ha_listen: str = setting(
        "",
        "where slaves and replicas connect to follow this node, as 127.0.0.1:10912, which "
        "[nobody checks](replication.md#being-followed); port 0 takes a free one; empty: nowhere",
    )
    console: str = setting(
        "",
        "where the [console](console.md) for browsers is, as 7856 or 127.0.0.1:7856; port 0 takes "
        "a free one; empty: nowhere",
    )
    console_read: str = setting(
        "open",
        "who may look at the console of a node without users: `open`, everybody who reaches it, or "
        "`key`, who has shown the key of the node",
    )
    console_hosts: str = setting(
        "",
        "names under which browsers may ask for the console, beside addresses and localhost, with "
        "commas between: `keelog.example.org`",
    )
    console_path: str = setting(
        "",
        "the path before every address of the console behind a proxy, as `/keelog`",
    )
    restart_limit: int = setting(
        5,
        "a process that ends so often in a row, each time within a minute, is failing; 0: never",
        least=0,
    )

    def __post_init__(self) -> None:
        bind.parse_bind(self.bind)
        bind.parse_http(self.http)
        bind.parse_remoting(self.remoting)
        bind.parse_ha(self.ha_listen)
        bind.parse_console(self.console)
        bind.check_console_names(self.console_read, self.console_hosts, self.console_path)
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How clients find a node. Checked when it is made: BadRequest for what cannot be."""

    advertise: str = setting(
        "",
        "the host that clients are given, a name or an address, and after it `PUBLISHED:OWN` for "
        "each port that they reach under another number, as `db7.example.org,20911:10911`; without "
        "a host that at which each end listens, and at a wildcard the one that each client asked",
    )

    def __post_init__(self) -> None:
        bind.parse_advertise(self.advertise)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How a node calls itself towards RocketMQ's clients: properties of a broker, in snake case."""

    broker_cluster_name: str = setting("DefaultCluster", "the cluster of the node")
    broker_name: str = setting(
        "", "the name of the node in its cluster, unlike any other there; empty: the host's name"
    )
    broker_id: int = setting(
        0, "0: the node takes messages under its name; others are for slaves", least=0
    )
    namesrv_addr: str = setting(
        "",
        "the name servers at which the node registers, as `ns1:9876;ns2:9876`; empty: none, the "
        "node is the name server of its clients",
    )
    controller_addr: str = setting(
        "",
        "RocketMQ's controllers, as `ns1:9878;ns2:9878;ns3:9878`: they "
        "[elect the master](replication.md#elected-masters) of all nodes with this broker name; "
        "empty: none does",
    )

    def __post_init__(self) -> None:
        bind.parse_name_servers(self.namesrv_addr)
        bind.parse_controllers(self.controller_addr)
        for setting_name, option, name in (
            ("broker_cluster_name", "--cluster", self.broker_cluster_name),
            ("broker_name", "--broker-name", self.broker_name or "b"),
        ):
            try:
                check_topic(name)
            except IllegalMessage:
                raise BadRequest(
                    f"broker.{setting_name} is {name[:80]!a}",
                    f"write {option} orders-a: 1 to 127 of the characters % | a-z A-Z 0-9 _ -",
                ) from None
        if not 0 <= self.broker_id <= BROKER_ID_MAX:
            raise BadRequest(
                f"broker.broker_id is {self.broker_id}", "write --broker-id 0, or leave it out"
            )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node watches its processes. Checked when it is made: BadRequest for what cannot be."""

    silence_limit_s: int = setting(
        10,
        "a process that gave no sign of life for so long is killed and started again; after "
        "half of it the node is not ready",
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Options:
    """`pairs`: settings as `name=value`; `modules`: tests alone replace them."""

    root: Path
    serve: ServeSettings = field(default_factory=ServeSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    pairs: tuple[str, ...] = ()
    origins: Sequence[Mapping[str, str]] = ()
    """Which settings were given, and by whom: `setting`, `origin`, `where`."""
    limits: RestartLimits = field(default_factory=RestartLimits)
    version: str = ""
    while_pid: int | None = None
    """The node stops when this process ends."""
    modules: Mapping[ChildRole, str] = field(default_factory=lambda: MODULES)


def as_replica(options: Options, settings: Settings) -> Options:
    """The options of a node that follows, where the settings say so: another process in the place
    of the writer, and at the name servers the place of a slave. Raises BadRequest."""
    if not settings.follow:
        return options
    source, broker = parse_follow(settings.follow), options.broker
    if source.broker:
        broker = replace(
            broker,
            broker_name=source.broker,
            namesrv_addr=broker.namesrv_addr or ";".join(source.name_servers),
        )
    if broker.namesrv_addr and not broker.broker_id:
        broker = replace(broker, broker_id=FIRST_SLAVE)
    modules = {**options.modules, ChildRole.WRITER: REPLICA}
    return replace(options, broker=broker, modules=modules)
