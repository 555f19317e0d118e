"""The hops of one message: the files and functions of ours that one lone `send`, or pull, runs.

`python -m scripts.trace_hops` starts a node whose writer and reader note each call of a Python
function, sends and pulls one message at a time in steady state, and prints the distinct files and
functions of client and node together; `--list` names them. A function counts that ran in more than
half of the quickest looks, so that what a process does now and then does not.

The node's processes have no hook for this: a `sitecustomize`, which is written to a folder of its
own here and named in their PYTHONPATH, sets a profile function in their main threads.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from keelog.bench.node_process import ANY_DISK, Node
from keelog.client.client import Client, connect

ROOT = Path(__file__).resolve().parents[1]
THIS = str(Path(__file__).resolve().relative_to(ROOT))
TOPIC = "TraceHops"
WARM_UP = 300
LOOKS, BEST = 200, 15
"""The quickest looks count: on a busy machine the others show what a process does meanwhile."""
WRITE_EVERY_S = 0.2
"""How often a traced process writes what it has noted."""
HOOK = """
import collections, json, os, sys, threading, time
noted, names = collections.deque(maxlen=2_000_000), {}
def note(frame, event, argument):
    if event == "call":
        noted.append((time.monotonic_ns(), frame.f_code))
def write():
    with open(os.path.join(os.environ["TRACE_HOPS"], f"{role}-{os.getpid()}"), "w") as file:
        while True:
            while noted:
                at, code = noted.popleft()
                file.write(json.dumps([at, code.co_filename, code.co_qualname]) + "\\n")
            file.flush()
            time.sleep(%s)
found = [word for word in sys.orig_argv if word.endswith((".writer.loop", ".reader.loop"))]
if found:
    role = found[0].split(".")[-2]
    threading.Thread(target=write, daemon=True).start()
    sys.setprofile(note)
"""
Hop = tuple[str, str]
"""File and function."""


def hop_of(file: str, function: str) -> Hop | None:
    """None for code of others, and for code that was made at run time. A lambda, or what a
    comprehension runs, is a part of its function."""
    path = Path(file)
    if not path.is_relative_to(ROOT) or ".venv" in path.parts:
        return None
    while function.endswith(">"):
        function = function.rpartition(".<locals>.")[0] or function.strip("<>")
    return str(path.relative_to(ROOT)), function


def look(action: Callable[[], object]) -> tuple[set[Hop], tuple[int, int]]:
    """The hops of the client, and the time of it, in ns of the monotonic clock."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    begin = time.monotonic_ns()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    end = time.monotonic_ns()
    found = (hop_of(code.co_filename, code.co_qualname) for code in seen)
    return {hop for hop in found if hop and hop[0] != THIS}, (begin, end)


def hops_at(folder: Path, role: str, spans: Sequence[tuple[int, int]]) -> list[set[Hop]]:
    """What the process of a role ran within each span."""
    found: list[set[Hop]] = [set() for _ in spans]
    for path in folder.glob(f"{role}-*"):
        for line in path.read_text().splitlines():
            at, file, function = json.loads(line)
            if hop := hop_of(file, function):
                for hops, (begin, end) in zip(found, spans, strict=True):
                    if begin <= at <= end:
                        hops.add(hop)
    return found


def usual(looks: Sequence[set[Hop]]) -> set[Hop]:
    """Those of more than half of the looks."""
    counts = Counter(hop for hops in looks for hop in hops)
    return {hop for hop, count in counts.items() if 2 * count > len(looks)}


def measure(
    client: Client, action: Callable[[], object], folder: Path, role: str
) -> dict[str, set[Hop]]:
    """The usual hops of the client, and of the process of the role, for one lone action."""
    for _ in range(WARM_UP):
        action()
    looks: list[tuple[set[Hop], tuple[int, int]]] = []
    for _ in range(LOOKS):
        time.sleep(0.01)
        action()  # the one before: a process that slept is awake
        looks.append(look(action))
    looks = sorted(looks, key=lambda one: one[1][1] - one[1][0])[:BEST]
    time.sleep(5 * WRITE_EVERY_S)
    return {
        "client": usual([hops for hops, _ in looks]),
        role: usual(hops_at(folder, role, [span for _, span in looks])),
    }


def report(title: str, found: dict[str, set[Hop]], names_all: bool) -> None:
    """Prints the counts, together and of each process, and the hops where that is wanted."""
    everything = set[Hop]().union(*found.values())
    print(f"{title}: {len({file for file, _ in everything})} files, {len(everything)} functions")
    for role, hops in found.items():
        by_file = Counter(file for file, _ in hops)
        print(f"  {role}: {len(by_file)} files, {len(hops)} functions")
        for file in sorted(by_file) if names_all else ():
            names = ", ".join(sorted(function for at, function in hops if at == file))
            print(f"    {file}: {names}")


def trace(client: Client, folder: Path, names_all: bool) -> None:
    offset = client.send(TOPIC, b"x" * 100, queue_id=0).queue_offset

    def pull() -> None:
        assert client.pull(TOPIC, 0, offset, max_messages=1).status == "FOUND"

    client.pull(TOPIC, 0, offset, wait=10.0)
    sends = measure(client, lambda: client.send(TOPIC, b"x" * 100), folder, "writer")
    report("a lone send", sends, names_all)
    report("a pull that finds", measure(client, pull, folder, "reader"), names_all)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the files and functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keelog-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(HOOK % WRITE_EVERY_S)
        (folder / "traces").mkdir()
        hooked = {"PYTHONPATH": f"{name}{os.pathsep}{ROOT}", "TRACE_HOPS": str(folder / "traces")}
        with (
            Node(folder / "store", ANY_DISK, readers=1, env=hooked) as node,
            connect(node.endpoint, timeout=30) as client,
        ):
            trace(client, folder / "traces", options.list)


if __name__ == "__main__":
    main()
