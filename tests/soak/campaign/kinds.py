"""Faults of processes: exceptions, silence, limits, signals. Each is done when it is called."""

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from keelog.client.client import connect
from keelog.client.transport.exchange import Retry
from protocol.errors import MqError
from tests.soak.campaign.injection import ANY_OTHER_THREAD, EXCEPTIONS, HANGS, InjectionFailed
from tests.soak.campaign.node import SILENCE_S
from tests.soak.campaign.scene import Deed, NoVictim, Scene

PROCESSES = ("writer", "reader", "queue", "index")
_THREAD_S = 1.0
"""So long a thread may wait until it runs into the exception."""
_MAIN_S = 2.0
_DESCRIPTORS_S = 3.0
_MEMORY_S = 3.0
_CONNECTIONS = 60
_LARGE_BYTES = 900_000
_LARGE_SENDERS = 6
LARGE_TOPIC = "campaign-large"


def exception(scene: Scene) -> Deed:
    """One of several, in the main thread or another one of any process."""
    role, pid = scene.pick(scene.rnd.choice((*PROCESSES * 2, "supervisor")))
    kind = scene.rnd.choice(EXCEPTIONS)
    thread = scene.rnd.choice((None, None, ANY_OTHER_THREAD))
    try:
        name = scene.injector.inject(pid, kind, thread)
    except InjectionFailed:
        name = _inject(scene, pid, kind)
    _await_end(pid, _MAIN_S if name == "MainThread" else _THREAD_S)
    what = f"{kind} in {role}, {name}"
    return Deed(what, victim=pid, is_late=is_alive(pid), is_http=name.startswith("http"))


def http_exception(scene: Scene) -> Deed:
    """In the thread of the HTTP end."""
    kind = scene.rnd.choice(EXCEPTIONS)
    pid = scene.node.pid
    try:
        name = scene.injector.inject(pid, kind, "http")
    except InjectionFailed as error:
        raise NoVictim(str(error)) from None
    time.sleep(_THREAD_S)
    return Deed(f"{kind} in supervisor, {name}", victim=pid, is_http=True)


def _inject(scene: Scene, pid: int, kind: str) -> str:
    try:
        return scene.injector.inject(pid, kind)
    except InjectionFailed as error:
        raise NoVictim(str(error)) from None


def hang(scene: Scene) -> Deed:
    """A loop without end in the main thread."""
    role, pid = scene.pick(*PROCESSES)
    kind = scene.rnd.choice(HANGS)
    _inject(scene, pid, kind)
    return Deed(f"loop without end ({kind}) in {role}", victim=pid, must_end=True)


def stop(scene: Scene) -> Deed:
    """SIGSTOP: for less than the silence that a node bears, for more, or for good."""
    role, pid = scene.pick(*PROCESSES)
    hold_s = scene.rnd.choice((0.5, 1.8)) * SILENCE_S
    _signal(pid, signal.SIGSTOP)
    if scene.rnd.random() < 0.5:
        return Deed(f"SIGSTOP of {role} for good", victim=pid, must_end=True)

    def go_on() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return Deed(f"SIGSTOP of {role} for {hold_s:.1f} s", hold_s=hold_s, undo=go_on)


def descriptors(scene: Scene) -> Deed:
    """A process may open only a few files more, and others connect to it."""
    role, pid = scene.pick(*PROCESSES, "supervisor")
    spare = scene.rnd.randrange(6)
    with _while_it_lives():
        count = psutil.Process(pid).num_fds()
    undo = _limit(pid, resource.RLIMIT_NOFILE, count + spare)
    callers = _connections(scene.node.endpoint, pid)

    def give_back() -> None:
        for one in callers:
            one.close()
        callers.clear()
        undo()

    what = f"{role} may open {spare} files more"
    return Deed(what, hold_s=_DESCRIPTORS_S, undo=give_back)


def _connections(endpoint: str, pid: int) -> list[socket.socket]:
    """Half-open ones to where the process listens, else to the control socket."""
    ports = [int(endpoint.rpartition(":")[2])]
    with suppress(psutil.Error):
        for one in psutil.Process(pid).net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr:
                ports.append(one.laddr[1])
    found = []
    for number in range(_CONNECTIONS):
        with suppress(OSError):
            place = ("127.0.0.1", ports[-1 - number % min(2, len(ports))])
            found.append(socket.create_connection(place, timeout=0.2))
    return found


def memory(scene: Scene) -> Deed:
    """A process gets only some MiB more, while large messages come."""
    role, pid = scene.pick(*PROCESSES, "supervisor")
    mib = scene.rnd.choice((1, 2, 8, 20))
    with _while_it_lives():
        size = psutil.Process(pid).memory_info().vms
    undo = _limit(pid, resource.RLIMIT_AS, size + (mib << 20))
    _send_large(scene.node.endpoint)
    return Deed(f"{mib} MiB more for {role}", hold_s=_MEMORY_S, undo=undo)


def _send_large(endpoint: str) -> None:
    """From several threads at once; what becomes of it is not counted."""

    def send() -> None:
        with (
            suppress(MqError),
            connect(endpoint, timeout=_MEMORY_S, retry=Retry(max_attempts=1)) as client,
        ):
            for _ in range(2):
                client.send(LARGE_TOPIC, bytes(_LARGE_BYTES))

    senders = [threading.Thread(target=send) for _ in range(_LARGE_SENDERS)]
    for one in senders:
        one.start()
    for one in senders:
        one.join()


def _limit(pid: int, what: int, most: int) -> Callable[[], None]:
    """Lowers the soft limit of a process; what it answers brings the old one back."""
    with _while_it_lives():
        soft, hard = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (most, hard))

    def give_back() -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, what, (soft, hard))

    return give_back


@contextmanager
def _while_it_lives() -> Iterator[None]:
    """A process that has ended in between is none to do anything to."""
    try:
        yield
    except (ProcessLookupError, psutil.NoSuchProcess) as error:
        raise NoVictim(str(error)) from None


def kill(scene: Scene) -> Deed:
    """SIGKILL or SIGTERM to one process, or SIGKILL to all."""
    if scene.rnd.random() < 0.05:
        scene.node.kill()
        return Deed("SIGKILL of the whole node")
    number = scene.rnd.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    roles = (*PROCESSES * 3, "supervisor")
    role, pid = scene.pick(scene.rnd.choice(roles))
    _signal(pid, number)
    _await_end(pid, _MAIN_S)
    return Deed(f"{number.name} to {role}", victim=pid)


def _signal(pid: int, number: signal.Signals) -> None:
    with _while_it_lives():
        os.kill(pid, number)


def _await_end(pid: int, seconds: float) -> None:
    """Until the process is gone, at most so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_alive(pid):
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether it runs; one that its parent has not taken note of yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
