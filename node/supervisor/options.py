"""What a supervisor is asked for: by `keelog serve`, beside the settings of a store, and by tests.

Names and defaults of options, of a settings file and of variables come from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.supervisor.bind import parse_bind, parse_http
from node.supervisor.plan import ChildRole, RestartLimits
from protocol.errors import BadRequest
from protocol.modules import module_name

SERVE = "serve"
"""The table of a settings file, and the word before a name: `-X serve.readers=2`."""
QUEUE_WORKERS_MAX = 64
READERS_MAX = 64


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Checked when it is made: BadRequest for what cannot be."""

    bind: str = "tcp://127.0.0.1:9870"
    """The control socket; the writer listens one port above, the readers above it."""
    queue_workers: int = 1
    readers: int = 1
    http: str = ""
    """Where /metrics and the health pages are; empty: nowhere."""
    restart_limit: int = 5
    """A process that ends so often within a minute is given up; 0: never."""

    def __post_init__(self) -> None:
        parse_bind(self.bind)
        parse_http(self.http)
        for name, value, most in (
            ("queue_workers", self.queue_workers, QUEUE_WORKERS_MAX),
            ("readers", self.readers, READERS_MAX),
        ):
            if not 1 <= value <= most:
                raise BadRequest(f"{name} is {value}, outside [1, {most}]")
        if self.restart_limit < 0:
            raise BadRequest(f"restart_limit is {self.restart_limit}", "0 is never, 5 is usual")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node watches its processes. Checked when it is made: BadRequest for what cannot be."""

    silence_limit_s: int = 10
    """A process that gave no sign of life for so long is killed, and started again."""

    def __post_init__(self) -> None:
        if self.silence_limit_s < 1:
            raise BadRequest(
                f"silence_limit_s is {self.silence_limit_s}", "1 s at least, 10 are usual"
            )


MODULES: Mapping[ChildRole, str] = {
    ChildRole.WRITER: module_name("node.writer.loop"),
    ChildRole.QUEUE: module_name("workers.consume_queue"),
    ChildRole.INDEX: module_name("workers.index_file"),
    ChildRole.READER: module_name("node.reader.loop"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """`pairs` are settings as `name=value`; `modules` are others only in tests."""

    root: Path
    serve: ServeSettings = field(default_factory=ServeSettings)
    pairs: tuple[str, ...] = ()
    origins: Sequence[Mapping[str, str]] = ()
    """Which settings were given, and by whom: `setting`, `origin`, `where`."""
    limits: RestartLimits = field(default_factory=RestartLimits)
    version: str = ""
    while_pid: int | None = None
    """The node stops when this process ends."""
    modules: Mapping[ChildRole, str] = field(default_factory=lambda: MODULES)
