"""What is short for a while, and no damage: room on the disk, descriptors, memory.

An error of this kind ends the call that met it, and nothing else: the same call is made again.
"""

from node.runtime.descriptors import LIMITS_HINT
from node.runtime.disk import DISK_FULL, PASSING
from protocol.errors import MqError, ServiceNotAvailable

FULL = "disk_full"
SHORT = "no_resources"
FREE_SPACE = "free space; appends then go on"
MORE_RESOURCES = f"{LIMITS_HINT}, or give it more memory; it goes on by itself"


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error passes by itself, ours or the system's."""
    if isinstance(error, OSError):
        return error.errno in PASSING
    return is_disk_full(error) or lacks_resources(error)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error of ours says that there is no room."""
    return isinstance(error, ServiceNotAvailable) and error.reason.startswith(FULL)


def lacks_resources(error: BaseException | None) -> bool:
    """Whether an error of ours says that descriptors or memory are short."""
    return isinstance(error, ServiceNotAvailable) and error.reason.startswith(SHORT)


def as_refusal(error: MqError | OSError, place: str) -> MqError:
    """What a client is told; raises again what is the system's and does not pass."""
    if isinstance(error, MqError):
        return error
    if error.errno not in PASSING:
        raise error
    return refusal_for(error, place)


def refusal_for(error: OSError, place: str) -> ServiceNotAvailable:
    """What is refused for it: what it is about is `place`, where the error names no file."""
    if error.errno in DISK_FULL:
        return ServiceNotAvailable(f"{FULL}: no room for {place}", FREE_SPACE)
    text = f"{error.filename or place}: {error.strerror or error}"
    return ServiceNotAvailable(f"{SHORT}: {text}", MORE_RESOURCES)
