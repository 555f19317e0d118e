"""One staged batch on its way into the log: its state, its requests, how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from node.store.staging_files import BatchPosition, StagedBatch, StageSummary
from node.writer.staging.reading import StagedRecords
from protocol.errors import MqError


class PublicationState(Enum):
    """The states of a publication; the value is what it waits for."""

    WAITING = "its turn"
    BEGINNING = "its journal"
    RESUMING = "a look into the log"
    APPENDING = "the next turns"
    FLUSHING = "the disk"
    RECORDING = "the ledger"
    BLOCKED = "a request that repeats it"


@dataclass(slots=True)
class Waiter:
    """A request that waits for the publication's end."""

    peer: bytes
    request_id: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The good answer to a request for a publication. `already`: it was recorded before."""

    already: bool
    records: int = 0
    bytes: int = 0


Answer = Callable[[Waiter, Outcome | MqError], None]


@dataclass(slots=True)
class Publication:
    """One batch on its way."""

    batch: StagedBatch
    parts: tuple[StageSummary, ...] = ()
    final: bool = False
    state: PublicationState = PublicationState.WAITING
    begun: bool = False
    """Whether there is a journal: then it ends by itself, also after a restart."""
    source: StagedRecords | None = None
    end: int = 0
    """After its last record in the log."""
    noted: int = 0
    """The log offset at which `checkpoint`, the journal's next position, was taken."""
    checkpoint: BatchPosition | None = None
    retry_at: float = 0.0
    needed: int | None = None
    """The log offset from which on a restart looks for its records; None: not known yet."""
    error: MqError | None = None
    noticed: bool = False
    """Whether the error was written down for `status`."""
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """The answer to its waiters at the end."""
        records, size = sum(p.records for p in self.parts), sum(p.bytes for p in self.parts)
        return Outcome(False, records, size)

    def close(self) -> None:
        """Closes its open stage."""
        if self.source is not None:
            self.source.close()
