"""Exceptions and endless loops in any Python process of a node, put in from outside.

injector = Injector(tmp_path / "injector")
with RunningNode(root, env=injector.env) as node:
    writer = node.pids()["writer"][0]
    injector.inject(writer, "MemoryError")
    injector.inject(node.pid, "RuntimeError", thread_name="http")
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from node.supervisor.child_process import environment

EXCEPTIONS = (
    "MemoryError",
    "RuntimeError",
    "KeyError",
    "RecursionError",
    "OSError",
    "StoreDamaged",
)
"""OSError is EIO; StoreDamaged is ours. Other builtin exceptions go too."""
HANGS = ("spin", "sleep", "gil")
"""Loops without end in the main thread: a busy one, a sleeping one, one that stops all threads."""
ANY_OTHER_THREAD = "*"
_MAIN_THREAD = "-"
_SIGNAL = signal.SIGRTMIN + 3
_FOLDER = Path(__file__).with_name("injector")
_LOOK_S = 0.005
_ANSWER_S = 10.0


class InjectionFailed(Exception):
    """The process does not take it: it ended, it hangs, or has no such thread."""


class Injector:
    """For all processes that were started with `env`. `folder` is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        path = os.pathsep.join([str(_FOLDER), environment()["PYTHONPATH"]])
        self.env = {"PYTHONPATH": path, "INJECT_DIR": str(folder)}

    def inject(self, pid: int, kind: str, thread_name: str | None = None) -> str:
        """Raises an exception of this kind in the process, or has it loop without end.

        In the main thread, or the thread of this name (ANY_OTHER_THREAD: one by chance); answers
        its name. `kind` is one of EXCEPTIONS, HANGS (the main thread alone) or a builtin exception.
        A thread that waits gets it when it wakes up. Raises InjectionFailed.
        """
        assert thread_name is None or kind not in HANGS, "only the main thread hangs"
        answer = self._ask(pid, f"{kind} {thread_name or _MAIN_THREAD}")
        what, _, rest = answer.partition(" ")
        if what != "ok":
            raise InjectionFailed(f"process {pid}: {answer}")
        return rest

    def threads(self, pid: int) -> list[str]:
        """The names of its Python threads, the main one left out. Raises InjectionFailed."""
        return self._ask(pid, f"threads {_MAIN_THREAD}").split("\n")

    def _ask(self, pid: int, request: str) -> str:
        answer = self._folder / f"answer-{pid}"
        deadline = time.monotonic() + _ANSWER_S
        answer.unlink(missing_ok=True)
        (self._folder / f"request-{pid}").write_text(request)
        try:
            _await_handler(pid, deadline)
            os.kill(pid, _SIGNAL)
            while time.monotonic() < deadline:
                with suppress(FileNotFoundError):
                    return answer.read_text()
                os.kill(pid, 0)
                time.sleep(_LOOK_S)
        except ProcessLookupError:
            raise InjectionFailed(f"there is no process {pid}") from None
        finally:
            (self._folder / f"request-{pid}").unlink(missing_ok=True)
            answer.unlink(missing_ok=True)
        raise InjectionFailed(f"process {pid} has not answered for {_ANSWER_S:.0f} s")


def _await_handler(pid: int, deadline: float) -> None:
    """Returns when the process catches the signal, which would end it before.

    Raises ProcessLookupError, InjectionFailed.
    """
    while not catches(pid):
        if time.monotonic() > deadline:
            raise InjectionFailed(f"process {pid} was started without the environment of Injector")
        time.sleep(_LOOK_S)


def catches(pid: int) -> bool:
    """Whether the process has a handler for the signal. Raises ProcessLookupError."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    caught = int(text.split("SigCgt:", 1)[1].split(None, 1)[0], 16)
    return bool(caught >> (_SIGNAL - 1) & 1)
