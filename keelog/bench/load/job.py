"""The work of one process of a load."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from keelog.bench.load.pace import LoadPace
from keelog.bench.load.recorder import Recorder
from keelog.bench.workload import Workload

SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class LoadJob:
    """The work of process `number` of `of` in a role; see ROLES in load_process.py."""

    role: str
    number: int
    of: int
    endpoint: str
    topics: tuple[str, ...]
    workload: Workload
    folder: str | None = None
    """A folder for its files."""
    streams: dict[str, Recorder] = field(default_factory=dict)

    def line(self) -> str:
        """As a line of JSON."""
        fields = asdict(self)
        del fields["streams"]
        return json.dumps(fields)

    @classmethod
    def parse(cls, line: str) -> "LoadJob":
        """From `line`."""
        fields: dict[str, Any] = json.loads(line)
        fields["workload"] = Workload.of(fields["workload"])
        fields["topics"] = tuple(fields["topics"])
        return cls(**fields)

    def stream(self, name: str, messages_each: int = 1) -> Recorder:
        """A new stream of figures."""
        self.streams[name] = Recorder(messages_each)
        return self.streams[name]

    def share_of(self, count: int) -> int:
        """This process's part of what all do together."""
        return (count + self.of - 1 - self.number) // self.of

    def pace(self, start_ns: int) -> LoadPace:
        """This process's part of the plan: it takes every `of`-th moment."""
        load = self.workload
        each = load.messages_at_once
        interval = each * self.of * SECOND_NS / load.rate if load.rate else 0.0
        first = start_ns + int(interval * self.number / self.of)
        if load.count is not None:
            return LoadPace(first, interval, None, -(-self.share_of(load.count) // each))
        return LoadPace(first, interval, self.end_ns(start_ns), None)

    def end_ns(self, start_ns: int) -> int:
        """When a load of some duration ends."""
        return start_ns + int((self.workload.warm_up + self.workload.duration) * SECOND_NS)

    def queues(self) -> list[tuple[str, int]]:
        """The queues that this process reads."""
        every = [(topic, queue) for topic in self.topics for queue in range(self.workload.queues)]
        return every[self.number :: self.of]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ready to begin: `work` from a moment on."""

    work: Callable[[int], None]
    generator_cpu_s_per_million: float | None = None
    """CPU seconds for a million messages that are the load's own, not the client's."""
