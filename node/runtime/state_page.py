"""Pages of shared numbers: how far the log reaches, how far each worker and reader is.

One 4096-byte file a process slot, mapped shared. Every number is one aligned 8-byte store or load
through `memoryview.cast("q")`, which is never torn (`struct.pack_into` on a map is). One process
writes a page, anybody reads it; a page outlives its process and says who wrote it.

A page does not outlive the machine's run: after a power loss it may name log offsets that the log
no longer has, and a copy of it speaks of another log. So the last number tells in which run of the
machine, and as which file, it was made; one that does not agree counts as missing.
"""

import mmap
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from node.runtime.event_log import stderr
from node.runtime.store_paths import IrregularFile, check_held, held_open, is_in_place, open_regular
from protocol.names import KEELOG_DIR

RUN_DIR = "run"
PAGE_BYTES = 4096
PAGE_MAGIC = 0x4B45454C4F470001
"""KEELOG, layout 1; the first number of every page."""
_IDENTITY_AT = PAGE_BYTES // 8 - 1
_REFUSAL_AT, REFUSAL_BYTES = PAGE_BYTES // 2, 512
"""In the writer's page: a text in UTF-8, to its first zero."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

STARTING, RUNNING, RECOVERING, DAMAGED, STOPPING, STOPPED, READ_ONLY, DISK_FULL, NO_RESOURCES = (
    range(9)
)
STATE_NAMES = (
    *("starting", "running", "recovering", "damaged"),
    *("stopping", "stopped", "read_only", "disk_full", "no_resources"),
)
LOG_SLOT = "log"
_QUEUE_SLOT = re.compile(r"queue-(\d{1,9})-of-([1-9]\d{0,8})")
NEVER = 2**63 - 1
"""`wake_at` of a process that is awake, or does not care."""


class PageAbsent(FileNotFoundError):
    """There is no page: it is missing, being made anew, of an earlier run, or holds other bytes."""


class LogState(NamedTuple):
    """What the writer says of the log. Offsets are log offsets, exclusive ends.

    Epoch 0 means that nothing is known yet, or that the numbers are being replaced: keep what you
    knew and look again.
    """

    epoch: int
    epoch_start: int
    min_offset: int
    appended: int
    committed: int
    flushed: int
    readable: int
    pid: int
    heartbeat_ms: int
    state: int
    segment_bytes: int
    records: int
    flush_began_ms: int = 0
    """When the flush that is under way began; 0 while there is none."""
    removals: int = 0
    """The number of the note of removed topics. It is read after `readable`: a process that sees
    records which follow a removal knows of the removal."""
    wants_acknowledged: int = 0
    """The log offset of which the writer wants to be rung once followers have acknowledged it; 0
    while no request waits for them."""
    dropped_lines: int = 0
    """Lines for stderr that the process dropped because nobody read them."""
    newest_ms: int = 0
    """The store time of the newest message, as of the last heartbeat; 0 without one."""


class WorkerState(NamedTuple):
    """What a worker or reader says of itself.

    `dispatched`: queues or index hold everything below; `saved`: and it is synced and in the
    progress file. `damaged_at` is the log offset where it stopped, or -1. `growths` counts the
    turns of a queue worker in which queues have grown. A worker or reader that sleeps wants to be
    rung when the log reaches `wake_at`, a reader that `listens` when queues grow. Of the process
    that serves followers, `dispatched` is up to where enough of them have acknowledged the log, and
    `held` how many are connected.
    """

    epoch: int
    dispatched: int
    saved: int
    pid: int
    heartbeat_ms: int
    state: int
    records: int
    damaged_at: int
    requests: int
    held: int
    growths: int
    wake_at: int
    listens: int
    dropped_lines: int = 0


def run_dir(root: Path) -> Path:
    """Where pages and the sockets of wake-ups are."""
    return root / KEELOG_DIR / RUN_DIR


def page_path(root: Path, slot: str) -> Path:
    """The page of a process slot: `log`, `queue-0-of-2`, `index`, `reader-0`."""
    return run_dir(root) / f"{slot}.page"


def queue_slot(shard: int, shard_count: int) -> str:
    return f"queue-{shard}-of-{shard_count}"


def shard_of_slot(slot: str) -> tuple[int, int] | None:
    """Number and count of a queue worker's slot; None for any other."""
    found = _QUEUE_SLOT.fullmatch(slot)
    return None if found is None else (int(found[1]), int(found[2]))


def visible_end(log: LogState, worker: WorkerState) -> int:
    """Up to where a queue worker's units may be believed: what it dispatched, and no further than
    the current epoch's start while it has not noticed the epoch."""
    if worker.epoch == log.epoch:
        return min(worker.dispatched, log.readable)
    return min(worker.dispatched, log.epoch_start)


class _Page:
    """A mapped page whose numbers follow its magic one."""

    fields: Sequence[str]
    places: Mapping[str, int]
    """Where each number stands in the page."""

    def __init__(self, path: Path, writable: bool) -> None:
        self.path = path
        self._writable = writable
        if writable:
            check_held()
        try:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
        except IrregularFile as error:
            if writable:
                raise
            raise PageAbsent(str(error)) from None
        with held_open(descriptor):
            if writable and os.fstat(descriptor).st_size != PAGE_BYTES:
                # A block after every byte: a store into a hole of a full disk ends the process.
                os.pwrite(descriptor, bytes(PAGE_BYTES), 0)
            status = os.fstat(descriptor)
            if status.st_size != PAGE_BYTES:
                raise PageAbsent(f"{path} is not ready")
            self._identity = _identity(status)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, PAGE_BYTES, access=access)
        self.numbers = memoryview(self._map).cast("q")
        """The magic one and those of `fields`, as they are now: a look costs a third of a call."""
        self.fields_end = 1 + len(self.fields)
        self._beaten_ms = 0
        if not writable:
            try:
                self._check()
            except PageAbsent:
                self.close()
                raise

    @property
    def _is_of_now(self) -> bool:
        return self.numbers[0] == PAGE_MAGIC and self.numbers[_IDENTITY_AT] == self._identity

    def _check(self) -> None:
        """Raises PageAbsent for what this page's owner did not make: its numbers say nothing."""
        # As `_is_of_now`, without its call: each look at a page comes here.
        numbers = self.numbers
        if numbers[0] != PAGE_MAGIC or numbers[_IDENTITY_AT] != self._identity:
            raise PageAbsent(f"{self.path} is of an earlier run of this machine, or of others")

    @property
    def is_replaced(self) -> bool:
        """Whether the page's name stands for another file by now, or for none.

        After a move of the whole store the name says nothing: the page is where the store is.
        """
        return self._named() != self._identity and is_in_place()

    @property
    def has_successor(self) -> bool:
        """Whether the page's name stands for another file: what is mapped tells nothing more."""
        return self._named() not in (None, self._identity)

    def _named(self) -> int | None:
        """The identity of the file of the page's name; None where there is none."""
        try:
            return _identity(self.path.stat())
        except FileNotFoundError:
            return None

    def beat(self, now_ms: int) -> None:
        """Shows that the owner lives.

        Raises PageAbsent when somebody wrote over the page or took its name: nobody could see how
        far the owner is, so its process must end and make the page anew. An older copy of the page
        itself shows by its heartbeat.
        """
        self._check()
        if self.numbers[self.places["heartbeat_ms"]] != self._beaten_ms:
            raise PageAbsent(f"{self.path} holds what its process did not write")
        if self.is_replaced:
            raise PageAbsent(f"{self.path} was removed, or is another file")
        self._beaten_ms = now_ms
        self.publish(heartbeat_ms=now_ms, dropped_lines=stderr.dropped)

    def publish(self, **numbers: int) -> None:
        """Stores some of the numbers, in the order given."""
        for name, value in numbers.items():
            self.numbers[self.places[name]] = value

    def _begin(self) -> None:
        """Keeps a predecessor's numbers, so that readers go on while this process starts."""
        if not self._is_of_now:
            self.numbers[_IDENTITY_AT] = 0
            for position in range(1, 1 + len(self.fields)):
                self.numbers[position] = 0
            self.numbers[0] = PAGE_MAGIC
            self.numbers[_IDENTITY_AT] = self._identity
        self._beaten_ms = self.numbers[self.places["heartbeat_ms"]]
        self.publish(pid=os.getpid(), state=STARTING)

    def begin_epoch(self, epoch: int, **numbers: int) -> None:
        """Replaces numbers that belong together: epoch 0 while they change, then the new one."""
        self.publish(epoch=0, **numbers)
        self.publish(epoch=epoch)

    def _values(self) -> list[int]:
        """All numbers, from one epoch: read, and read again until the epoch did not move.

        Raises PageAbsent when somebody wrote over the page since it was opened.
        """
        numbers, fields_end = self.numbers, self.fields_end
        while True:
            self._check()
            epoch = numbers[1]
            values = numbers[1:fields_end].tolist()
            if numbers[1] == epoch == values[0]:
                return values

    def close(self) -> None:
        """Gives the mapping back; the file stays."""
        self.numbers.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _places(fields: Sequence[str]) -> Mapping[str, int]:
    return {name: 1 + number for number, name in enumerate(fields)}


@cache
def _boot_id() -> bytes:
    return BOOT_ID.read_bytes()


def _identity(status: os.stat_result) -> int:
    """Never 0: of this file, in this run of the machine."""
    file = f"{status.st_dev} {status.st_ino}".encode()
    return 1 << 62 | zlib.crc32(_boot_id()) << 30 | zlib.crc32(file) >> 2


class LogPage(_Page):
    """The writer's page."""

    fields = LogState._fields
    places = _places(fields)

    @classmethod
    def create(cls, root: Path) -> "LogPage":
        """For the writer: its predecessor's numbers, if there was one, and its own pid."""
        page = cls(page_path(root, LOG_SLOT), writable=True)
        page._begin()
        page.publish(flush_began_ms=0, wants_acknowledged=0)
        return page

    @classmethod
    def open(cls, root: Path) -> "LogPage":
        """For everybody else. Raises FileNotFoundError while no writer has run."""
        return cls(page_path(root, LOG_SLOT), writable=False)

    @property
    def flushed(self) -> int:
        """This number alone, as it stands now."""
        return self.numbers[_FLUSHED]

    @property
    def wants_acknowledged(self) -> int:
        """As `flushed`."""
        return self.numbers[_WANTS_ACKNOWLEDGED]

    @property
    def refusal(self) -> str:
        """Why appends are refused, in the states DISK_FULL and NO_RESOURCES."""
        text = self.numbers.cast("B")[_REFUSAL_AT : _REFUSAL_AT + REFUSAL_BYTES].tobytes()
        return text.partition(b"\0")[0].decode(errors="replace")

    def publish_refusal(self, state: int, reason: str) -> None:
        """Publishes such a state, and why; a reason may be cut."""
        text = reason.encode(errors="replace")[: REFUSAL_BYTES - 1]
        place = self.numbers.cast("B")[_REFUSAL_AT : _REFUSAL_AT + REFUSAL_BYTES]
        place[:] = text.ljust(REFUSAL_BYTES, b"\0")
        self.publish(state=state)

    def show_append(self, records: int, end: int) -> None:
        """An append that is readable at once: as `publish` of the four numbers, for each group."""
        numbers = self.numbers
        numbers[_RECORDS] = records
        numbers[_APPENDED] = numbers[_COMMITTED] = numbers[_READABLE] = end

    def read(self) -> LogState:
        """The numbers, all from one epoch."""
        return LogState(*self._values())


class WorkerPage(_Page):
    """The page of a queue worker, the index worker or a reader."""

    fields = WorkerState._fields
    places = _places(fields)

    @classmethod
    def create(cls, root: Path, slot: str) -> "WorkerPage":
        """For its process: its predecessor's numbers, if there was one, and its own pid."""
        page = cls(page_path(root, slot), writable=True)
        page._begin()
        page.publish(damaged_at=-1, wake_at=NEVER, listens=0)
        return page

    @classmethod
    def open(cls, root: Path, slot: str) -> "WorkerPage":
        """For everybody else. Raises FileNotFoundError while the slot never ran."""
        return cls(page_path(root, slot), writable=False)

    @property
    def wake_at(self) -> int:
        """This number alone, as it stands now: it belongs to no epoch."""
        return self.numbers[WAKE_AT]

    @property
    def listens(self) -> int:
        """As `wake_at`."""
        return self.numbers[_LISTENS]

    @property
    def growths(self) -> int:
        """As `wake_at`."""
        return self.numbers[_GROWTHS]

    def read(self) -> WorkerState:
        """The numbers, all from one epoch."""
        return WorkerState(*self._values())


class StatePages:
    """The pages of the writer and the queue workers, for who follows a node.

    Each is mapped once, when it is there; all who ask look at the same mapping.
    """

    def __init__(self, root: Path, shards: int) -> None:
        self._root = root
        self._log: LogPage | None = None
        self._workers: list[WorkerPage | None] = [None] * shards
        self._all: list[LogPage | WorkerPage] = []
        """All pages, once all are mapped."""

    @property
    def log(self) -> LogPage | None:
        """The writer's; None while there is none."""
        if self._log is None:
            with suppress(FileNotFoundError):
                self._log = LogPage.open(self._root)
        return self._log

    def worker(self, shard: int) -> WorkerPage | None:
        """A queue worker's; None while there is none."""
        page = self._workers[shard]
        if page is None:
            with suppress(FileNotFoundError):
                page = WorkerPage.open(self._root, queue_slot(shard, len(self._workers)))
                self._workers[shard] = page
        return page

    def epoch(self) -> int:
        """The log's epoch, 0 while it is not known."""
        log = self._log or self.log
        return 0 if log is None else log.numbers[_EPOCH]

    def readable(self) -> int:
        """Up to where the log may be read; 0 while it is not known."""
        return 0 if self._log is None else self._log.numbers[_READABLE]

    def growths(self) -> list[int]:
        """How often the queues of each queue worker have grown."""
        pages = map(self.worker, range(len(self._workers)))
        return [0 if page is None else page.growths for page in pages]

    def raw(self) -> bytes | None:
        """What all pages say now, perhaps of two epochs: equal ones say the same. None while one
        is not mapped."""
        if not self._all:
            mapped = self._mapped()
            if len(mapped) <= len(self._workers):
                return None
            self._all = mapped
        return b"".join([page.numbers[1 : page.fields_end].tobytes() for page in self._all])

    def _mapped(self) -> list[LogPage | WorkerPage]:
        return [page for page in (self._log, *self._workers) if page is not None]

    def are_replaced(self) -> bool:
        """Whether another file has the name of one that is mapped here."""
        return any(page.has_successor for page in self._mapped())

    def are_gone(self) -> bool:
        """As `are_replaced`, or no file has it: a node with fewer or more workers removes some."""
        return any(page.is_replaced for page in self._mapped())

    def close(self) -> None:
        for page in self._mapped():
            page.close()
        self._log, self._workers, self._all = None, [None] * len(self._workers), []


def read_log(root: Path) -> LogState | None:
    """The writer's page; None while there is none to believe."""
    with suppress(FileNotFoundError), LogPage.open(root) as page:
        state = page.read()
        return state if state.epoch else None
    return None


_EPOCH, _RECORDS, _APPENDED, _COMMITTED, _READABLE = (
    LogPage.places[name] for name in ("epoch", "records", "appended", "committed", "readable")
)
_FLUSHED, _WANTS_ACKNOWLEDGED = (LogPage.places[name] for name in ("flushed", "wants_acknowledged"))
WAKE_AT, _LISTENS, _GROWTHS = (
    WorkerPage.places[name] for name in ("wake_at", "listens", "growths")
)
