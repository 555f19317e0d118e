"""Raises exceptions in the Python processes of a node, when `Injector` asks for one by a signal.

Python imports this module at its start when the folder stands in PYTHONPATH. The product knows
nothing of it. The main thread gets the exception at whatever it runs, or waits in; another thread
gets it at its next bytecode.
"""

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time
from types import FrameType

INJECT_SIGNAL = signal.SIGRTMIN + 3
MAIN_THREAD = "-"
ANY_OTHER_THREAD = "*"
_FOLDER = os.environ.get("INJECT_DIR")


class DiskFails(OSError):
    """EIO."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "Input/output error (injected)")


def _exception(kind: str) -> type[BaseException]:
    """A class that needs no arguments: all that can be raised in another thread."""
    if kind == "OSError":
        return DiskFails
    if kind == "StoreDamaged":
        # Only here: most processes import it anyhow, and none is to import it earlier than it does.
        from protocol.errors import StoreDamaged

        class Damage(StoreDamaged):
            """In a place where nobody expects it."""

            def __init__(self) -> None:
                super().__init__("injected", 0, "this damage is injected")

        return Damage
    found = getattr(__import__("builtins"), kind)
    assert isinstance(found, type) and issubclass(found, BaseException)
    return found


def _hang(kind: str) -> None:
    """Never returns: `spin` keeps a processor busy, `sleep` none, `gil` lets no thread run."""
    hold = ctypes.PyDLL(None).sleep
    while True:
        if kind == "gil":
            hold(1)
        elif kind == "sleep":
            time.sleep(1)


def _answer(text: str) -> None:
    path = f"{_FOLDER}/answer-{os.getpid()}"
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    os.replace(f"{path}.new", path)  # noqa: PTH105 (a start is not to wait for pathlib)


def _others() -> list[threading.Thread]:
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if thread is not main and thread.ident]


def _request() -> tuple[str, str]:
    """The kind and the thread; the request is gone when it is read."""
    path = f"{_FOLDER}/request-{os.getpid()}"
    descriptor = os.open(path, os.O_RDONLY)
    kind, thread = os.read(descriptor, 4096).decode().split(" ", 1)
    os.close(descriptor)
    os.unlink(path)  # noqa: PTH108
    return kind, thread


def _obey(_number: int, _frame: FrameType | None) -> None:
    try:
        kind, name = _request()
    except FileNotFoundError:
        return  # a signal that nobody waits for any more
    if kind == "threads":
        _answer("\n".join(thread.name for thread in _others()))
        return
    if name == MAIN_THREAD:
        _answer(f"ok {threading.main_thread().name}")
        if kind in ("spin", "sleep", "gil"):
            _hang(kind)
        raise _exception(kind)
    found = [thread for thread in _others() if name in (thread.name, ANY_OTHER_THREAD)]
    if not found:
        _answer(f"no thread {name}")
        return
    victim = found[time.monotonic_ns() % len(found)]
    _answer(f"ok {victim.name}")
    ident = ctypes.c_ulong(victim.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_exception(kind)))


if _FOLDER:
    # A thread that is none of the main one cannot install it; site is imported in the main one.
    with contextlib.suppress(ValueError):
        signal.signal(INJECT_SIGNAL, _obey)
