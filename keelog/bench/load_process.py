"""One process of a load: `python -m keelog.bench.load_process`, started by processes.py.

It talks in lines of JSON: reads its job, says that it is ready, reads the moment to begin, says a
row of figures each second, and that it is done. Its stdin ends with the bench; then it ends, too.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TextIO

from keelog.bench.job import SECOND_NS, LoadJob, Prepared, sleep_until, wake_up_in_time
from keelog.bench.read_roles import prepare_finds, prepare_follow, prepare_reads
from keelog.bench.sending import prepare_sends
from protocol.errors import MqError

ROLES: dict[str, Callable[[LoadJob], Prepared]] = {
    "send": prepare_sends,
    "consume": prepare_reads,
    "follow": prepare_follow,
    "find": prepare_finds,
}


class Talk:
    """The lines that go out, from several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def say(self, what: str, **fields: Any) -> None:
        """Writes one line. A closed pipe does not matter: `_hear` then ends the process."""
        with self._lock, suppress(BrokenPipeError):
            self._out.write(json.dumps({"say": what, **fields}) + "\n")
            self._out.flush()


def report_seconds(job: LoadJob, talk: Talk, start_ns: int, over: threading.Event) -> None:
    """A row at each full second since the start, and a last one when it is over."""
    before = start_ns
    while not over.is_set():
        second = (time.monotonic_ns() - start_ns) // SECOND_NS + 1
        over.wait((start_ns + second * SECOND_NS - time.monotonic_ns()) / 1e9)
        streams = {name: stream.take() for name, stream in job.streams.items()}
        now = time.monotonic_ns()
        talk.say("row", start=before, end=now, streams=streams)
        before = now


def _hear(stdin: TextIO, lines: "SimpleQueue[str]") -> None:
    for line in stdin:
        lines.put(line)
    # Nobody waits for the figures, and a follower waits for messages that nobody will send.
    os._exit(1)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_up_in_time()
    talk = Talk(sys.stdout)
    heard: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_hear, args=(sys.stdin, heard), daemon=True).start()
    job = LoadJob.parse(heard.get())
    try:
        prepared = ROLES[job.role](job)
        talk.say("ready", generator=prepared.generator_cpu_s_per_million)
        run(job, prepared, talk, int(json.loads(heard.get())["go"]))
    except MqError as error:
        talk.say("failed", error=type(error).__name__, reason=error.reason, hint=error.hint)
        return 1
    talk.say("done")
    return 0


def run(job: LoadJob, prepared: Prepared, talk: Talk, start_ns: int) -> None:
    """The work, with a row of figures each second."""
    over = threading.Event()
    reporter = threading.Thread(target=report_seconds, args=(job, talk, start_ns, over))
    sleep_until(start_ns)
    reporter.start()
    try:
        prepared.work(start_ns)
    finally:
        over.set()
        reporter.join()


if __name__ == "__main__":
    sys.exit(main())
