"""The life of a node's processes: their one start, their loop, and an end whatever happens.

`run_process` puts the pieces into their order: title, readiness, signals, exit codes. Signal
handlers only note the signal; the loop that owns the work looks at the note.

`met_damage` gathers the damaged places that this process meets, for its reports to the supervisor.
Every read notes them there, also one that goes on as if nothing were there.

After an unexpected error a process must not live on: its other threads would keep it in the process
table while it serves nobody, and the supervisor would not start another one.
"""

import argparse
import ctypes
import errno
import fcntl
import gc
import json
import logging
import os
import platform
import resource
import select
import signal
import struct
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn, TypeGuard

from node.runtime import shortage
from node.runtime.disk import DISK_FULL, NO_RESOURCES
from node.runtime.event_log import LAST_WORDS_S, fields, log_to_stderr, obey_log_signals, stderr
from node.runtime.locks import FileLock
from node.runtime.settings import Settings, load_settings
from node.runtime.state_page import PageAbsent, WorkerPage, run_dir
from node.runtime.store_paths import IrregularFile, check_held, hold_store
from protocol import errors
from protocol.human_text import one_line
from protocol.names import COMMIT_LOG_DIR, LOCK_FILE

log = logging.getLogger("keelog.process")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGED = 5
EXIT_LOCKED = 6
EXIT_MOVED = 66
EXIT_UNEXPECTED = 70
EXIT_NO_RESOURCES = 71
EXIT_DISK_ERROR = 74
EXIT_DISK_FULL = 75
"""Five of a child to its supervisor, as sysexits.h has them (EX_NOINPUT, EX_SOFTWARE, EX_OSERR,
EX_IOERR, EX_TEMPFAIL)."""
WAITED_OUT = frozenset({EXIT_DISK_FULL, EXIT_NO_RESOURCES})
"""Exit codes after which the same start may succeed later."""
DO_NOT_RESTART = frozenset({EXIT_USAGE, EXIT_DAMAGED, EXIT_LOCKED, EXIT_MOVED})
"""Exit codes after which starting again cannot help."""

LOCK_WAIT_S = 2.0
"""How long a process waits for the end of the one before it in its slot."""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Of the one heap of the C library."""

_MMAP_BYTES_MIN = 32 * 1024 * 1024
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_TITLE_BYTES_MAX = 15
_LOOK_AT_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
SHORT_SLICE_NS = 100_000
"""The shortest that Linux grants."""
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""Of `sched_setattr`: size, policy, flags, nice, priority, runtime, deadline, period."""
_SCHED_NORMAL = 0
_SCHED_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""The numbers of `sched_setattr` and `sched_getattr`: few C libraries have functions for them."""
_LAST_WORDS_CHARS_MAX = 1000
_REPORTS_BYTES_MAX = 1024
"""Reports that may be left out are while more waits in the pipe."""
_FILE_CHARS_MAX = 320
_FOUND_CHARS_MAX = 200
"""As JSON both take less than 4 KiB, the longest line that a supervisor takes."""

OOM_WRITER, OOM_WORKER, OOM_READER = 100, 300, 400
"""Added to `oom_score_adj`: short of memory the kernel ends readers first, the supervisor last."""
_OOM_SCORE_MAX = 1_000

DAMAGED_PLACES_MAX = 64
"""Places that wait for the next report; of further ones only the number of meetings is kept."""
REPORT_S = 0.5
"""The time between reports: clients may meet the same place a thousand times in a second."""

SAID_IN_WORDS = DISK_FULL | NO_RESOURCES | {errno.EIO, errno.EROFS}
"""Errors of the disk, and shortages: three lines are enough, without a traceback."""


@dataclass(slots=True)
class ChildProcess:
    """One process of a node, as `run_process` starts and ends it."""

    slot: str
    """Its name in log lines: `writer`, `reader-0`, `queue-0-of-2`."""
    what: str
    """The first line of its error, `{}` for the store: `the writer of {} cannot start`. Change it
    once it has."""
    options: argparse.Namespace
    """As `child_parser` reads them."""
    oom_points: int
    title: str = ""
    """Its name in `ps -o comm`, where it is not `keelog-` and the slot."""
    foreseen: tuple[type[errors.MqError], ...] = ()
    """Errors of ours that may end it after its start, with their own exit codes."""
    is_of_node: bool = True
    """Whether the store is that of a running node; else the process takes its lock itself."""
    serves_clients: bool = False
    """Whether clients wait for what it does next."""
    is_ready: bool = False
    root: Path = field(init=False)
    """The store. Disk errors that name no file name it."""

    def __post_init__(self) -> None:
        self.root = self.options.dir.resolve()
        self.what = self.what.replace("{}", str(self.root))
        self.title = self.title or f"keelog-{self.slot}"

    @property
    def ready_fd(self) -> int | None:
        """The pipe to the supervisor; None where a person started the process."""
        found: int | None = self.options.ready_fd
        return found

    def report_ready(self, endpoint: str = "") -> None:
        """Reports that work is accepted. From now on an error of ours is a bug, unless foreseen."""
        self.is_ready = True
        report_ready(self.ready_fd, endpoint)


class StopFlag:
    """Set by SIGTERM or SIGINT; `fd` becomes readable then, for polling."""

    def __init__(self) -> None:
        """Raises RefusedError where the system has no eventfd: ZeroMQ aborts without one."""
        self.is_set = False
        try:
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:
                raise
            raise errors.RefusedError(
                f"the system refuses the call eventfd (Linux 2.6.27): {error.strerror}",
                "allow it in the filter of system calls (seccomp, SystemCallFilter)",
            ) from None

    def set(self) -> None:
        """Notes the wish to stop."""
        self.is_set = True
        os.eventfd_write(self.fd, 1)


Body = Callable[[ChildProcess, Settings, StopFlag], int | None]
"""What a process does until the flag is set. It returns an exit code; None: all is well."""


def run_process(child: ChildProcess, body: Body) -> int:
    """Starts a child, then runs `body`; returns its exit code.

    The start checks the limit of open files, reads the settings and holds the store, in this
    order. An error that was not foreseen, in `body` or in a thread, ends the process here: it is
    logged with its traceback, and the exit code is EXIT_UNEXPECTED.
    """
    stop = begin_process(child.title, child.slot)
    keep_freed_memory()
    if child.ready_fd is not None:
        obey_log_signals()
        met_damage.report_to(child.root, partial(report_damage, child.ready_fd))
        die_with_parent(child.ready_fd)
        offer_as_victim(child.oom_points)
    if child.serves_clients:
        take_short_slices()
    threading.excepthook = lambda caught: _end(child, caught.exc_value)
    try:
        if child.is_of_node:
            shortage.check_file_limit()
            shortage.check_task_limit(shortage.TASKS_OF_CHILD, "each process of this node")
        settings = load_settings(child.options.settings)
        if child.is_of_node:
            hold_store(child.root, child.options.held)
        return body(child, settings, stop) or EXIT_OK
    except BaseException as caught:  # noqa: BLE001 (whatever it is, it ends the process)
        error = shortage.in_our_words(caught)
        if isinstance(error, errors.MqError | OSError) and not child.is_ready:
            return end_badly(child.what, error, str(child.root), child.ready_fd)
        _end(child, error)


def begin_process(title: str, slot: str) -> StopFlag:
    """Does what the supervisor and its children begin with; returns the flag of SIGTERM, SIGINT."""
    set_title(title)
    raise_file_limit()
    log_to_stderr(slot)
    return install_stop_signals()


@contextmanager
def take_place(root: Path, slot: str) -> Iterator[WorkerPage]:
    """The slot of a process beside the writer, which one process has at a time: its lock is held,
    its page is there, and `keelog/run` is the current folder. Raises NotAStore, StoreLocked."""
    check_created(root)
    os.chdir(run_dir(root))
    path = run_dir(root) / f"{slot}.lock"
    lock = FileLock.take(path, record=False, wait_s=LOCK_WAIT_S)
    with WorkerPage.create(root, slot) as page:
        yield page
    lock.release()


def check_created(root: Path) -> None:
    """Raises NotAStore, which names what is missing, unless `keelog serve` made the store."""
    for path in (root, root / LOCK_FILE, root / COMMIT_LOG_DIR, run_dir(root)):
        if not path.exists():
            raise errors.NotAStore(
                f"{path} is not there, and only keelog serve makes it",
                "check the path; keelog serve DIR makes a new store, or takes over a broker's",
            )


def child_parser(module: str, text: str | None) -> argparse.ArgumentParser:
    """The options of every child of a supervisor."""
    parser = argparse.ArgumentParser(f"python -m {module}", description=text)
    parser.add_argument("dir", metavar="DIR", type=Path, help="the store")
    parser.add_argument("-X", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--held", default="", help="device and inode of the store and its lock")
    return parser


def _end(child: ChildProcess, error: BaseException | None) -> NoReturn:
    """Ends the process at once, whatever its other threads do, even when memory is short."""
    code, error = EXIT_UNEXPECTED, shortage.in_our_words(error)
    try:
        if isinstance(error, PageAbsent):
            code = EXIT_FAILED
            log.error(
                "state page lost: the process ends, the next makes it", extra=fields(why=error)
            )
            report_end(child.ready_fd, f"its state page is lost: {error}")
        elif _is_in_words(error, child):
            code = end_badly(child.what, error, str(child.root), child.ready_fd)
        else:
            _log_traceback(error)
            report_end(child.ready_fd, unexpected(error))
    finally:
        os._exit(code)


def _is_in_words(
    error: BaseException | None, child: ChildProcess
) -> TypeGuard[errors.MqError | OSError]:
    """Whether three lines report an error: of the system, a shortage, a moved store, something
    else in the place of an own file, or foreseen.

    For errors of the system that are not the disk's, it logs the traceback first.
    """
    if isinstance(error, OSError):
        if error.errno is not None and error.errno not in SAID_IN_WORDS:
            _log_traceback(error)
        return error.errno is not None
    is_foreseen = isinstance(error, (errors.StoreMoved, IrregularFile, *child.foreseen))
    return is_foreseen or shortage.is_shortage(error)


def unexpected(error: BaseException | None) -> str:
    """The cause of an unexpected error, as status and health show it."""
    text = "".join(traceback.format_exception_only(error)).strip() if error else "an unknown error"
    return f"an unexpected error, its traceback is in the log: {text}"


def _log_traceback(error: BaseException | None) -> None:
    thread = threading.current_thread().name
    details = fields(error=type(error).__name__, thread=thread)
    log.critical("an unexpected error ends the process", exc_info=error, extra=details)


def leave(code: int) -> NoReturn:
    """Ends a process of a node with the exit code of its `main`."""
    ignore_stop_signals()
    sys.exit(code)


def install_stop_signals() -> StopFlag:
    """From now on SIGTERM and SIGINT only set the flag."""
    flag = StopFlag()

    def note(_number: int, _frame: FrameType | None) -> None:
        flag.set()

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return flag


def ignore_stop_signals() -> None:
    """From now on SIGTERM and SIGINT change nothing: the exit code is decided.

    At its end Python replaces handlers by the defaults, and a signal would then become the exit
    code. Ignored signals stay ignored.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def exit_code(error: errors.MqError) -> int:
    """The exit code by which a supervisor decides what to do after an error."""
    if shortage.is_disk_full(error):
        return EXIT_DISK_FULL
    if shortage.lacks_resources(error):
        return EXIT_NO_RESOURCES
    if isinstance(error, errors.StoreLocked):
        return EXIT_LOCKED
    if isinstance(error, errors.StoreMoved):
        return EXIT_MOVED
    if isinstance(error, errors.CorruptError):
        return EXIT_DAMAGED
    if isinstance(error, errors.BadRequest | errors.StoreError):
        return EXIT_USAGE
    return EXIT_FAILED


def end_badly(
    what: str, error: errors.MqError | OSError, place: str, descriptor: int | None
) -> int:
    """Reports to people and to the supervisor why a process ends; returns its exit code.

    A child that lacks room or descriptors prints nothing: the supervisor tries it again until they
    are there, and reports the shortage once.
    """
    try:
        check_held()
    except errors.StoreMoved as moved:  # which explains missing files and other errors at its path
        error = moved
    except OSError:
        pass
    if isinstance(error, OSError):
        error = disk_error(error, place)
        code = EXIT_DISK_ERROR if type(error) is errors.MqError else exit_code(error)
    else:
        code = exit_code(error)
    if isinstance(error, errors.CorruptError):
        found = DamageReport.of(error.where, error.offset, error.found, Path(place))
        report_damage(descriptor, found)
    report_end(descriptor, error.reason)
    if descriptor is None or code not in WAITED_OUT:
        print_error(what, error)
    return code


def disk_error(error: OSError, place: str) -> errors.MqError:
    """Our error for one of the disk. It names `place` if the error names no file."""
    if error.errno in NO_RESOURCES:
        return shortage.refusal_for(error, place)
    text = f"{error.filename or place}: {error.strerror or error}"
    if error.errno in DISK_FULL:
        return errors.ServiceNotAvailable(f"disk_full: {text}", shortage.FREE_SPACE)
    return errors.MqError(f"disk_error: {text}", "mend the disk, then start the node again")


def print_error(what: str, error: errors.MqError) -> None:
    """Three lines on stderr: what failed, why, what to try. Waits for a reader LAST_WORDS_S."""
    lines = [f"error: {what}", f"cause: {error.reason}"]
    if error.hint:
        lines.append(f"try: {error.hint}")
    stderr.write("".join(f"{one_line(line)}\n" for line in lines), LAST_WORDS_S)


def report_ready(descriptor: int | None, endpoint: str = "") -> None:
    """Tells the supervisor that work is accepted: one line of JSON. The pipe stays open.

    All objects of the start live until the end of the process. `gc.freeze` exempts them from the
    collector, which would otherwise stop all work for tens of milliseconds each time.
    """
    if descriptor is not None:
        gc.collect()
        gc.freeze()
    _report(descriptor, {"ready": True, "endpoint": endpoint})


def report_recovery(descriptor: int | None, done: int, total: int) -> None:
    """Reports a recovery's progress, in bytes: the supervisor must not take it for silence."""
    if _has_room(descriptor):
        _report(descriptor, {"recovering": [done, total]})


class DamageReport(NamedTuple):
    """A damaged place, as a process found it: `file` relative to the store."""

    file: str
    offset: int
    found: str
    times: int
    """How often it was met since the last report."""
    first_ms: int
    last_ms: int

    @classmethod
    def of(cls, where: str, offset: int, found: str, root: Path) -> "DamageReport":
        """Met once, now. Texts are cut, so that a report fits into a line."""
        path = Path(where)
        file = str(path.relative_to(root)) if path.is_relative_to(root) else where
        now = now_ms()
        return cls(file[-_FILE_CHARS_MAX:], offset, found[:_FOUND_CHARS_MAX], 1, now, now)


Send = Callable[[DamageReport], bool]
"""Reports one place; returns False where it has to be tried again."""


def report_damage(descriptor: int | None, damage: DamageReport) -> bool:
    """Reports damage that was met. False, and nothing is reported, while the pipe has no room."""
    return _has_room(descriptor) and _report(descriptor, {"damage": damage})


def report_end(descriptor: int | None, reason: str) -> None:
    """Reports to the supervisor, which may be gone already, why this process ends."""
    with suppress(OSError):
        _report(descriptor, {"ended": reason[:_LAST_WORDS_CHARS_MAX]})


def _has_room(descriptor: int | None) -> bool:
    """Whether little waits in the pipe to a supervisor that is stopped: the report of the start
    or of the end must always find room."""
    if descriptor is None:
        return True
    (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return bool(waiting < _REPORTS_BYTES_MAX)


def _report(descriptor: int | None, fields: dict[str, object]) -> bool:
    """False if it was not taken: the supervisor may have been killed, and `die_with_parent` sees to
    that, or it is stopped. The pipe never makes a process wait."""
    if descriptor is not None:
        try:
            os.write(descriptor, (json.dumps(fields) + "\n").encode())
        except (BrokenPipeError, BlockingIOError):
            return False
    return True


class DamageReporter:
    """For the one thread of a process that reads; its heart-beat calls `turn`."""

    def __init__(self, root: Path = Path("/"), send: Send = lambda _: False) -> None:
        self._root = root
        self._send = send
        self._met: dict[tuple[str, int], DamageReport] = {}
        self._due_at = 0.0

    def report_to(self, root: Path, send: Send) -> None:
        """From now on places are those of the store at `root`, and are reported by `send`."""
        self._root, self._send = root, send

    def note(self, error: errors.CorruptError) -> None:
        """Notes damage that a read has met."""
        self.note_place(error.where, error.offset, error.found)

    def note_place(self, where: str, offset: int, found: str) -> None:
        """As `note`, for the parts of the error."""
        damage = DamageReport.of(where, offset, found, self._root)
        key = damage.file, damage.offset
        if key not in self._met and len(self._met) >= DAMAGED_PLACES_MAX:
            damage = damage._replace(file="", offset=0, found="")
            key = "", 0
        before = self._met.get(key)
        if before is not None:
            damage = damage._replace(times=before.times + 1, first_ms=before.first_ms)
        self._met[key] = damage

    def turn(self, now: float) -> None:
        """Sends what was noted, if it is time; `now` in seconds."""
        if not self._met or now < self._due_at:
            return
        self._due_at = now + REPORT_S
        for key, damage in list(self._met.items()):
            if not self._send(damage):
                return
            del self._met[key]


met_damage = DamageReporter()
"""This process's. `run_process` connects it with the supervisor; without one places are kept."""


def die_with_parent(pipe: int) -> None:
    """Asks the kernel for SIGTERM when the parent ends; sends it when it has ended already.

    `pipe` is the one to the parent, which alone holds its other end. Its pid would say nothing: in
    a container it may be 1. The kernel sends the signal when the thread that started us ends:
    parents start us in their main one.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    other_end = select.poll()
    other_end.register(pipe, 0)
    if other_end.poll(0):
        signal.raise_signal(signal.SIGTERM)


def reap_adopted(children: Collection[int]) -> None:
    """Takes away the ended processes that process 1 has adopted; `children` are left to their
    owner. In a container without an init the first process of a node is process 1."""
    if os.getpid() != 1:
        return
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, _LOOK_AT_ENDED)) and ended.si_pid not in children:
            os.waitpid(ended.si_pid, os.WNOHANG)


def set_title(name: str) -> None:
    """The name that `ps -o comm` shows, at most 15 bytes."""
    title = ctypes.create_string_buffer(name.encode()[:_TITLE_BYTES_MAX])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, title, 0, 0, 0)


def take_short_slices() -> None:
    """Asks the kernel for time slices of SHORT_SLICE_NS for this thread and those it starts.

    A process with shorter slices than the running one may interrupt it when it is woken, and waits
    less for its next turn. Linux has this since 6.12, without privileges; elsewhere, and for a
    policy that somebody has chosen, nothing changes
    (docs/decisions/0027-who-is-waited-for-goes-first.md).
    """
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    set_call, get_call = _SCHED_CALLS.get(platform.machine(), (0, 0))
    if not set_call:
        return
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    if system_call(get_call, 0, attributes, _SCHED_ATTR.size, 0):
        return
    size, policy, flags, nice, *_ = _SCHED_ATTR.unpack(attributes.raw)
    if policy == _SCHED_NORMAL:
        _SCHED_ATTR.pack_into(attributes, 0, size, policy, flags, nice, 0, SHORT_SLICE_NS, 0, 0)
        system_call(set_call, 0, attributes, 0)


def keep_freed_memory() -> None:
    """Lets the C library keep up to KEPT_BYTES_MAX of freed memory, for the next message.

    By default it takes large frames from the system and gives them back each time, which costs a
    writer of batches a seventh of its processor time. Threads share one heap: a worker makes its
    long turns in threads of their own, and each heap would keep what such a turn needs. Without
    glibc nothing changes.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES_MIN)
        mallopt(_M_ARENA_MAX, 1)


def offer_as_victim(points: int) -> None:
    """Makes the kernel end this process rather than its parent when memory runs out."""
    path = Path("/proc/self/oom_score_adj")
    try:
        path.write_text(str(min(int(path.read_text()) + points, _OOM_SCORE_MAX)))
    except OSError:
        return  # a container may not show it; then all are alike


def raise_file_limit() -> int:
    """Moves RLIMIT_NOFILE to its hard limit and returns it; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000
