"""The child processes of a node: how each is started, what it reports, its signs of life.

One is started by its command line, and watched through a pipe, and a pidfd if there is. Nothing is
forked but for `exec`, so a child shares no memory, lock or socket with its supervisor.

A child that gives no sign of life is killed. A heartbeat in a state page is a sign, and so are
bytes from and to the disk; while a process starts or resumes, its processor time is one too.
`node.supervisor.plan` decides what a look means.
"""

import json
import logging
import os
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from node.runtime.event_log import fields
from node.runtime.process import DamageReport
from node.runtime.state_page import RECOVERING, STARTING, LogPage, WorkerPage
from node.supervisor import plan
from node.supervisor.bind import NOWHERE, Advertised, BindAddress, announced_ha, parse_name_servers
from node.supervisor.options import Options
from protocol.addresses import ANY_HOST, WILDCARDS

log = logging.getLogger("keelog.supervisor")

SOURCE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""The folder of the outermost package: the source tree, or where the wheel is installed."""
LOOK_EVERY_S = 0.9
"""More than the time between two heartbeats."""
UNKNOWN = (AttributeError, ValueError, NotImplementedError, RuntimeError, IndexError)
"""Raised by psutil where /proc has not, or not in its usual form, what it looks for: on small
boards without /proc/PID/io, in sandboxes."""

_LINE_BYTES_MAX = 4096
_PIPE_BYTES = 65_536
"""All that a pipe holds: the last words come after everything that was reported before them."""
_STARTS = (STARTING, RECOVERING)


class ChildReport(NamedTuple):
    """A report of a child: it is ready at `endpoint`, it recovers, it has met damage, or it ends
    for a reason."""

    endpoint: str | None
    """Empty for a child that binds none; None in last words."""
    reason: str = ""
    recovered: float | None = None
    """The part of a recovery that is done, 0 to 1."""
    damage: DamageReport | None = None


class ConsoleEnd(NamedTuple):
    """The socket that the supervisor holds for the console, and where a browser of this machine
    finds it."""

    fd: int
    url: str


NO_CONSOLE = ConsoleEnd(-1, "")


class NodePlaces(NamedTuple):
    """Where a node listens: its control socket, its gateway, and for followers (port 0: it does
    not)."""

    control: BindAddress
    gateway: BindAddress
    announced: str = ""
    """What name servers get."""
    ha: BindAddress = NOWHERE
    advertised: Advertised = Advertised()
    loopback: str = ""
    """The host by which children reach a control socket at all addresses of both kinds."""
    local: str = ""
    """The local socket of the supervisor, which needs no keys; empty where it has none."""
    has_keys: bool = False
    """Whether clients over TCP come with keys."""
    console: ConsoleEnd = NO_CONSOLE


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a child. -P: a folder `node` in the current directory is not ours."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_command(child: plan.Child, options: Options, places: NodePlaces, held: str) -> list[str]:
    """The command line of a node's child. `held` is the identity of the store that is held."""
    arguments = [str(options.root), *_arguments(child, options, places), "--held", held]
    if child.local:
        arguments += ["--local", child.local]
    if places.has_keys and child.role in (plan.ChildRole.WRITER, plan.ChildRole.READER):
        arguments += ["--keys"]
    for pair in options.pairs:
        arguments += ["-X", pair]
    return command(options.modules[child.role], arguments)


def _arguments(child: plan.Child, options: Options, places: NodePlaces) -> list[str]:
    place, shards = places.control, str(options.serve.queue_workers)
    match child.role:
        case plan.ChildRole.WRITER:
            # Host and port in records are those at which RocketMQ's clients find the node.
            advertised, gateway = places.advertised, places.gateway
            port = advertised.port(gateway.port or place.port)
            host = advertised.host or places.announced.rpartition(":")[0] or gateway.host
            arguments = ["--bind", place.child(1, child.endpoint).bound]
            arguments += ["--store-port", str(port), "--advertise", host]
            arguments += ["--delays"] if places.gateway.port else []
            return [*arguments, "--followers"] if places.ha.port else arguments
        case plan.ChildRole.QUEUE:
            return ["--shard", str(child.index), "--shards", shards]
        case plan.ChildRole.READER:
            endpoint = place.child(2 + child.index, child.endpoint).bound
            return ["--bind", endpoint, "--index", str(child.index), "--shards", shards]
        case plan.ChildRole.GATEWAY:
            return ["--shards", shards, *_gateway_arguments(options, places)]
        case plan.ChildRole.TASKS:
            return ["--node", _own_endpoint(places)]
        case plan.ChildRole.FOLLOWERS:
            return ["--bind", f"{places.ha.host}:{places.ha.port}"]
        case plan.ChildRole.CONSOLE:
            return ["--node", _own_endpoint(places), *_console_arguments(options, places)]
    return []


def _console_arguments(options: Options, places: NodePlaces) -> list[str]:
    serve, broker = options.serve, options.broker
    shown = _own_endpoint(places._replace(local=""))
    found = {
        "--shown": places.advertised.endpoint(shown),
        "--fd": str(places.console.fd),
        "--read": serve.console_read,
        "--hosts": serve.console_hosts,
        "--path": serve.console_path,
        "--cluster": broker.broker_cluster_name,
    }
    return [word for option in found.items() for word in option]


def _own_endpoint(places: NodePlaces) -> str:
    if places.local:
        return places.local
    control = places.control
    hosts = {ANY_HOST: places.loopback, "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"tcp://{hosts.get(control.host, control.host)}:{control.port}"


def _gateway_arguments(options: Options, places: NodePlaces) -> list[str]:
    place, broker = places.gateway, options.broker
    found = {
        "--bind": f"{place.host}:{place.port}",
        "--node": _own_endpoint(places),
        "--cluster": broker.broker_cluster_name,
        "--broker": broker.broker_name or socket.gethostname(),
        "--broker-id": str(broker.broker_id),
        "--ha": announced_ha(places.announced, places.ha, places.advertised),
    }
    if places.announced:
        found["--namesrv"] = ";".join(parse_name_servers(broker.namesrv_addr))
        found["--announce"] = places.announced
    host = places.advertised.host or place.host
    if host not in WILDCARDS:
        found["--address"] = f"{host}:{places.advertised.port(place.port)}"
    return [word for option in found.items() for word in option]


def environment() -> dict[str, str]:
    """Our environment, with SOURCE_ROOT first in PYTHONPATH where Python does not find it itself.

    An installation's folder there would come before the standard library: old backports in it,
    such as `typing`, would replace its modules. With OPENBLAS_NUM_THREADS numpy's linear algebra,
    which we never use, starts no threads.
    """
    ours = {"OPENBLAS_NUM_THREADS": "1"}
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    by_itself = [*site.getsitepackages(), site.getusersitepackages(), *paths]
    if SOURCE_ROOT not in [Path(path).resolve() for path in by_itself]:
        ours["PYTHONPATH"] = os.pathsep.join([str(SOURCE_ROOT), *paths])
    return {**os.environ, **ours}


class Process:
    """A running child. `pidfd` is readable when it has ended, `report_fd` when it reports, and as a
    rule when it has ended, too."""

    def __init__(self, arguments: Sequence[str], inherited: Sequence[int] = ()) -> None:
        """Starts it; `--ready-fd N` is added to the command line. `inherited`: descriptors that it
        gets."""
        self._line = b""
        # Neither end waits for the other.
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # A process group of its own: Ctrl-C reaches the supervisor alone, which stops the
            # children in order. Their output goes to stderr: stdout is for data.
            self._process = subprocess.Popen(
                [*arguments, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(writer, *inherited),
                process_group=0,
                env=environment(),
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.pid = self._process.pid
        self.pidfd: int | None = None
        with suppress(OSError):  # before Linux 5.3, or forbidden: the pipe's end shows it, too
            self.pidfd = os.pidfd_open(self.pid)
        self.has_reported = False
        """Before its first report some signals would end it: it has no handlers yet."""
        self.report_fd: int | None = reader

    def reports(self) -> list[ChildReport]:
        """The reports since the last call; closes the pipe when no more can come."""
        if self.report_fd is None:
            return []
        try:
            data = os.read(self.report_fd, _PIPE_BYTES)
        except BlockingIOError:
            return []
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or len(self._line) > _LINE_BYTES_MAX:
            self._close_report()
        found = [report for line in lines if (report := parse_report(line)) is not None]
        self.has_reported = self.has_reported or bool(found)
        return found

    def _close_report(self) -> None:
        if self.report_fd is not None:
            os.close(self.report_fd)
            self.report_fd = None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; one that has ended gets none, even if its pid was given again: a child
        keeps its pid until its exit code was taken, and nobody else takes that."""
        self._process.send_signal(number)

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def close(self) -> None:
        """Closes the descriptors, after the process has ended."""
        if self.pidfd is not None:
            os.close(self.pidfd)
        self._close_report()


def parse_report(line: bytes) -> ChildReport | None:
    """Parses a report; None for anything else."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    if not isinstance(report, dict):
        return None
    if report.get("ready"):
        return ChildReport(str(report.get("endpoint") or ""))
    match report.get("recovering"):
        case [int(done), int(total)]:
            return ChildReport(None, recovered=done / max(total, done, 1))
    match report.get("damage"):
        case [str(), int(), str(), int(), int(), int()] as damage:
            return ChildReport(None, damage=DamageReport(*damage))
    return ChildReport(None, str(report["ended"])) if report.get("ended") else None


class SilenceWatch:
    """For the supervisor's own thread: call `look` in each turn."""

    def __init__(self, root: Path, shards: int, limits: plan.RestartLimits) -> None:
        self._root = root
        self._shards = shards
        self._limits = limits
        self._looked_at: float | None = None

    def look(
        self, children: Sequence[plan.Child], processes: Mapping[int, Process], now: float
    ) -> None:
        """Notes the signs of life. `processes`: those that run, by the child's position."""
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY_S:
            return
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        for number, process in processes.items():
            child = children[number]
            sign = self._sign(child)
            if sign is None:
                continue
            plan.note_sign(child, sign, passed_s)
            if plan.is_stalled(child, self._limits):
                with suppress(OSError):  # without a descriptor for the look: in the next turn
                    self._end(child, process)

    def _sign(self, child: plan.Child) -> plan.Sign | None:
        """None for a process that is gone, or if no descriptor is free for the look.

        What the system does not show counts as 0: then heartbeats alone are signs.
        """
        with suppress(psutil.Error, OSError):
            heartbeat_ms, is_starting = self._heartbeat(child)
            before = child.sign
            if before is not None and not is_starting and heartbeat_ms != before.heartbeat_ms:
                # It lives: nothing else is looked at, which would cost an idle node most of all.
                return before._replace(heartbeat_ms=heartbeat_ms, cpu_s=0.0)
            process, cpu_s = psutil.Process(child.pid), 0.0
            if is_starting or child.state is not plan.ChildState.RUNNING:
                with suppress(*UNKNOWN):
                    times = process.cpu_times()
                    cpu_s = times.user + times.system
            return plan.Sign(heartbeat_ms, _disk_bytes(process), cpu_s)
        return None

    def _heartbeat(self, child: plan.Child) -> tuple[int, bool]:
        """The heartbeat in its page, or 0, and whether it starts or resumes. Raises OSError."""
        epoch = 0
        with suppress(FileNotFoundError), LogPage.open(self._root) as log_page:
            log_state = log_page.read()
            if child.role is plan.ChildRole.WRITER:
                return log_state.heartbeat_ms, log_state.state in _STARTS
            epoch = log_state.epoch
        slot = plan.page_slot(child, self._shards)
        with suppress(FileNotFoundError), WorkerPage.open(self._root, slot) as page:
            state = page.read()
            return state.heartbeat_ms, state.state in _STARTS or state.epoch != epoch
        return 0, False

    def _end(self, child: plan.Child, process: Process) -> None:
        """Kills the process. If it waits for the disk in a system call it ends only when that
        returns; until then no other one is started, because this one may still write."""
        waits = waits_for_disk(process.pid)
        extra = fields(process=child.name, silent_s=round(child.computing_s))
        if waits and not child.waits_for_disk:
            log.error("process is silent: a call to the disk does not return", extra=extra)
        child.waits_for_disk = waits
        if waits or child.is_killed_for_silence:
            return
        log.error("process gives no sign of life and is killed", extra=extra)
        child.is_killed_for_silence = True
        child.last_words = f"it gave no sign of life for {child.computing_s:.0f} s"
        process.signal(signal.SIGKILL)


def _disk_bytes(process: psutil.Process) -> int:
    with suppress(psutil.AccessDenied, FileNotFoundError, *UNKNOWN):
        disk = process.io_counters()
        return int(disk.read_bytes + disk.write_bytes)
    return 0


def waits_for_disk(pid: int) -> bool:
    """True if a thread of a process sleeps in a system call that no signal interrupts. Raises
    OSError."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            # The state follows the name, which is in parentheses and may hold any character.
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                return True
    return False
