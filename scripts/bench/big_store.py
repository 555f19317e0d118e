"""Makes a large store, fast, to measure on: the writer's own append path without its sockets.

    python -m scripts.bench.big_store DIR --records 10000000

16 topics of 8 queues, bodies of 128 bytes, TAGS (one of 8), one key and UNIQ_KEY in each message.
The records of one batch come from the product's encoder; batch by batch only the digits of both
keys move on. Store times begin at `FIRST_TIME`, with `--per-ms` records to the millisecond. The
workers' rebuild makes queues and index. `keelog store verify --deep` finds nothing wrong in it.

Other measurements fill new stores with `fill` in the same way.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keelog.text import CommandProgress
from node.runtime import process, settings
from node.store.identity.places import create_store
from node.writer.appender import AppendRequest
from node.writer.store import WriterStore, open_writer_store
from protocol.ids import Host
from protocol.record.encode import NewMessage, encode_batch
from workers.rebuild import rebuild

BATCH_RECORDS = 4096
DIGITS = "0" * 12
"""The end of a text of `CountedRecords`."""
HOST = Host(b"\x7f\x00\x00\x01", 10911)
_FLUSH_EVERY_BYTES = 512 << 20
TOPICS = 16
QUEUES = 8
TAGS = tuple(f"tag-{number}" for number in range(8))
BODY_BYTES = 128
FIRST_TIME = 1_760_000_000_000
_KEY, _UNIQUE = "order-", "C0A8000100002A9F"
_WORDS = b"the quick brown fox jumps over a lazy dog and pays for order ".split()


def fill(
    root: Path,
    requests: Iterable[AppendRequest],
    end: float = float("inf"),
    clock: Callable[[], int] = process.now_ms,
) -> float:
    """Appends to a store, a new one where there is none, and stops it in order.

    Goes on until the requests or the log's `end` are reached. `clock`: the store time of the
    request made last. Returns how many seconds the appends took.
    """
    create_store(root)
    store = open_writer_store(root, settings.Settings(), HOST, alone=True)
    flushed, began = store.log.end, time.monotonic()
    for request in requests:
        if store.log.end >= end:
            break
        store.appender.append([request], clock())
        if request.error is not None:
            raise request.error
        store.snapshot_if_due()
        if store.log.end - flushed >= _FLUSH_EVERY_BYTES:
            flushed = _flush(store)
    seconds = time.monotonic() - began
    _flush(store)
    store.close_cleanly(workers_done=True)
    return seconds


def _flush(store: WriterStore) -> int:
    job = store.log.flush_job()
    job.run()
    store.after_flush(job.target)()
    store.flushed_to(job.target)
    return job.target


class CountedRecords:
    """A batch of records of one length, in which only digits change from use to use.

    `texts` are in each message, followed by `DIGITS`.
    """

    def __init__(self, messages: Sequence[NewMessage], texts: Sequence[str]) -> None:
        made = encode_batch(messages, crc=True)
        self.rows = np.frombuffer(bytearray(made.records), np.uint8).reshape(len(messages), -1)
        self._first = made.records[: made.sizes[0]]
        self._places = [self.place_after(text + DIGITS) - len(DIGITS) for text in texts]

    def place_after(self, text: str) -> int:
        """The end of the last such text of a record."""
        return self._first.rindex(text.encode()) + len(text)

    def request(self, numbers: NDArray[np.int64]) -> AppendRequest:
        """As many records as there are numbers, which become the digits."""
        for place in self._places:
            self.write(place, numbers, len(DIGITS))
        return AppendRequest(self.rows[: len(numbers)].tobytes(), len(numbers))

    def write(self, place: int, numbers: NDArray[np.int64], digits: int) -> None:
        """Writes a number into each record."""
        text = numbers[:, None] // 10 ** np.arange(digits - 1, -1, -1) % 10 + ord("0")
        self.rows[: len(numbers), place : place + digits] = text


def ranges(records: int) -> Iterable[NDArray[np.int64]]:
    """The numbers of all records, batch by batch."""
    for number in range(0, records, BATCH_RECORDS):
        yield np.arange(number, min(number + BATCH_RECORDS, records))


def topic_name(number: int) -> str:
    """All have the same length, so that all records have."""
    return f"topic-{number:02d}"


def _batch(body_bytes: int, seed: int = 1) -> CountedRecords:
    """Records whose keys count up."""
    draw = random.Random(seed)
    messages = [
        NewMessage(
            topic_name(draw.randrange(TOPICS)),
            b" ".join(draw.choices(_WORDS, k=body_bytes))[:body_bytes],
            draw.randrange(QUEUES),
            tags=draw.choice(TAGS),
            keys=(_KEY + DIGITS,),
            unique_key=_UNIQUE + DIGITS,
            born_timestamp=FIRST_TIME,
            born_host=HOST,
        )
        for _ in range(BATCH_RECORDS)
    ]
    return CountedRecords(messages, (_KEY, _UNIQUE))


def make(root: Path, records: int, body_bytes: int = BODY_BYTES, per_ms: int = 20) -> None:
    """The store, with queues and index."""
    batch, store_time = _batch(body_bytes), FIRST_TIME
    with CommandProgress().shown() as progress:
        advance = progress.meter("stored", "records")

        def requests() -> Iterator[AppendRequest]:
            nonlocal store_time
            for numbers in ranges(records):
                number = int(numbers[0])
                store_time = FIRST_TIME + number // per_ms
                yield batch.request(numbers)
                advance(number, records)

        fill(root, requests(), clock=lambda: store_time)
        rebuild(root, progress=progress.stage_meter())


def main() -> int:
    """0 when the store was made; 2 when something is there already."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES)
    parser.add_argument("--per-ms", type=int, default=20, help="records stored in one ms")
    args = parser.parse_args()
    if args.root.exists() and any(args.root.iterdir()):
        print(f"{args.root} is not empty", file=sys.stderr)
        return 2
    began, cpu = time.monotonic(), time.process_time()
    make(args.root, args.records, args.body_bytes, args.per_ms)
    seconds = time.monotonic() - began
    figures = {"records": args.records, "seconds": seconds, "cpu": time.process_time() - cpu}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
