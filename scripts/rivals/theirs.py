"""RocketMQ's turns: what the warm Java program is asked, and what comes of it as figures.

A group of loads shares one broker, so that it is warm; what a load stores stays until the group
ends. CPU seconds count from the first message until queues and index hold the last one.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.store.checkpoints import own_dir
from scripts.bench.dispatch import fill_log
from scripts.rivals import proc, rocketmq
from scripts.rivals.plan import AUTO_BATCH, Figures, Load, Side

QUEUES = 8
DRAIN_THREADS = 8
CATCH_UP_S = 300
LOOKUPS = 5_000
RESTART_TOPICS = 125
RESTART_LIMIT_S = 120
KILL_AFTER_S = 1
WAKE_TOPIC, WAKE_MESSAGES = "warm-up", 50
WAKE_PAUSE_S, WAKE_S = 0.2, 20.0
"""A broker that stood still gets so long until it accepts everything again."""
SAMPLE_AT = 0.6
"""Memory is read once, after this part of a turn: reading it costs time on the side that runs."""
DISPATCH_TOPICS = 16
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BrokerBench:
    """Shared by all brokers of a run: class path, folder, addresses, and the warm program."""

    classes: str
    folder: Path
    addresses: rocketmq.Addresses
    names: rocketmq.Jvm
    program: rocketmq.Program

    @classmethod
    @contextmanager
    def open(cls, classes: str, folder: Path) -> Iterator["BrokerBench"]:
        """Starts name server and program; ends them, whatever happens."""
        addresses = rocketmq.Addresses.free()
        with (
            rocketmq.start_name_server(classes, folder / "names", addresses.name_server) as names,
            rocketmq.Program(classes, folder / "client", addresses.name_server) as program,
        ):
            yield cls(classes, folder, addresses, names, program)


class Theirs(Side):
    """One broker with its settings, and the turns that are run against it."""

    def __init__(self, bench: BrokerBench, name: str, settings: Mapping[str, object]) -> None:
        self._bench = bench
        home = bench.folder / name
        self._broker = rocketmq.RocketMQ(bench.classes, home, bench.addresses, settings)
        self._finds = 0

    def start(self) -> None:
        """Starts the broker; it takes topics when this returns."""
        self._broker.start()
        self._topic(WAKE_TOPIC)

    def close(self) -> None:
        """Kills it and removes its store."""
        self._broker.remove()

    def prepare(self, load: Load) -> None:
        """Topics, what is stored before, and nothing that is timed."""
        topic = topic_of(load)
        if load.kind == "restart":
            self._fill_for_restarts(load)
            return
        self._topic(topic)
        if load.messages:
            keyed = load.kind == "find"
            self._ask("send", topic=topic, threads=16, batch=100, body=load.body,
                      messages=load.messages, keyed=keyed)  # fmt: skip
            self.settle()

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        if load.kind == "restart":
            return self._restart(load)
        before = self._cpu()
        servers = [self._broker.pid, self._bench.names.pid]
        with proc.read_once(
            seconds * SAMPLE_AT, lambda: proc.private_mib(servers, self._broker.store)
        ) as pss:
            answer = self._workload(load, side, seconds)
        ended = time.monotonic()
        self.settle()
        dispatched = time.monotonic() - ended
        server, client = (now - then for now, then in zip(self._cpu(), before, strict=True))
        figures = figures_of(answer, server, client)
        if load.kind == "send":
            figures["dispatched_after_s"] = dispatched
        if pss:
            figures["pss_mib"] = pss[0]
        return figures

    def settle(self) -> None:
        """Waits until queues and index hold the whole log. Raises RivalFailed."""
        deadline = time.monotonic() + CATCH_UP_S
        while self._ask("behind", broker=self._bench.addresses.broker)["bytes"] > 0:
            if time.monotonic() > deadline:
                raise rocketmq.RivalFailed(
                    f"the broker did not dispatch its log within {CATCH_UP_S} s"
                )
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Client, broker, name server: clients stop before servers."""
        return [self._bench.program.pid, self._broker.pid, self._bench.names.pid]

    def wake(self) -> None:
        """Messages until all are accepted: connections live, threads run. Raises RivalFailed."""
        deadline = time.monotonic() + WAKE_S
        while True:
            time.sleep(WAKE_PAUSE_S)
            answer = self._ask("send", topic=WAKE_TOPIC, threads=1, batch=1, messages=WAKE_MESSAGES)
            if answer["messages"] == WAKE_MESSAGES:
                return
            if time.monotonic() > deadline:
                raise rocketmq.RivalFailed(f"the broker did not go on: {answer['first_error']}")

    def _cpu(self) -> tuple[float, float]:
        servers = [self._broker.pid, self._bench.names.pid]
        return proc.cpu_seconds(servers), proc.cpu_seconds([self._bench.program.pid])

    def _workload(self, load: Load, side: str, seconds: float) -> Answer:
        topic = topic_of(load)
        if load.kind == "consume":
            return self._ask("drain", topic=topic, threads=DRAIN_THREADS, pull=1024)
        if load.kind == "end_to_end":
            return self._ask("end_to_end", topic=topic, rate=load.rate, threads=2,
                             seconds=int(seconds), body=load.body)  # fmt: skip
        if load.kind == "find":
            self._finds += 1
            return self._ask("find", topic=topic, keys=load.messages, lookups=LOOKUPS,
                             seed=self._finds)  # fmt: skip
        return self._ask("send", topic=topic, seconds=int(seconds), **sending(load, side))

    def _topic(self, topic: str) -> None:
        self._ask("topic", topic=topic, queues=QUEUES, broker=self._bench.addresses.broker)

    def _ask(self, do: str, **arguments: object) -> Answer:
        return self._bench.program.ask(do, **arguments)

    def _fill_for_restarts(self, load: Load) -> None:
        topic = topic_of(load)
        for number in range(RESTART_TOPICS):
            self._topic(f"{topic}{number}")
        messages = int(load.gib * (1 << 30) / (load.body + 160))
        self._ask("send", topic=topic, topics=RESTART_TOPICS, threads=16, batch=100,
                  body=load.body, messages=messages)  # fmt: skip
        self.settle()

    def _restart(self, load: Load) -> Figures:
        """A second of sends, kill -9, and the time from the command to the first accepted send."""
        topic = topic_of(load)
        self._ask("send", topic=topic, topics=RESTART_TOPICS, threads=16, batch=100,
                  body=load.body, seconds=KILL_AFTER_S)  # fmt: skip
        self._broker.kill()
        began = time.monotonic()
        self._broker.begin()
        answer = self._ask("first_send", topic=f"{topic}0", limit_s=RESTART_LIMIT_S)
        took = time.monotonic() - began
        self.settle()
        return {"seconds": took, "refused": answer["refused"]}


class TheirStore(Side):
    """RocketMQ's store in the Java program itself, without a broker."""

    def __init__(self, bench: BrokerBench) -> None:
        self._program, self._names = bench.program, bench.names
        self._root = bench.folder / "alone"

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def pids(self) -> list[int]:
        """The program and the name server, which nobody needs here."""
        return [self._program.pid, self._names.pid]

    def prepare(self, load: Load) -> None:
        """For dispatch: a log whose records have one key each."""
        if load.kind == "dispatch":
            keyed_log(self._root, load.messages)
            shutil.rmtree(own_dir(self._root))

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """New stores for puts; for dispatch the same log, its queues and index removed."""
        before = proc.cpu_seconds([self._program.pid])
        if load.kind == "dispatch":
            for name in ("consumequeue", "index"):
                shutil.rmtree(self._root / name, ignore_errors=True)
            answer = self._program.ask("store_dispatch", root=str(self._root))
            answer["messages"] = load.messages
            return figures_of(answer, proc.cpu_seconds([self._program.pid]) - before, 0.0)
        figures: Figures = {}
        for name, batch in (("single", 1), ("batch", load.batch)):
            answer = self._program.ask("store_put", root=str(self._root), seconds=int(seconds),
                                       batch=batch, body=load.body)  # fmt: skip
            figures[f"{name}_per_s"] = answer["messages"] / answer["seconds"]
            figures[f"{name}_dispatched_after_s"] = answer["dispatched_s"] - answer["seconds"]
            self.close()
        return figures


def keyed_log(root: Path, messages: int) -> None:
    """A log for dispatch, the same on both sides: one key in each record."""
    fill_log(root, messages, DISPATCH_TOPICS, QUEUES, keys=1, body=128)


def topic_of(load: Load) -> str:
    """Each load has a topic of its own."""
    return load.name.replace("_", "-")


def sending(load: Load, side: str) -> dict[str, object]:
    """Arguments of `send`. RocketMQ keeps batches under way by threads that wait for them."""
    if load.batch > 1:
        return {"threads": load.in_flight, "batch": load.batch, "body": load.body}
    if load.in_flight:
        gathers = side == AUTO_BATCH
        return {"threads": 2, "in_flight": load.in_flight, "body": load.body, "auto_batch": gathers}
    return {"threads": load.callers, "body": load.body}


def figures_of(answer: Mapping[str, Any], server_s: float, client_s: float) -> Figures:
    """The figures of an answer that says `messages` and `seconds`."""
    messages, seconds = answer["messages"], answer["seconds"]
    if not messages:
        raise rocketmq.RivalFailed(f"nothing was done: {dict(answer)}")
    figures: Figures = {
        "per_s": messages / seconds,
        "messages": messages,
        "failed": answer.get("failed", 0),
        "server_cpu_s_per_million": server_s / messages * 1e6,
        "client_cpu_s_per_million": client_s / messages * 1e6,
        "cpu_s_per_million": (server_s + client_s) / messages * 1e6,
    }
    figures |= {name: answer[name] for name in ("p50_us", "p99_us", "p999_us") if name in answer}
    return figures
