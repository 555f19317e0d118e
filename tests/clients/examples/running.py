"""RocketMQ's examples, unmodified: the classes of `rocketmq-example`, at a broker and at a node.

Most of them name 127.0.0.1:9876, so each side runs in a network namespace of its own, where that
is free. A module of this folder runs one example at one side and prints facts, a line each:

    python -m tests.clients.examples.MODULE broker|node FOLDER
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import Addresses, Jvm, missing
from tests.clients.sides import Side, running_broker, running_node
from tests.interop import probe
from tests.soak.clients.programs import java_classes
from tests.support.node import wait_until

NAME_SERVER, BROKER = "127.0.0.1:9876", "127.0.0.1:10911"
PACKAGE = "org.apache.rocketmq.example"
ROOT = Path(__file__).resolve().parents[3]
LINE_S = 60.0
RUN_S = 300
SIDES = ("broker", "node")
DIRECT = {"OMS_RMQ_DIRECT_NAME_SRV": "true"}
"""RocketMQ's OpenMessaging takes the address that it is given only then."""
MARKS = [
    pytest.mark.clients,
    pytest.mark.timeout(2 * RUN_S),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="a network namespace needs root, and the program ip",
    ),
]


class Example(Jvm):
    """One class of the examples, named below PACKAGE. Its own output is its log."""

    def __init__(self, name: str, home: Path, arguments: Sequence[object] = ()) -> None:
        # Some name no name server, and take the property.
        options = ["-Xmx128m", f"-Drocketmq.namesrv.addr={NAME_SERVER}"]
        command = [*options, "-cp", java_classes(), f"{PACKAGE}.{name}", *map(str, arguments)]
        super().__init__(name, home, command, talks=False)
        self._path = home / f"{name}.log"

    def output(self) -> str:
        """All whole lines that it has printed: Java writes a line in pieces."""
        text = self._path.read_text(errors="replace")
        return text[: text.rfind("\n") + 1]

    def await_line(self, pattern: str, timeout_s: float = LINE_S) -> str:
        """The first match in its output. Fails the run when there is none in time."""
        wait_until(lambda: re.search(pattern, self.output()) is not None, pattern, timeout_s)
        found = re.search(pattern, self.output())
        assert found is not None
        return found[0]


@contextmanager
def running_side(
    name: str, folder: Path, more: Mapping[str, object] | None = None
) -> Iterator[Side]:
    """The broker with its name server, or the node, at the address that the examples name.

    `more`: RocketMQ's settings. The store is `folder/rocketmq/broker/store` or `folder/store`.
    """
    with ExitStack() as ends:
        if name == "broker":
            addresses = Addresses(NAME_SERVER, BROKER)
            yield ends.enter_context(running_broker(folder / "rocketmq", addresses, more or {}))
        else:
            remoting = f"serve.remoting={NAME_SERVER}"
            yield ends.enter_context(running_node(folder / "store", remoting, more or {}))[0]


def tell(fact: str) -> None:
    """One line on the standard output."""
    sys.stdout.write(f"{fact}\n")
    sys.stdout.flush()


def run_one(facts: Callable[[str, Path], None]) -> int:
    """The `main` of a module: `facts` gets the side's name and the folder."""
    facts(sys.argv[1], Path(sys.argv[2]))
    return 0


def both(module: str, folder: Path) -> dict[str, list[str]]:
    """What a module of this folder prints at each side, run at the same time."""
    probe.build()
    with ExitStack() as ends:
        places = {side: ends.enter_context(_namespace(side)) for side in SIDES}
        with ThreadPoolExecutor(len(SIDES)) as pool:
            runs = {
                side: pool.submit(_printed, module, where, side, folder / side)
                for side, where in places.items()
            }
        return {side: run.result() for side, run in runs.items()}


@contextmanager
def _namespace(name: str) -> Iterator[str]:
    """A network namespace with nothing but a loopback device: 9876 is free there."""
    full = f"klgex{os.getpid() % 100_000}{name[0]}"
    for words in (("netns", "add", full), ("-n", full, "link", "set", "lo", "up")):
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=RUN_S)
    try:
        yield full
    finally:
        subprocess.run(["ip", "netns", "del", full], check=False, capture_output=True)


def _printed(module: str, where: str, side: str, folder: Path) -> list[str]:
    command = [sys.executable, "-m", f"tests.clients.examples.{module}", side, str(folder)]
    done = subprocess.run(
        ["ip", "netns", "exec", where, *command], cwd=ROOT, capture_output=True, text=True,
        timeout=RUN_S, check=False, env={**os.environ, **DIRECT},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()
