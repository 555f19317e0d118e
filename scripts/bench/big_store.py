"""Makes a large store, fast, to measure on: the writer's own append path without its sockets.

    python -m scripts.bench.big_store DIR --records 10000000

16 topics of 8 queues, bodies of 128 bytes, TAGS (one of 8), one key and UNIQ_KEY in each message.
The records of one batch come from the product's encoder; batch by batch only the digits of both
keys move on. Store times lie `--per-ms` records to the millisecond behind `FIRST_TIME`. Queues and
index are made by the workers' rebuild. `keelog store verify --deep` finds nothing to say about it.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from node.runtime.settings import Settings
from node.store.identity.new_store import create_store
from node.writer.append_request import AppendRequest
from node.writer.store import WriterStore, open_writer_store
from protocol.message_id import Host
from protocol.record.encode import NewMessage, encode_batch
from workers.rebuild import rebuild

TOPICS = 16
QUEUES = 8
TAGS = tuple(f"tag-{number}" for number in range(8))
BODY_BYTES = 128
BATCH_RECORDS = 4096
FLUSH_EVERY_BYTES = 512 << 20
FIRST_TIME = 1_760_000_000_000
_HOST = Host(b"\x7f\x00\x00\x01", 10911)
_DIGITS = 12
_KEY = b"KEYS\1order-"
_UNIQUE = b"UNIQ_KEY\x01C0A8000100002A9F"
_WORDS = b"the quick brown fox jumps over a lazy dog and pays for order ".split()


def topic_name(number: int) -> str:
    """All have the same length, so that all records have."""
    return f"topic-{number:02d}"


class RecordSource:
    """Batch after batch of records whose keys count up."""

    def __init__(self, body_bytes: int = BODY_BYTES, seed: int = 1) -> None:
        draw = random.Random(seed)
        zeros = "0" * _DIGITS
        messages = [
            NewMessage(
                topic_name(draw.randrange(TOPICS)),
                b" ".join(draw.choices(_WORDS, k=body_bytes))[:body_bytes],
                draw.randrange(QUEUES),
                tags=draw.choice(TAGS),
                keys=(_KEY.split(b"\1")[1].decode() + zeros,),
                unique_key=_UNIQUE.split(b"\1")[1].decode() + zeros,
                born_timestamp=FIRST_TIME,
                born_host=_HOST,
            )
            for _ in range(BATCH_RECORDS)
        ]
        made = encode_batch(messages, crc=True)
        self.record_bytes = made.sizes[0]
        self._rows = np.frombuffer(bytearray(made.records), np.uint8).reshape(BATCH_RECORDS, -1)
        first = made.records[: self.record_bytes]
        self._places = [first.index(name) + len(name) for name in (_KEY, _UNIQUE)]

    def next(self, number: int, count: int) -> AppendRequest:
        """The records of messages `number` and the following ones, `BATCH_RECORDS` at most."""
        numbers = np.arange(number, number + count)
        digits = numbers[:, None] // 10 ** np.arange(_DIGITS - 1, -1, -1) % 10 + ord("0")
        for place in self._places:
            self._rows[:count, place : place + _DIGITS] = digits
        return AppendRequest(self._rows[:count].tobytes(), count)


def fill(root: Path, records: int, body_bytes: int, per_ms: int) -> None:
    """Appends the records to a new store, and stops it in order."""
    batches = RecordSource(body_bytes)
    create_store(root)
    store = open_writer_store(root, Settings(), _HOST, alone=True)
    flushed, told, began = store.log.end, 0.0, time.monotonic()
    for number in range(0, records, BATCH_RECORDS):
        request = batches.next(number, min(BATCH_RECORDS, records - number))
        store.appender.append([request], FIRST_TIME + number // per_ms)
        if request.error is not None:
            raise request.error
        store.snapshot_if_due()
        if store.log.end - flushed >= FLUSH_EVERY_BYTES:
            flushed = _flush(store)
        if time.monotonic() - told > 1:
            told = time.monotonic()
            _tell(f"{number:,} of {records:,} records, {number / (told - began):,.0f} a second")
    _flush(store)
    store.close_cleanly(workers_done=True)


def _flush(store: WriterStore) -> int:
    job = store.log.flush_job()
    job.run()
    store.after_flush(job.target)()
    store.flushed_to(job.target)
    return job.target


def make(root: Path, records: int, body_bytes: int = BODY_BYTES, per_ms: int = 20) -> None:
    """The store, with queues and index."""
    fill(root, records, body_bytes, per_ms)
    _tell("queues and index")
    rebuild(root, progress=_Progress())


class _Progress:
    """A line for each tenth of a rebuild."""

    def __init__(self) -> None:
        self._last = ("", -1)

    def __call__(self, what: str, done: int, whole: int) -> None:
        tenth = (what, 10 * done // max(whole, 1))
        if tenth != self._last:
            self._last = tenth
            _tell(f"{what}: {10 * tenth[1]} %")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """0 when the store was made; 2 when something is there already."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES)
    parser.add_argument("--per-ms", type=int, default=20, help="records stored in one ms")
    args = parser.parse_args()
    if args.root.exists() and any(args.root.iterdir()):
        _tell(f"{args.root} is not empty")
        return 2
    began, cpu = time.monotonic(), time.process_time()
    make(args.root, args.records, args.body_bytes, args.per_ms)
    seconds = time.monotonic() - began
    figures = {"records": args.records, "seconds": seconds, "cpu": time.process_time() - cpu}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
