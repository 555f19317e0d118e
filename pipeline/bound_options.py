"""Where rows begin and end, from the options: `startingOffsets` and all its relatives.

Of several for one side the first of these counts, as in Spark's Kafka source: a time for all
queues, a time for each, offsets.
"""

from typing import Literal

from pipeline.bounds import EARLIEST, LATEST, ReadBound, parse_offsets, parse_times
from pipeline.errors import BadOption
from pipeline.option_values import Options, json_object, milliseconds, one_of

BOUNDS = tuple(
    f"{side}{what}"
    for side in ("starting", "ending")
    for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")
)
STRATEGY = "startingOffsetsByTimestampStrategy"

Use = Literal["batch", "stream", "any"]
"""What options are for; `any` while Spark has not said which: what either takes is taken."""


def starting_bound(options: Options, use: Use) -> ReadBound:
    """Batches begin at the earliest row by default, streams after the latest."""
    default = LATEST if use == "stream" else EARLIEST
    forbidden = LATEST if use == "batch" else None
    return _bound(options, "starting", default, forbidden)


def ending_bound(options: Options) -> ReadBound:
    """All that there is, by default."""
    return _bound(options, "ending", LATEST, EARLIEST)


def _bound(
    options: Options, side: str, default: ReadBound, forbidden: ReadBound | None
) -> ReadBound:
    time_ms = milliseconds(options, f"{side}Timestamp")
    # Who names queues one by one expects a message in each of them.
    asked = one_of(options, STRATEGY, ("error", "latest", ""), "")
    if time_ms is not None:
        return ReadBound(
            "time", time_ms=time_ms, must_exist=side == "starting" and asked == "error"
        )
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in options:
        must_exist = side == "starting" and asked != "latest"
        return ReadBound(
            "times", parse_times(name, json_object(options, name)), must_exist=must_exist
        )
    name = f"{side}Offsets"
    word = options.get(name.lower(), default.kind).strip().lower()
    if forbidden is not None and word == forbidden.kind:
        raise BadOption(f"{name} cannot be {word}: there would be no row", f"{default.kind}, JSON")
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return parse_offsets(name, json_object(options, name), forbidden)
