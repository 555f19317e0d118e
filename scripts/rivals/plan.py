"""The plan of a comparison with RocketMQ: its loads, the rows of its table, the order of its turns.

A load is run in turns, one side after the other; a row is one figure of a load. Loads that share a
broker are a group. A group starts its sides, then each load is prepared on both, warmed up on each
(discarded), and run in rounds: A B A B.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Figures = dict[str, Any]
Kind = Literal["send", "end_to_end", "consume", "find", "dispatch", "alone", "restart"]
OURS, THEIRS = "ours", "rocketmq"
CRC_OFF, OBJECTS, AUTO_BATCH = "ours_crc_off", "ours_objects", "rocketmq_auto_batch"
BOTH = (THEIRS, OURS)
WITH_CRC_OFF = (THEIRS, OURS, CRC_OFF)
RATES_WARM_UP_S = 6.0
"""RocketMQ's producers are steady after 5-6 s; its consumers gain for longer."""
READS_WARM_UP_S, READS_WARM_UP_MAX = 25.0, 8
"""For so long RocketMQ's consumers become faster; and the turns that are discarded at most."""
SIDE_COLUMN_ROUNDS_MAX = 3
"""Of sides beside those whose ratios decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load. Sizes in bytes; `messages` are what is stored before it is read.

    `batch` > 1: `in_flight` batches under way. `in_flight` > 0 alone: messages without an answer.
    Else `callers` wait for each answer. `rounds_max` bounds rounds that take long.
    """

    name: str
    kind: Kind
    title: str
    sides: tuple[str, ...] = BOTH
    sync: bool = False
    body: int = 128
    batch: int = 1
    in_flight: int = 0
    callers: int = 1
    rate: int = 1000
    messages: int = 0
    gib: float = 0.0
    rounds_max: int = 100
    turn_s: float | None = None
    """About how long a turn of a read takes; None: as `--seconds` says."""


class TableRow(NamedTuple):
    """One line of the table: a figure of a load, of `side` beside RocketMQ."""

    title: str
    load: str
    figure: str
    unit: str
    side: str = OURS


LOADS = (
    Load(name="send_batches", kind="send", title="batches of 100 x 128 B, 16 in flight",
         sides=WITH_CRC_OFF, batch=100, in_flight=16),
    Load(name="send_batches_1k", kind="send", title="batches of 100 x 1 KiB, 16 in flight",
         sides=WITH_CRC_OFF, batch=100, in_flight=16, body=1024),
    Load(name="send_1", kind="send", title="1 caller that waits, 128 B"),
    Load(name="send_64", kind="send", title="64 callers that wait, 128 B", sides=WITH_CRC_OFF,
         callers=64),
    Load(name="in_flight", kind="send", title="one producer, 1,024 in flight, 128 B",
         sides=(*WITH_CRC_OFF, AUTO_BATCH), in_flight=1024),
    Load(name="end_to_end", kind="end_to_end", title="1,000/s to a long-polling consumer"),
    Load(name="consume", kind="consume", title="5 M x 128 B", messages=5_000_000, turn_s=6,
         sides=(THEIRS, OURS, OBJECTS)),
    Load(name="consume_1k", kind="consume", title="1 M x 1 KiB", messages=1_000_000, body=1024,
         turn_s=3),
    Load(name="find", kind="find", title="by key, 1 M keys", messages=1_000_000, turn_s=2),
    Load(name="sync_64", kind="send", title="SYNC_FLUSH, 64 callers that wait, 128 B", sync=True,
         callers=64),
    Load(name="sync_batches", kind="send", title="SYNC_FLUSH, batches of 100 x 128 B",
         sides=WITH_CRC_OFF, sync=True, batch=100, in_flight=16),
    Load(name="dispatch", kind="dispatch", title="5 M records, 1 key each", messages=5_000_000),
    Load(name="alone", kind="alone", title="store alone: single puts, then batches of 100, 128 B",
         batch=100),
    Load(name="restart_1g", kind="restart", title="1,000 queues, 1 GiB, after kill -9", gib=1,
         body=1024),
    Load(name="restart_8g", kind="restart", title="1,000 queues, 8 GiB, after kill -9", gib=8,
         body=1024, rounds_max=2),
)  # fmt: skip

ROWS = (
    TableRow("send, batches of 100 x 128 B", "send_batches", "per_s", "/s"),
    TableRow("send, batches of 100 x 1 KiB", "send_batches_1k", "per_s", "/s"),
    TableRow("one by one, 1 caller, 128 B", "send_1", "per_s", "/s"),
    TableRow("one by one, 64 callers, 128 B", "send_64", "per_s", "/s"),
    TableRow("producer with 1,024 in flight, 128 B", "in_flight", "per_s", "/s"),
    TableRow("SYNC_FLUSH, 64 callers, 128 B", "sync_64", "per_s", "/s"),
    TableRow("SYNC_FLUSH, batches of 100 x 128 B", "sync_batches", "per_s", "/s"),
    TableRow("end to end at 1,000/s, p50", "end_to_end", "p50_us", "us"),
    TableRow("end to end at 1,000/s, p99", "end_to_end", "p99_us", "us"),
    TableRow("consume 5 M x 128 B, raw", "consume", "per_s", "/s"),
    TableRow("the same, as message objects", "consume", "per_s", "/s", OBJECTS),
    TableRow("consume 1 M x 1 KiB, raw", "consume_1k", "per_s", "/s"),
    TableRow("dispatch into queues and index, 5 M", "dispatch", "per_s", "/s"),
    TableRow("store alone, single puts", "alone", "single_per_s", "/s"),
    TableRow("store alone, batches of 100", "alone", "batch_per_s", "/s"),
    TableRow("look-up by key, p50", "find", "p50_us", "us"),
    TableRow("look-up by key, p99", "find", "p99_us", "us"),
    TableRow("restart to first send, 1 GiB", "restart_1g", "seconds", "s"),
    TableRow("restart to first send, 8 GiB", "restart_8g", "seconds", "s"),
    TableRow("memory under load, server processes", "*", "pss_mib", "MiB"),
    TableRow("CPU s per million, batches, both sides", "send_batches", "cpu_s_per_million", "s"),
)


def scaled(load: Load, scale: float) -> Load:
    """A load that reads or starts with a part of what it should: for a quick look."""
    return replace(load, messages=round(load.messages * scale), gib=load.gib * scale)


def chosen(names: str) -> tuple[Load, ...]:
    """The loads of a list like `send_batches,consume`; all for an empty one.

    A name may be a beginning: `send` is all of `send_…`. Raises ValueError for one that fits none.
    """
    if not names:
        return LOADS
    found: list[Load] = []
    for name in names.split(","):
        exact = [load for load in LOADS if load.name == name]
        fits = exact or [load for load in LOADS if load.name.startswith(name)]
        if not fits:
            known = ", ".join(load.name for load in LOADS)
            raise ValueError(f"no row is called {name!r}; there are {known}")
        found += [load for load in fits if load not in found]
    return tuple(load for load in LOADS if load in found)


class Side:
    """One side of a comparison in a group of loads; by itself nothing runs between its turns."""

    def start(self) -> None:
        """Starts what all loads of the group share."""

    def prepare(self, load: Load) -> None:
        """Prepares a load for its first turn."""

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """One turn; everything is dispatched when this returns."""
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Its processes in the order in which they may be stopped: clients before servers."""
        return []

    def wake(self) -> None:
        """A few messages, after its processes were stopped."""

    def close(self) -> None:
        """Ends it and removes what it stored."""


def group_of(load: Load) -> str:
    """The name of a load's group."""
    if load.kind in ("dispatch", "alone"):
        return "in process"
    if load.kind == "restart":
        return load.name
    return "SYNC_FLUSH" if load.sync else "ASYNC_FLUSH"


def groups(loads: Sequence[Load]) -> dict[str, list[Load]]:
    """Loads that share what runs on each side, by the group's name, in the order of the first."""
    found: dict[str, list[Load]] = {}
    for load in loads:
        found.setdefault(group_of(load), []).append(load)
    return found


def sides_of(load: Load, only: str = "") -> list[str]:
    """The sides that run. `only`: `ours` or `rocketmq`, whose variants go with it."""
    return [side for side in load.sides if side.startswith(only)]


def rounds_of(load: Load, rounds: int, side: str = OURS) -> int:
    """How many rounds a side of a load gets."""
    aside = side in (CRC_OFF, AUTO_BATCH)
    return min(rounds, load.rounds_max, SIDE_COLUMN_ROUNDS_MAX if aside else rounds)


def warm_ups(load: Load, side: str, seconds: float) -> list[float]:
    """Seconds of the turns that are discarded before the first round."""
    java = side.startswith(THEIRS)
    if load.kind == "restart":
        return []
    if load.kind == "dispatch":
        return [seconds] if java else []
    if load.kind in ("consume", "find"):
        turns = math.ceil(READS_WARM_UP_S / (load.turn_s or seconds))
        return [seconds] * (min(turns, READS_WARM_UP_MAX) if java else 1)
    return [RATES_WARM_UP_S if java else 1.0]


def plan_text(loads: Sequence[Load], rounds: int, only: str = "") -> str:
    """The loads that will be run."""
    lines = []
    for name, group in groups(loads).items():
        lines.append(f"{name}:")
        for load in group:
            sides = ", ".join(sides_of(load, only))
            lines.append(
                f"  {load.name:16} {load.title}: {rounds_of(load, rounds)} rounds of {sides}"
            )
    return "\n".join(lines)
