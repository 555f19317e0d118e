"""Shortages that pass, unlike damage: of room on the disk, of descriptors, of memory, of tasks.

An error of this kind ends only the call that met it: the same call may succeed later.
"""

from node.runtime.descriptors import LIMITS_HINT
from node.runtime.disk import DISK_FULL, PASSING
from protocol.errors import MqError, ServiceNotAvailable

FULL = "disk_full"
SHORT = "no_resources"
FREE_SPACE = "free space; appends then go on"
MORE_RESOURCES = f"{LIMITS_HINT}, or give it more memory; it goes on by itself"
MORE_TASKS = "raise the limit of tasks: pids.max (TasksMax, --pids-limit), RLIMIT_NPROC (ulimit -u)"
_NO_THREAD = "can't start new thread"
"""The text of Python's RuntimeError, which says no more."""


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error passes by itself, ours or the system's."""
    if isinstance(error, OSError):
        return error.errno in PASSING
    return is_disk_full(error) or lacks_resources(error) or _is_of_threads(error)


def _is_of_threads(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and _NO_THREAD in str(error)


def more_of(cause: str) -> str:
    """The hint for a lack of resources, by its cause."""
    return MORE_TASKS if "thread" in cause else MORE_RESOURCES


def in_our_words(error: BaseException | None) -> BaseException | None:
    """An error of ours in the place of Python's, where no thread could be started."""
    return ServiceNotAvailable(f"{SHORT}: {error}", MORE_TASKS) if _is_of_threads(error) else error


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error of ours reports a full disk."""
    return isinstance(error, ServiceNotAvailable) and error.reason.startswith(FULL)


def lacks_resources(error: BaseException | None) -> bool:
    """Whether an error of ours reports that descriptors, memory or tasks are short."""
    return isinstance(error, ServiceNotAvailable) and error.reason.startswith(SHORT)


def as_refusal(error: MqError | OSError, place: str) -> MqError:
    """The error that a client gets. Raises an OSError that is not a shortage again."""
    if isinstance(error, MqError):
        return error
    if error.errno not in PASSING:
        raise error
    return refusal_for(error, place)


def refusal_for(error: OSError, place: str) -> ServiceNotAvailable:
    """The refusal for a shortage. It names `place` if the error names no file."""
    if error.errno in DISK_FULL:
        return ServiceNotAvailable(f"{FULL}: no room for {place}", FREE_SPACE)
    text = f"{error.filename or place}: {error.strerror or error}"
    return ServiceNotAvailable(f"{SHORT}: {text}", MORE_RESOURCES)
