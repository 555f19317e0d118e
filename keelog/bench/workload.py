"""A load as a plain value, which goes into the result, and to the load processes, as JSON.

Bodies of messages have sizes as asked for, and are made before the load begins.
"""

import itertools
import random
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypedDict

from node.runtime.settings import load_settings
from protocol.errors import BadRequest
from protocol.human_text import bytes_of
from protocol.wire.frames import PAYLOAD_BYTES_MAX

KINDS = "128, 1KiB, uniform:100-2000 or lognormal:512 (the median)"
POOL_BODIES = 4096
"""Different bodies of one load process; it sends them in turn."""
POOL_BYTES = 64 << 20
_LOGNORMAL_SIGMA = 1.0
_LOGNORMAL_TIMES_MAX = 64
"""The longest body, in medians."""
Kind = Literal["send", "consume", "e2e", "mixed", "store"]
Callers = Literal["threads", "tasks", "inflight", "batches"]
ReadAs = Literal["objects", "raw"]
STAMP_BYTES = 32
"""The stamp of a body that is followed: intended and real send time, producer, number."""


class ConnectionOptions(TypedDict):
    """Options of `keelog.connect` and `keelog.aio.connect`."""

    timeout: float
    key: str | None
    server_key: str | None


class Sizes(NamedTuple):
    """How long bodies are: `kind` is fixed, uniform or lognormal; bytes."""

    kind: str
    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Sizes":
        """From `128`, `1KiB`, `uniform:100-2000`, `lognormal:512`. Raises BadRequest."""
        kind, colon, rest = text.partition(":")
        if not colon:
            size = bytes_of(text)
            return cls("fixed", size, size)
        if kind == "uniform" and rest.count("-") == 1:
            low, high = (bytes_of(part) for part in rest.split("-"))
            if low <= high:
                return cls("uniform", low, high)
        if kind == "lognormal":
            median = bytes_of(rest)
            return cls("lognormal", median, median * _LOGNORMAL_TIMES_MAX)
        raise BadRequest(f"{text!r} is no body size", f"write it as {KINDS}")

    def draw(self, dice: random.Random) -> int:
        if self.kind == "uniform":
            return dice.randint(self.low, self.high)
        if self.kind == "lognormal":
            return min(self.high, round(self.low * dice.lognormvariate(0, _LOGNORMAL_SIGMA)))
        return self.low


def make_bodies(sizes: Sizes, seed: int) -> list[bytes]:
    """Bodies of random bytes that nothing compresses, no more than fit into POOL_BYTES."""
    dice = random.Random(seed)
    noise = dice.randbytes(2 * max(sizes.high, 1))
    bodies: list[bytes] = []
    total = 0
    while len(bodies) < POOL_BODIES and total <= POOL_BYTES:
        size, start = sizes.draw(dice), dice.randrange(max(sizes.high, 1))
        bodies.append(noise[start : start + size])
        total += size
    return bodies


def batches(bodies: list[bytes], count: int) -> list[list[bytes]]:
    """The bodies in batches of `count`, each body about once."""
    turn = itertools.cycle(bodies)
    return [[next(turn) for _ in range(count)] for _ in range(max(1, len(bodies) // count))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One load. Times in seconds, sizes in bytes, rates in messages a second of all processes.

    `callers` is how producers ask: `threads` and `tasks` are `producers` callers that wait for
    each answer, `inflight` one producer in each process with `in_flight` messages without an
    answer, `batches` one with `in_flight` batches of `batch` messages.
    """

    kind: Kind = "send"
    node: str | None = None
    """Control address of a node that runs; None starts one for the load."""
    client_key: str | None = None
    """The path of the `.key_secret` to come with to `node`."""
    server_key: str | None = None
    """The public key of `node`, or a file of it."""
    directory: str | None = None
    """The folder of its store; None: a temporary one, which is removed."""
    settings: tuple[str, ...] = ()
    queue_workers: int = 1
    readers: int = 1
    callers: Callers = "threads"
    producers: int = 64
    processes: int = 1
    in_flight: int = 0
    """Of one process; 0: 16 batches or 1,024 messages."""
    batch: int = 100
    body: str = "128"
    """See `Sizes`; for `store` several with commas between."""
    topics: int = 1
    queues: int = 8
    keys: int = 0
    tags: str = ""
    acks: Literal["appended", "flushed"] = "appended"
    rate: float | None = None
    """None: as fast as it goes."""
    duration: float = 10.0
    """After the warm-up."""
    count: int | None = None
    """Messages in all, instead of `duration`; for `consume` they are stored, then read once."""
    stored: int = 1_000_000
    """The messages that `consume` reads again and again for `duration`."""
    warm_up: float = 2.0
    """Seconds at the start that the steady figures leave out."""
    consumers: int = 1
    read_as: ReadAs = "objects"
    pull_messages: int = 1000
    pull_bytes: int = 1 << 20
    timeout: float = 30.0
    kill_every: float | None = None
    percent_of_full: float | None = None
    parts: tuple[str, ...] = ("put", "batch", "walk")
    """The measurements of `store`, in this order; a walk reads the log of a batch."""
    finds: float = 100.0
    """Look-ups by key a second in `mixed`."""

    def check(self) -> None:
        """Raises BadRequest for values that make no sense."""
        load_settings(self.settings)
        if self.node is None and (self.client_key or self.server_key):
            raise BadRequest("keys are for a node that runs", "name it: --node tcp://host:7850")
        self._check_bodies()
        counted = ("producers", "processes", "batch", "topics", "queues", "consumers", "stored")
        for name in (*counted, "queue_workers", "readers", "pull_messages", "pull_bytes"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}", "it must be at least 1")
        if (self.rate is not None and self.rate <= 0) or self.in_flight < 0:
            raise BadRequest("rate and in-flight must be above 0", "leave them out")
        if self.duration <= 0 or self.warm_up < 0 or (self.count is not None and self.count < 1):
            raise BadRequest("a load needs a duration or a count above 0", "--duration 10s")
        if self.kind in ("e2e", "mixed") and (self.callers == "batches" or self.topics > 1):
            raise BadRequest("messages that are followed have one topic, and no batches")
        if self.kind == "mixed":
            self._check_mixed()

    def _check_bodies(self) -> None:
        sizes = [Sizes.parse(text) for text in self.body.split(",")]
        if len(sizes) > 1 and self.kind != "store":
            raise BadRequest(f"{self.body!r} are several sizes", "name one")
        if max(size.high for size in sizes) > PAYLOAD_BYTES_MAX:
            raise BadRequest(
                f"bodies of {self.body} fit into no request of {PAYLOAD_BYTES_MAX} bytes",
                "use smaller ones",
            )
        is_stamped = self.kind in ("e2e", "mixed")
        if is_stamped and (sizes[0].kind != "fixed" or sizes[0].low < STAMP_BYTES):
            raise BadRequest(
                f"a body of {self.body} has no room for its stamp",
                f"use a fixed size of at least {STAMP_BYTES} bytes",
            )

    def _check_mixed(self) -> None:
        share = self.percent_of_full
        if self.callers != "inflight":
            raise BadRequest("a mixed load sends with inflight: order is checked")
        if (self.rate is None) == (share is None):
            raise BadRequest("a mixed load needs a rate, or a percentage of full speed, not both")
        if share is not None and not 0 < share <= 100:
            raise BadRequest(f"{share:g} percent of full speed", "use a number from 1 to 100")

    @property
    def connection(self) -> ConnectionOptions:
        """How clients of the load connect."""
        return {"timeout": self.timeout, "key": self.client_key, "server_key": self.server_key}

    @property
    def under_way(self) -> int:
        """Requests without an answer that one process has at most."""
        return self.in_flight or (16 if self.callers == "batches" else 1024)

    @property
    def messages_at_once(self) -> int:
        """Messages of one request."""
        return self.batch if self.callers == "batches" else 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
