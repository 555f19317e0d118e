"""The cost of a flush mode: sends a second and their latency, for each mode and number in flight.

`python -m scripts.bench.flush DIR` starts a writer of its own for each mode, on new stores in DIR
(name a folder of the disk that is meant). Each request is an `append` of one message; up to 64 are
under way at once. Last, what an append itself costs without a node: pwrite, or the pool's buffer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq

from node.runtime.settings import Settings
from node.store.identity.places import create_store
from node.writer.log.commit_log import CommitLog, make_pool
from node.writer.log.flush import FlushServices
from protocol.record.encode import NewMessage, encode_batch
from protocol.wire.frames import VERSION, pack, unpack_answer

MODES: dict[str, tuple[str, ...]] = {
    "SYNC_FLUSH": ("flush_disk_type=SYNC_FLUSH",),
    "ASYNC_FLUSH": (),
    "ASYNC_FLUSH + pool": ("transient_store_pool_enable=true",),
}
IN_FLIGHT = (1, 8, 64)
SEGMENT_BYTES = 128 * 1024 * 1024
APPEND_BYTES = 16 * 1024
APPENDS = 4_000
ANSWER_MS_MAX = 30_000


class FlushRow(NamedTuple):
    """One measurement; latencies in ms."""

    what: str
    in_flight: int
    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float


@contextmanager
def writer(root: Path, settings: tuple[str, ...]) -> Iterator[str]:
    """A writer on a new store; yields where it listens."""
    shutil.rmtree(root, ignore_errors=True)
    create_store(root)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "node.writer.loop", str(root), "--bind", "tcp://127.0.0.1:0"]
    for pair in (f"mapped_file_size_commit_log={SEGMENT_BYTES}", *settings):
        command += ["-X", pair]
    process = subprocess.Popen(
        [*command, "--ready-fd", str(write_end)], pass_fds=[write_end], stderr=subprocess.DEVNULL
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as pipe:
            # Lines about a recovery come before it.
            ready = next((said for said in map(json.loads, pipe) if "endpoint" in said), None)
            if ready is None:
                sys.exit(f"the writer did not start; see: {' '.join(command)}")
            yield ready["endpoint"]
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(root, ignore_errors=True)


def measure_sends(endpoint: str, mode: str, in_flight: int, seconds: float, body: int) -> FlushRow:
    """Keeps `in_flight` appends under way for so long. Raises AssertionError for a refusal."""
    batch = encode_batch([NewMessage("bench", os.urandom(body), 0)], crc=True)
    crc = zlib.crc32(batch.records)
    fields = {"v": VERSION, "op": "append", "count": 1, "bytes": len(batch.records), "crc": crc}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, ANSWER_MS_MAX)
    socket.connect(endpoint)
    sent_at: list[float] = []
    latencies: list[float] = []

    def send() -> None:
        sent_at.append(time.perf_counter())
        socket.send_multipart([pack({**fields, "id": len(sent_at) - 1}), batch.records])

    begun = time.perf_counter()
    for _ in range(in_flight):
        send()
    while len(latencies) < len(sent_at):
        answer = unpack_answer(socket.recv_multipart()[0])
        now = time.perf_counter()
        assert answer["ok"], answer
        latencies.append(now - sent_at[answer["id"]])
        if now - begun < seconds:
            send()
    elapsed = time.perf_counter() - begun
    context.destroy()
    return _row(mode, in_flight, latencies, elapsed)


def measure_appends(root: Path, what: str, settings: Settings) -> FlushRow:
    """The writer's own share: CommitLog.append alone, with commits and flushes beside it."""
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("commitlog", "keelog/run"):
        (root / folder).mkdir(parents=True)
    log = CommitLog(root, SEGMENT_BYTES, 0, make_pool(settings))
    log.open_tail()
    services = FlushServices(log, settings, time.monotonic(), lambda _target: lambda: None)
    data = os.urandom(APPEND_BYTES)
    latencies: list[float] = []
    begun = time.perf_counter()
    for _ in range(APPENDS):
        now = time.monotonic()
        services.collect(now)
        start = time.perf_counter()
        services.wait_for_buffer(len(data), now)
        log.make_room(len(data))
        log.append(bytearray(data))
        latencies.append(time.perf_counter() - start)
        services.wake()
        services.begin(now, is_waited_for=False)
    elapsed = time.perf_counter() - begun
    while not services.is_done:
        services.collect(time.monotonic())
        services.begin(time.monotonic(), is_waited_for=True)
        time.sleep(0.001)
    services.close()
    log.close(unlink_next=True)
    shutil.rmtree(root)
    return _row(what, 1, latencies, elapsed)


def _row(what: str, in_flight: int, latencies: list[float], elapsed: float) -> FlushRow:
    p50, p99, longest = np.percentile(latencies, [50, 99, 100]) * 1000
    return FlushRow(
        what, in_flight, len(latencies) / elapsed, float(p50), float(p99), float(longest)
    )


def main() -> int:
    """Prints a line for each measurement, as text or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line")
    parser.add_argument("--body", type=int, default=1024, help="bytes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for mode, settings in MODES.items():
        for in_flight in IN_FLIGHT:
            with writer(options.folder / "bench", settings) as endpoint:
                rows.append(measure_sends(endpoint, mode, in_flight, options.seconds, options.body))
    for what, pooled in (("append by pwrite", False), ("append to the pool", True)):
        settings_of = Settings(transient_store_pool_enable=pooled)
        rows.append(measure_appends(options.folder / "bench", what, settings_of))
    if options.json:
        machine = {"cpus": os.cpu_count(), "kernel": os.uname().release, "body": options.body}
        print(json.dumps({"machine": machine, "rows": [row._asdict() for row in rows]}))
        return 0
    print(f"{'':22}{'in flight':>10}{'per second':>12}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}")
    for row in rows:
        print(
            f"{row.what:22}{row.in_flight:>10}{row.per_second:>12,.0f}"
            f"{row.p50_ms:>10.3f}{row.p99_ms:>10.3f}{row.max_ms:>10.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
