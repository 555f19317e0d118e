"""What a supervisor is asked for, and which module each kind of process runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from node.supervisor_plan import Limits, Role
from protocol.errors import BadRequest

QUEUE_WORKERS_MAX = 64
READERS_MAX = 64

MODULES: Mapping[Role, str] = {
    Role.WRITER: "node.writer",
    Role.QUEUE: "workers.consume_queue",
    Role.INDEX: "workers.index_file",
    Role.READER: "node.reader",
}


@dataclass(frozen=True, slots=True)
class Options:
    """`pairs` are settings as `name=value`; `modules` are others only in tests."""

    root: Path
    bind: str = "tcp://127.0.0.1:9870"
    queue_workers: int = 1
    readers: int = 1
    pairs: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    version: str = ""
    http: str = ""
    """Where /metrics and the health pages are; empty: nowhere."""
    modules: Mapping[Role, str] = field(default_factory=lambda: MODULES)

    def check(self) -> None:
        """Raises BadRequest for numbers that cannot be."""
        for name, value, most in (
            ("queue-workers", self.queue_workers, QUEUE_WORKERS_MAX),
            ("readers", self.readers, READERS_MAX),
        ):
            if not 1 <= value <= most:
                raise BadRequest(f"--{name} is {value}, outside [1, {most}]")
