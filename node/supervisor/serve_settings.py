"""What `keelog serve` is asked for beside the settings of a store: where it listens, how many
processes it has, and when it replaces one. Names and defaults of options, file and variables come
from here."""

from dataclasses import dataclass

from node.supervisor.bind import parse_bind, parse_http
from protocol.errors import BadRequest

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
