"""Makes a large store, fast, to measure on: the writer's own append path without its sockets.

    python -m scripts.bench.big_store DIR --records 10000000

16 topics of 8 queues, bodies of 128 bytes, TAGS (one of 8), one key and UNIQ_KEY in each message.
The records of one batch come from the product's encoder; batch by batch only the digits of both
keys move on. Store times begin at `FIRST_TIME`, with `--per-ms` records to the millisecond. The
workers' rebuild makes queues and index. `keelog store verify --deep` finds nothing wrong in it.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from keelog.progress import Advance, CommandProgress
from node.writer.appender import AppendRequest
from protocol.record.encode import NewMessage
from scripts.bench.fill import BATCH_RECORDS, DIGITS, HOST, CountedRecords, fill, ranges
from workers.rebuild import rebuild

TOPICS = 16
QUEUES = 8
TAGS = tuple(f"tag-{number}" for number in range(8))
BODY_BYTES = 128
FIRST_TIME = 1_760_000_000_000
_KEY, _UNIQUE = "order-", "C0A8000100002A9F"
_WORDS = b"the quick brown fox jumps over a lazy dog and pays for order ".split()


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


class _Requests:
    """The appends of a store, and the store time of the last one made; reports progress."""

    def __init__(self, records: int, body_bytes: int, per_ms: int, advance: Advance) -> None:
        self._records, self._batch, self._per_ms = records, _batch(body_bytes), per_ms
        self._advance = advance
        self.time = FIRST_TIME

    def __iter__(self) -> Iterator[AppendRequest]:
        for numbers in ranges(self._records):
            number = int(numbers[0])
            self.time = FIRST_TIME + number // self._per_ms
            yield self._batch.request(numbers)
            self._advance(number, self._records)


def make(root: Path, records: int, body_bytes: int = BODY_BYTES, per_ms: int = 20) -> None:
    """The store, with queues and index."""
    with CommandProgress().shown() as progress:
        requests = _Requests(records, body_bytes, per_ms, progress.meter("stored", "records"))
        fill(root, requests, clock=lambda: requests.time)
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
