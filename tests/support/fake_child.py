"""A process that behaves towards its supervisor as told: `python -m tests.support.fake_child`.

`<store>/behave-<slot>` holds what to do: `run` (the default), `exit N`, `exit N when NAME` (ready,
until `<store>/NAME` is there), `deaf` (ignores SIGTERM), `mute` (never ready). Starts and ends go
to `<store>/events`.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from node.runtime.event_log import log_to_stderr, obey_log_signals
from node.runtime.process import die_with_parent, install_stop_signals, report_ready


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("dir", type=Path)
    for name in (
        "--bind",
        "--store-port",
        "--advertise",
        "--cluster",
        "--shard",
        "--shards",
        "--index",
        "--local",
        "--held",
        "-X",
    ):
        parser.add_argument(name)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args()
    slot = _slot(options)
    log_to_stderr(slot)
    stop = install_stop_signals()
    obey_log_signals()
    die_with_parent(options.ready_fd)
    behaviour = options.dir / f"behave-{slot}"
    words = behaviour.read_text().split() if behaviour.exists() else ["run"]
    _note(options.dir, f"start {slot} {options.bind or ''}".strip())
    if words[0] == "exit" and len(words) == 2:
        return int(words[1])
    if words[0] != "mute":
        bound = (options.bind or "").replace(":0", ":12345")
        report_ready(options.ready_fd, bound)
    told = options.dir / words[3] if words[0] == "exit" else None
    while (told is None or not told.exists()) and (not stop.is_set or words[0] == "deaf"):
        time.sleep(0.01)
    _note(options.dir, f"end {slot}")
    return int(words[1]) if words[0] == "exit" else 0


def _slot(options: argparse.Namespace) -> str:
    if options.store_port is not None:
        return "writer"
    if options.shard is not None:
        return f"queue-{options.shard}"
    return "index" if options.bind is None else f"reader-{options.index}"


def _note(root: Path, event: str) -> None:
    descriptor = os.open(root / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{event}\n".encode())
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
