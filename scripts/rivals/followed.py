"""What a follower costs: sends to a master with one Java slave beside sends to one without.

`python -m scripts.rivals.followed` starts, one after the other, a node and a broker of RocketMQ
5.5.0 as the master: alone, with a slave and ASYNC_MASTER, with a slave and SYNC_MASTER (2 copies).
The slave is the same one for both, and so is the Java program that sends. It prints a row for each:
messages a second, the 99th percentile of a send, and how late the slave was: its lag is asked for
20 times a second while the load goes on, in bytes, and in ms at the mean rate of the load.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from keelog.bench.node_process import ANY_DISK, Node
from keelog.replication.replica.master_link import MasterFacts, ask_facts
from node.runtime.settings import snake_case
from node.supervisor.bind import free_ports
from protocol.addresses import VIP_DISTANCE
from scripts.command_line import percentile, print_rows
from scripts.rivals import proc, rocketmq

BODY = 1024
QUEUES = 8
WARM_S = 6
LOOK_S = 0.05
NAME = "rival"
"""Of cluster and broker, as BROKER of scripts/rivals/rocketmq.py has it."""
SEGMENT = 256 << 20
OURS, THEIRS = "keelog", "rocketmq"
MODES: Mapping[str, Mapping[str, object]] = {
    "alone": {},
    "async": {"brokerRole": "ASYNC_MASTER"},
    "sync": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2},
}


class FollowedRow(NamedTuple):
    master: str
    mode: str
    threads: int
    per_s: int
    p99_us: float
    """Of a send."""
    failed: int
    lag_p50_bytes: float
    lag_p99_bytes: float
    """Of the slave's log during the load; 0 without one."""
    lag_p99_ms: float


def measure(folder: Path, seconds: int, threads: int) -> Iterator[FollowedRow]:
    """A row for each mode and master."""
    classes = rocketmq.class_path()
    for mode in MODES:
        for master in (OURS, THEIRS):
            with ExitStack() as ends:
                home = folder / f"{mode}-{master}"
                address, slave, program = _start(ends, classes, home, master, mode)
                load = {"topic": "t", "body": BODY, "threads": threads}
                program.ask("topic", topic="t", queues=QUEUES, broker=address)
                program.ask("send", seconds=WARM_S, **load)
                begin = _log_end(address)
                with watched_lags(address, slave) as lags:
                    sent = program.ask("send", seconds=seconds, **load)
                bytes_per_ms = (_log_end(address) - begin) / sent["seconds"] / 1000
                p50, p99 = (percentile(sorted(lags), percent) for percent in (50, 99))
                yield FollowedRow(
                    master, mode, threads, round(sent["messages"] / sent["seconds"]),
                    sent["p99_us"], sent["failed"], p50, p99, round(p99 / bytes_per_ms, 1),
                )  # fmt: skip


def _start(
    ends: ExitStack, classes: str, home: Path, master: str, mode: str
) -> tuple[str, str, rocketmq.Program]:
    """Master, slave and the program that sends. The slave's address is empty without one."""
    addresses = replace(
        rocketmq.Addresses.free(), broker=f"127.0.0.1:{free_ports(5) + VIP_DISTANCE}"
    )
    ends.enter_context(rocketmq.start_name_server(classes, home / "names", addresses.name_server))
    settings = MODES[mode]
    if master == OURS:
        ends.enter_context(_node(home / "node", addresses, settings))
    else:
        sizes = {"mappedFileSizeCommitLog": SEGMENT, "brokerIP2": "127.0.0.1"}
        broker = rocketmq.RocketMQ(
            classes, home / "broker", addresses, {**settings, **sizes}, rocketmq.SMALL_HEAP
        )
        ends.enter_context(broker)
    slave = ""
    if settings:
        slaves = replace(rocketmq.Addresses.free(), name_server=addresses.name_server)
        sizes = {
            "brokerId": 1, "brokerRole": "SLAVE", "mappedFileSizeCommitLog": SEGMENT,
            "timerWheelEnable": "false", "registerNameServerPeriod": 10_000,
        }  # fmt: skip
        ends.enter_context(
            rocketmq.RocketMQ(classes, home / "slave", slaves, sizes, rocketmq.SMALL_HEAP)
        )
        slave = slaves.broker
    program = ends.enter_context(rocketmq.Program(classes, home / "client", addresses.name_server))
    if slave:
        _await_slave(addresses.broker, slave, program)
    return addresses.broker, slave, program


@contextmanager
def watched_lags(master: str, slave: str) -> Iterator[list[int]]:
    """What the slave's log lacks of the master's, in bytes, seen every LOOK_S; without a slave
    nothing."""
    found: list[int] = []

    def look() -> None:
        # The slave first: what comes in between makes its lag look larger, not smaller.
        end = _log_end(slave)
        found.append(_log_end(master) - end)

    with proc.repeated(LOOK_S, look) if slave else nullcontext():
        yield found


def _node(root: Path, addresses: rocketmq.Addresses, settings: Mapping[str, object]) -> Node:
    pairs = [f"{snake_case(name)}={value}" for name, value in settings.items()]
    pairs += [
        f"serve.remoting={addresses.broker}", f"broker.namesrv_addr={addresses.name_server}",
        f"broker.broker_name={NAME}", f"broker.broker_cluster_name={NAME}",
        f"mapped_file_size_commit_log={SEGMENT}", *ANY_DISK,
        f"serve.ha_listen=127.0.0.1:{free_ports(1)}" if settings else "serve.ha_listen=",
    ]  # fmt: skip
    return Node(root, pairs, readers=1)


def _await_slave(master: str, slave: str, program: rocketmq.Program) -> None:
    """Returns when the slave has what the master has, which is not nothing."""
    program.ask("topic", topic="first", queues=1, broker=master)
    program.ask("send", topic="first", body=BODY, messages=1, threads=1)
    deadline = time.monotonic() + 180
    while not 0 < _log_end(master) == _log_end(slave):
        if time.monotonic() > deadline:
            raise AssertionError("the slave does not follow")
        time.sleep(0.2)


def _log_end(address: str) -> int:
    """Where the log of a broker ends; -1 while it does not answer."""
    facts = ask_facts(address, with_segments=False)
    return facts.end if isinstance(facts, MasterFacts) else -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=10, help="of each load (default 10)")
    parser.add_argument("--threads", type=int, default=64, help="that send (default 64)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keelog-followed-") as folder:
        rows = measure(Path(folder), options.seconds, options.threads)
        print_rows(FollowedRow._fields, (list(map(str, row)) for row in rows))


if __name__ == "__main__":
    main()
