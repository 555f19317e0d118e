"""One child process: started by its command line, watched through a pipe, and a pidfd if there is.

Nothing is forked but for `exec`, so a child shares no memory, lock or socket with its supervisor.
"""

import json
import os
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from node.runtime.process import DamageReport
from node.supervisor.bind import (
    Advertised,
    BindAddress,
    announced_ha,
    parse_name_servers,
)
from node.supervisor.options import Options
from node.supervisor.plan import Child, ChildRole
from protocol.addresses import ANY_HOST, WILDCARDS

SOURCE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""The folder of the outermost package: the source tree, or where the wheel is installed."""
_LINE_BYTES_MAX = 4096
_PIPE_BYTES = 65_536
"""All that a pipe holds: the last words come after everything that was reported before them."""


class ChildReport(NamedTuple):
    """A report of a child: it is ready at `endpoint`, it recovers, it has met damage, or it ends
    for a reason."""

    endpoint: str | None
    """Empty for a child that binds none; None in last words."""
    reason: str = ""
    recovered: float | None = None
    """The part of a recovery that is done, 0 to 1."""
    damage: DamageReport | None = None


class NodePlaces(NamedTuple):
    """Where a node listens: its control socket, its gateway, and for followers (port 0: it does
    not)."""

    control: BindAddress
    gateway: BindAddress
    announced: str = ""
    """What name servers get."""
    ha: BindAddress = BindAddress("", 0, any_port=False)
    advertised: Advertised = Advertised()
    loopback: str = ""
    """The host by which children reach a control socket at all addresses of both kinds."""


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a child. -P: a folder `node` in the current directory is not ours."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_command(child: Child, options: Options, places: NodePlaces, held: str) -> list[str]:
    """The command line of a node's child. `held` is the identity of the store that is held."""
    arguments = [str(options.root), *_arguments(child, options, places), "--held", held]
    if child.local:
        arguments += ["--local", child.local]
    for pair in options.pairs:
        arguments += ["-X", pair]
    return command(options.modules[child.role], arguments)


def _arguments(child: Child, options: Options, places: NodePlaces) -> list[str]:
    place, shards = places.control, str(options.serve.queue_workers)
    match child.role:
        case ChildRole.WRITER:
            host, port = _host_of_records(places)
            arguments = ["--bind", place.child(1, child.endpoint).bound, "--store-port", str(port)]
            arguments += ["--advertise", host]
            arguments += ["--delays"] if places.gateway.port else []
            return [*arguments, "--followers"] if places.ha.port else arguments
        case ChildRole.QUEUE:
            return ["--shard", str(child.index), "--shards", shards]
        case ChildRole.READER:
            endpoint = place.child(2 + child.index, child.endpoint).bound
            return ["--bind", endpoint, "--index", str(child.index), "--shards", shards]
        case ChildRole.GATEWAY:
            return ["--shards", shards, *_gateway_arguments(options, places)]
        case ChildRole.TASKS:
            return ["--node", _own_endpoint(places)]
        case ChildRole.FOLLOWERS:
            return ["--bind", f"{places.ha.host}:{places.ha.port}"]
    return []


def _host_of_records(places: NodePlaces) -> tuple[str, int]:
    """Host and port of the node in records: those at which RocketMQ's clients find it."""
    port = places.advertised.port(places.gateway.port or places.control.port)
    host = places.announced.rpartition(":")[0] or places.gateway.host
    return places.advertised.host or host, port


def _own_endpoint(places: NodePlaces) -> str:
    """The control socket as children of the node reach it."""
    control = places.control
    hosts = {ANY_HOST: places.loopback, "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"tcp://{hosts.get(control.host, control.host)}:{control.port}"


def _gateway_arguments(options: Options, places: NodePlaces) -> list[str]:
    place, broker = places.gateway, options.broker
    node = _own_endpoint(places)
    arguments = ["--bind", f"{place.host}:{place.port}", "--node", node]
    arguments += ["--cluster", broker.broker_cluster_name]
    arguments += ["--broker", broker.broker_name or socket.gethostname()]
    arguments += ["--broker-id", str(broker.broker_id)]
    if places.announced:
        servers = ";".join(parse_name_servers(broker.namesrv_addr))
        arguments += ["--namesrv", servers, "--announce", places.announced]
    arguments += ["--ha", announced_ha(places.announced, places.ha, places.advertised)]
    host = places.advertised.host or place.host
    if host not in WILDCARDS:
        arguments += ["--address", f"{host}:{places.advertised.port(place.port)}"]
    return arguments


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

    def __init__(self, arguments: Sequence[str]) -> None:
        """Starts it; `--ready-fd N` is added to the command line."""
        self._line = b""
        # Neither end waits for the other.
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # A process group of its own: Ctrl-C reaches the supervisor alone, which stops the
            # children in order. What they print goes to stderr: stdout is for data.
            self._process = subprocess.Popen(
                [*arguments, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(writer,),
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
