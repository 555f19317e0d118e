"""What a supervisor is asked for, and which module each kind of process runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.supervisor.plan import Limits, Role
from node.supervisor.serve_settings import ServeSettings

MODULES: Mapping[Role, str] = {
    Role.WRITER: "node.writer.loop",
    Role.QUEUE: "workers.consume_queue",
    Role.INDEX: "workers.index_file",
    Role.READER: "node.reader.loop",
}


@dataclass(frozen=True, slots=True)
class Options:
    """`pairs` are settings as `name=value`; `modules` are others only in tests."""

    root: Path
    serve: ServeSettings = field(default_factory=ServeSettings)
    pairs: tuple[str, ...] = ()
    origins: Sequence[Mapping[str, str]] = ()
    """Which settings were given, and by whom: `setting`, `origin`, `where`."""
    limits: Limits = field(default_factory=Limits)
    version: str = ""
    while_pid: int | None = None
    """The node stops when this process ends."""
    modules: Mapping[Role, str] = field(default_factory=lambda: MODULES)
