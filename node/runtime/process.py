"""Start and end of a node's processes, piece by piece: title, readiness, signals, exit codes.

`node.runtime.run_process` puts the pieces into their order. Signal handlers only note the signal;
the loop that owns the work looks at the note.
"""

import ctypes
import errno
import fcntl
import gc
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from node.runtime.disk import DISK_FULL, NO_RESOURCES
from node.runtime.held_store import check_held
from node.runtime.shortage import FREE_SPACE, is_disk_full, lacks_resources, refusal_for
from node.runtime.stderr_lines import LAST_WORDS_S, stderr
from protocol.errors import (
    BadRequest,
    CorruptError,
    MqError,
    RefusedError,
    ServiceNotAvailable,
    StoreError,
    StoreLocked,
    StoreMoved,
)
from protocol.printable import one_line

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
    (docs/decisions/0028-short-time-slices-for-those-whom-clients-wait-for.md).
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


def machine_memory_bytes() -> int:
    """All memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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


def report_damage(descriptor: int | None, damage: DamageReport) -> bool:
    """Reports damage that was met. False, and nothing is reported, while the pipe has no room."""
    return _has_room(descriptor) and _report(descriptor, {"damage": damage})


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


def report_end(descriptor: int | None, reason: str) -> None:
    """Reports to the supervisor, which may be gone already, why this process ends."""
    with suppress(OSError):
        _report(descriptor, {"ended": reason[:_LAST_WORDS_CHARS_MAX]})


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
            raise RefusedError(
                f"the system refuses the call eventfd (Linux 2.6.27): {error.strerror}",
                "allow it in the filter of system calls (seccomp, SystemCallFilter)",
            ) from None

    def set(self) -> None:
        """Notes the wish to stop."""
        self.is_set = True
        os.eventfd_write(self.fd, 1)


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


def leave(code: int) -> NoReturn:
    """Ends a process of a node with the exit code of its `main`."""
    ignore_stop_signals()
    sys.exit(code)


def exit_code(error: MqError) -> int:
    """The exit code by which a supervisor decides what to do after an error."""
    if is_disk_full(error):
        return EXIT_DISK_FULL
    if lacks_resources(error):
        return EXIT_NO_RESOURCES
    if isinstance(error, StoreLocked):
        return EXIT_LOCKED
    if isinstance(error, StoreMoved):
        return EXIT_MOVED
    if isinstance(error, CorruptError):
        return EXIT_DAMAGED
    if isinstance(error, BadRequest | StoreError):
        return EXIT_USAGE
    return EXIT_FAILED


def end_badly(what: str, error: MqError | OSError, place: str, descriptor: int | None) -> int:
    """Reports to people and to the supervisor why a process ends; returns its exit code.

    A child that lacks room or descriptors prints nothing: the supervisor tries it again until they
    are there, and reports the shortage once.
    """
    error = _moved_meanwhile() or error
    if isinstance(error, OSError):
        error = disk_error(error, place)
        code = EXIT_DISK_ERROR if type(error) is MqError else exit_code(error)
    else:
        code = exit_code(error)
    if isinstance(error, CorruptError):
        found = DamageReport.of(error.where, error.offset, error.found, Path(place))
        report_damage(descriptor, found)
    report_end(descriptor, error.reason)
    if descriptor is None or code not in WAITED_OUT:
        print_error(what, error)
    return code


def _moved_meanwhile() -> StoreMoved | None:
    """The move of the store, which explains missing files and other errors at its path."""
    try:
        check_held()
    except StoreMoved as moved:
        return moved
    except OSError:
        return None
    return None


def disk_error(error: OSError, place: str) -> MqError:
    """Our error for one of the disk. It names `place` if the error names no file."""
    if error.errno in NO_RESOURCES:
        return refusal_for(error, place)
    text = f"{error.filename or place}: {error.strerror or error}"
    if error.errno in DISK_FULL:
        return ServiceNotAvailable(f"disk_full: {text}", FREE_SPACE)
    return MqError(f"disk_error: {text}", "mend the disk, then start the node again")


def print_error(what: str, error: MqError) -> None:
    """Three lines on stderr: what failed, why, what to try. Waits for a reader LAST_WORDS_S."""
    lines = [f"error: {what}", f"cause: {error.reason}"]
    if error.hint:
        lines.append(f"try: {error.hint}")
    stderr.write("".join(f"{one_line(line)}\n" for line in lines), LAST_WORDS_S)


OOM_WRITER, OOM_WORKER, OOM_READER = 100, 300, 400
"""Added to `oom_score_adj`: short of memory the kernel ends readers first, the supervisor last."""
_OOM_SCORE_MAX = 1_000


def offer_as_victim(points: int) -> None:
    """Makes the kernel end this process rather than its parent when memory runs out."""
    path = Path("/proc/self/oom_score_adj")
    try:
        path.write_text(str(min(int(path.read_text()) + points, _OOM_SCORE_MAX)))
    except OSError:
        return  # a container may not show it; then all are alike


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


def raise_file_limit() -> int:
    """Moves RLIMIT_NOFILE to its hard limit and returns it; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
