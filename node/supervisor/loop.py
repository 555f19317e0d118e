"""The supervisor: takes the store's lock, starts the processes of a node, keeps them running.

Signal handlers only note the signal; one loop compares what is with what should be.
`node.supervisor.plan` decides what to do. Between two turns the loop replies at its control socket:
routes, status, health.
"""

import errno
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import zmq

from node.access.curve import Context, CurveGate, server_keys
from node.access.known_keys import gate_of
from node.access.tls_settings import ClientAuth, client_tls, server_tls
from node.runtime import process as processes
from node.runtime.addresses import listen_at, loopback
from node.runtime.disk import NO_RESOURCES, if_room
from node.runtime.event_log import fields, stderr
from node.runtime.locks import StoreLock
from node.runtime.run_files import forget_other_master, read_members, write_control
from node.runtime.settings import Settings, load_settings
from node.runtime.shortage import check_file_limit, check_task_limit, tasks_needed
from node.runtime.store_paths import HeldStore
from node.serving.curve_server import open_server
from node.serving.request_server import Received, Server, serve_waiting
from node.store.identity.places import create_store
from node.store.identity.roles import check_role
from node.supervisor import before_start, bind, child_process, plan
from node.supervisor.options import Options, ServeSettings, as_replica
from node.supervisor.plan import READ_ONLY, TRIED_AGAIN, Child, ChildRole, ChildState
from node.supervisor.service import NodeLog, ServiceManager, node_log, stop_at_end_of
from node.supervisor.status import DamageList, NodeView, health, routes, status
from protocol import errors
from protocol.addresses import ANY_HOST, VIP_DISTANCE, at_host
from protocol.human_text import printable
from protocol.names import COMMIT_LOG_DIR
from protocol.status import as_json
from protocol.wire import frames

if TYPE_CHECKING:
    from node.access.tls import ServerTls

log = logging.getLogger("keelog.supervisor")

CONTROL_FRAME_BYTES_MAX = 64 * 1024
NO_PROCESS = NO_RESOURCES | {errno.EAGAIN}
"""Errors of a process start for want of descriptors, memory or processes."""

_LOGGED_ENDS = {
    ChildState.BACKING_OFF: (logging.WARNING, "process ended and is started again"),
    ChildState.FAILING: (logging.ERROR, "process fails again and again"),
    ChildState.DISK_FULL: (logging.WARNING, "process waits for room on the disk"),
    ChildState.NO_RESOURCES: (logging.WARNING, "process waits for descriptors, memory or tasks"),
}
"""How an end is logged, by the state of the child after it."""
_ANSWERS_AT_ONCE = 100
_POLL_S_MAX = 1.0
_BLIND_POLL_S_MAX = 0.1
_STOP_LOOK_S = 0.01


def serve(options: Options) -> int:
    """Runs a node until SIGTERM, SIGINT, or the end of the process that it runs for.

    Returns 0 after a clean stop, and EXIT_UNEXPECTED after an unexpected error. If the writer
    refuses the store at its first start, returns the writer's exit code, 5 for a damaged store.
    Raises BadRequest for invalid settings, NotAStore, StorePermission, StoreLocked, and
    RefusedError for a taken port: then nothing was changed.
    """
    started_at = time.monotonic()
    settings = load_settings(options.pairs)
    options = as_replica(options, settings)
    places, ports = _plan_places(options)
    before_start.check_ha(places.ha, settings)
    client_tls(settings)  # its files, too, are checked before anything is changed
    # No certificate is asked of who looks at health and metrics.
    tls = server_tls(settings, ClientAuth.NONE)
    stop = processes.begin_process("keelog-serve", "supervisor")
    threads = _watch_threads(stop)
    if options.while_pid is not None:
        stop_at_end_of(options.while_pid, stop)
    events = node_log(stop)
    _check_limits(options, settings)
    is_new = not (options.root / COMMIT_LOG_DIR).is_dir()
    if is_new:
        before_start.check_free(ports)
    with ExitStack() as ends:
        before_start.open_directory(options.root)
        create_store(options.root)
        ends.callback(processes.ignore_stop_signals)
        held = HeldStore.open(options.root)
        ends.callback(held.close)
        lock = StoreLock.acquire(options.root, flock=True, record=False, create=False)
        ends.callback(lock.release)
        held.check()
        check_role(options.root, settings.follow)
        before_start.warn_if_open_to_others(options.root)
        before_start.wait_for_orphans(options.root)
        if not is_new:
            # Only here: it brings numpy into the supervisor.
            from node.store.file_sizes import with_found_sizes

            options = replace(options, pairs=with_found_sizes(options.root, options.pairs))
            before_start.check_free(ports, before_start.FREED_S_MAX)
        # Only here, for all processes: keys that are made meanwhile count from the next start on.
        places = places._replace(
            has_keys=server_keys(options.root) is not None,
            console=ends.enter_context(console_end(options.serve, tls is not None)),
        )
        gate = gate_of(options.root) if places.has_keys else None
        server = _bind(ends.enter_context(zmq.Context()), places, gate)
        ends.callback(server.close)
        node = Supervisor(options, settings, held, server, places, events, started_at, tls)
        code = node.run(stop)
        return processes.EXIT_UNEXPECTED if code == processes.EXIT_OK and threads else code


def _plan_places(options: Options) -> tuple[child_process.NodePlaces, list[before_start.Port]]:
    """Where the node listens, and the ports for that. Raises BadRequest and RefusedError."""
    serve = options.serve
    control = bind.parse_bind(serve.bind).resolved()
    advertised = bind.parse_advertise(options.network.advertise)
    avoid = {
        one.port for one in before_start.planned_ports(serve, control, bind.NOWHERE, bind.NOWHERE)
    }
    gateway = bind.remoting_place(serve.remoting, avoid)
    avoid |= {gateway.port, gateway.port - VIP_DISTANCE}
    ha = bind.ha_place(serve.ha_listen, avoid)
    ports = before_start.planned_ports(serve, control, gateway, ha)
    before_start.check_apart(ports)
    before_start.check_published(ports, advertised)
    announced = before_start.place_to_announce(options, gateway)
    # Found once: the look takes a descriptor, and a later start of a child may find none free.
    own = loopback() if control.host == ANY_HOST else ""
    local = plan.new_local_socket()
    return child_process.NodePlaces(control, gateway, announced, ha, advertised, own, local), ports


def _check_limits(options: Options, settings: Settings) -> None:
    """Raises RefusedError: at a start, waiting changes nothing; BadRequest for the console."""
    before_start.check_console(options, settings)
    try:
        check_file_limit(options.serve.queue_workers + options.serve.readers)
        check_task_limit(tasks_needed(len(_children(options, settings))), "this node")
    except errors.ServiceNotAvailable as error:
        raise errors.RefusedError(error.reason, error.hint) from None


def _watch_threads(stop: processes.StopFlag) -> list[str]:
    """From now on an unexpected error in a thread stops the node; returns their names."""
    ended: list[str] = []

    def note(caught: threading.ExceptHookArgs) -> None:
        name = caught.thread.name if caught.thread is not None else ""
        ended.append(name)
        extra = fields(thread=name)
        log.critical("an unexpected error ends the node", exc_info=caught.exc_value, extra=extra)
        stop.set()

    threading.excepthook = note
    return ended


class Supervisor:
    """The loop. It owns the children's processes and the control socket."""

    def __init__(
        self,
        options: Options,
        settings: Settings,
        held: HeldStore,
        server: Server,
        places: child_process.NodePlaces,
        events: NodeLog,
        started_at: float,
        tls: "ServerTls | None" = None,
    ) -> None:
        self.options = options
        self.settings = settings
        self._tls = tls
        self.held = held
        self.place = places.control.with_port_of(server.endpoint)
        self.server = server
        self.events = events
        self.children = _children(options, settings)
        self._places = places._replace(control=self.place, local=server.local)
        if server.local:
            plan.name_local_sockets(self.children, server.local)
        self._watch = child_process.SilenceWatch(
            held.place, options.serve.queue_workers, options.limits
        )
        self._processes: dict[int, child_process.Process] = {}
        """By the child's position in `children`."""
        self._damage = DamageList()
        self._started_at = started_at
        self._turned_at = started_at
        self._moved: errors.StoreMoved | None = None
        self._http_url = ""
        self._manager = ServiceManager.from_environment(os.environ)
        self._was_ready = False
        self._ready_line = ""
        self._stopping_since: float | None = None
        self._stop_turn = 0
        self._killed = False

    def run(self, stop: processes.StopFlag) -> int:
        """Runs until all children have ended after a stop, or the writer refuses the store."""
        if not self.place.is_loopback and not self._places.has_keys:
            log.warning(
                "reachable from other hosts: anybody there can read, write and delete, "
                "there is no authentication yet",
                extra=fields(endpoint=self.server.endpoint),
            )
        if self.place.address != self.place.host:
            found = fields(name=self.place.host, address=self.place.address)
            log.info("bound to the address of a host name", extra=found)
        forget_other_master(self.options.root)  # a start says: this node is to be the master
        with if_room():
            write_control(self.options.root, self.server.local)
        if self._places.announced and self._places.gateway.is_wildcard:
            chosen = fields(address=self._places.announced, choose="--advertise HOST")
            log.info("name servers and clients of them get this address", extra=chosen)
        with http_end(
            self.options.serve.http, self.view, lambda: self._turned_at, self._tls
        ) as self._http_url:
            try:
                return self._loop(stop)
            except Exception:
                log.critical("an unexpected error ends the node", exc_info=True)
                self._stop_in_order()
                return processes.EXIT_UNEXPECTED
            finally:
                self._end_all()

    def _loop(self, stop: processes.StopFlag) -> int:
        while True:
            now = self._turned_at = time.monotonic()
            if stop.is_set and self._stopping_since is None:
                self._stopping_since = now
                log.info("stopping")
                self._manager.stopping()
            code = self._step(now)
            if code is not None:
                return code
            settled = plan.has_settled(self.children, now, self.options.limits)
            self._manager.turn(now, settled, plan.state_line(self.children))
            self.events.turn(self._processes.values())
            if self._tls is not None:
                self._tls.look(now)
            self._wait(stop, now)

    def _step(self, now: float) -> int | None:
        """One turn; returns the exit code when the node has ended."""
        self._collect(now)
        processes.reap_adopted([process.pid for process in self._processes.values()])
        self._watch.look(self.children, self._processes, now)
        if self._stopping_since is not None:
            return self._stop_step(now)
        self._look_at_store()
        code = plan.must_end(self.children)
        if code is not None:
            if plan.nothing_runs(self.children):
                reason = "; ".join(sorted({f"{one.name}: {one.cause}" for one in self.children}))
                is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
                error = errors.RefusedError(reason, plan.hint_of_end(self.children, is_limited))
                processes.print_error("no process of the node could be started", error)
            return code
        for number, child in enumerate(self.children):
            if plan.is_due(child, self.children, now):
                self._start(number, child, now)
        self._print_when_ready(now)
        return None

    def _look_at_store(self) -> None:
        """Starts no more processes if the store has moved: they would make or use another one."""
        if self._moved is None:
            try:
                self.held.check()
            except errors.StoreMoved as error:
                self._moved = error
                details = fields(cause=error.reason, hint=error.hint)
                log.error("the store has moved, no process is started any more", extra=details)  # noqa: TRY400
            except OSError:
                return  # a disk error, which the processes report
        if self._moved is not None:
            plan.note_moved(self.children, self._moved.reason)

    # -- children -----------------------------------------------------------------------------

    def _start(self, number: int, child: Child, now: float) -> None:
        try:
            arguments = child_process.child_command(
                child, self.options, self._places, self.held.identity
            )
            inherited = [self._places.console.fd] if child.role is ChildRole.CONSOLE else []
            process = child_process.Process(arguments, inherited)
        except OSError as error:
            details = fields(process=child.name, cause=error)
            log.error("process cannot be started", extra=details)  # noqa: TRY400 (no bug of ours)
            is_short = error.errno in NO_PROCESS
            words = f"no_resources: {error.strerror}" if is_short else str(error)
            child.last_words = words
            code = processes.EXIT_NO_RESOURCES if is_short else processes.EXIT_FAILED
            plan.note_exit(child, code, now, self.options.limits)
            return
        self._processes[number] = process
        plan.note_start(child, process.pid, now)
        log.debug("process started", extra=fields(process=child.name, process_pid=process.pid))

    def _collect(self, now: float) -> None:
        """Takes in the reports of children, and the children that have ended."""
        for number, process in list(self._processes.items()):
            child = self.children[number]
            self._take_reports(child, process)
            code = process.exit_code()
            if code is None:
                continue
            self._take_reports(child, process)  # its last words may have come in between
            process.close()
            del self._processes[number]
            lacked = child.lacks
            plan.note_exit(child, code, now, self.options.limits)
            if lacked is None or child.lacks is not lacked:
                self._log_exit(child, code)

    def _take_reports(self, child: Child, process: child_process.Process) -> None:
        for report in process.reports():
            if report.recovered is not None:
                plan.note_recovery(child, report.recovered)
                continue
            if report.damage is not None:
                # A writer that cannot start says so itself, and its words must be the last ones.
                logs = child.role is not ChildRole.WRITER or child.was_ready
                self._damage.note(child.name, report.damage, logs=logs)
                continue
            if report.endpoint is None:
                child.last_words = report.reason
                continue
            if child.role is ChildRole.WRITER and not child.was_ready:
                shards = self.options.serve.queue_workers
                slots = {plan.page_slot(one, shards) for one in self.children}
                with if_room():
                    before_start.remove_old_pages(self.held.place, slots)
            endpoint = report.endpoint
            if child.role in (ChildRole.WRITER, ChildRole.READER):
                endpoint = at_host(endpoint, self.place.host)  # a name, where it was given one
            plan.note_ready(child, endpoint)
            if self._was_ready and child.restarts:
                details = fields(process=child.name, process_pid=process.pid)
                log.info("process runs again", extra=details)

    def _log_exit(self, child: Child, code: int) -> None:
        if child.state is ChildState.STOPPED and code == 0:
            return
        if plan.must_end(self.children) is not None:
            return  # the writer's own three lines must be the last ones
        details: dict[str, object] = {"process": child.name, "end": plan.end_of(code)}
        details["cause"] = child.cause
        level, text = _LOGGED_ENDS.get(child.state, (logging.ERROR, "process ended"))
        if child.state is ChildState.FAILING:
            details["again_s"] = round(child.start_at - time.monotonic(), 1)
        elif child.state not in _LOGGED_ENDS:
            details["state"] = child.state
        log.log(level, text, extra=fields(**details))
        refused = plan.refusal_of_appends(self.children[0])
        if child.role is ChildRole.WRITER and refused is not None and refused.reason == READ_ONLY:
            log.error("the node is read-only now", extra=fields(cause=child.cause))

    def _print_when_ready(self, now: float) -> None:
        if not self._was_ready and self._is_ready(now):
            self._was_ready = True
            gateway, ha = self._places.gateway, self._places.ha
            found = [plan.summary(self.children), self.settings.kept]
            found += [f"metrics {self._http_url}/metrics"] if self._http_url else []
            found += [f"remoting {gateway.host}:{gateway.port}"] if gateway.port else []
            found += [f"followers at {ha.host}:{ha.port}"] if ha.port else []
            found += [f"console {self._places.console.url}"] if self._places.console.url else []
            found += [] if self.events.file is None else [f"log {self.events.file}"]
            where, took_s = f"{self.place.endpoint} ({', '.join(found)})", now - self._started_at
            self._ready_line = f"ready {where} in {took_s:.1f} s\n"
        # Scripts wait for it, so it is tried again while nobody reads.
        if self._ready_line and stderr.try_to_write(printable(self._ready_line)):
            self._ready_line = ""

    def _is_ready(self, now: float) -> bool:
        if self._stopping_since is not None or not plan.serves_what_was_asked_for(self.children):
            return False
        if plan.silence(self.children, self.options.limits):
            return False
        return self._was_ready or plan.has_settled(self.children, now, self.options.limits)

    # -- stopping -----------------------------------------------------------------------------

    def _stop_step(self, now: float) -> int | None:
        """Asks the processes to stop, in turn; returns the exit code when all have ended."""
        for child in self.children:
            if not child.is_alive and child.state in (ChildState.WAITING, *TRIED_AGAIN):
                child.state = ChildState.STOPPED
        self._ask_in_turn(now)
        since = self._stopping_since
        if since is not None and now - since > self.options.limits.stop_s_max:
            self._kill_late()
        if self._processes:
            return None
        log.info("stopped")
        return 1 if self._killed else 0

    def _ask_in_turn(self, now: float) -> None:
        """The gateway first, which sends the writer what it has gathered, then the writer, which
        flushes and waits for the workers, then all others."""
        everyone = range(len(self.children))
        gateways = [n for n in everyone if self.children[n].role is ChildRole.GATEWAY]
        for turn, numbers in enumerate((gateways, [0], everyone)):
            if turn > self._stop_turn:
                self._stop_turn, self._stopping_since = turn, now
            for number in numbers:
                child = self.children[number]
                is_up = child.state in (ChildState.STARTING, ChildState.RUNNING)
                if is_up and number in self._processes:
                    child.state = ChildState.STOPPING
                    self._processes[number].signal(signal.SIGTERM)
            if any(self.children[number].is_alive for number in numbers):
                return

    def _kill_late(self) -> None:
        for number, process in self._processes.items():
            if self.children[number].state is ChildState.STOPPING:
                waits = False
                with suppress(OSError):  # it has ended meanwhile, or no descriptor is free
                    waits = child_process.waits_for_disk(process.pid)
                extra = fields(process=self.children[number].name, waits_for_disk=waits)
                log.error("process does not stop and is killed", extra=extra)
                process.signal(signal.SIGKILL)
                self._killed = True

    def _stop_in_order(self) -> None:
        """Stops all children as a signal does, but without answering clients meanwhile."""
        self._stopping_since = self._stopping_since or time.monotonic()
        while self._step(time.monotonic()) is None:
            time.sleep(_STOP_LOOK_S)

    def _end_all(self) -> None:
        """Ends every child that is left, whatever happened."""
        deadline = time.monotonic() + self.options.limits.stop_s_max
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
        while self._processes and time.monotonic() < deadline:
            self._collect(time.monotonic())
            time.sleep(_STOP_LOOK_S)
        for process in self._processes.values():
            process.signal(signal.SIGKILL)

    # -- waiting and answering ----------------------------------------------------------------

    def _wait(self, stop: processes.StopFlag, now: float) -> None:
        """Sleeps until a child, a client or a signal needs attention, then serves clients."""
        poller = zmq.Poller()
        for listening in self.server.watched:
            poller.register(listening, zmq.POLLIN)
        if self._stopping_since is None:
            poller.register(stop.fd, zmq.POLLIN)
        for process in self._processes.values():
            for watched in (process.pidfd, process.report_fd):
                if watched is not None:
                    poller.register(watched, zmq.POLLIN)
        # Without a pidfd it looks for ends: the pipe may close a moment before.
        is_blind = any(process.pidfd is None for process in self._processes.values())
        sleep_s = _BLIND_POLL_S_MAX if is_blind else _POLL_S_MAX
        due = plan.next_due(self.children)
        sleep_s = sleep_s if due is None else min(max(due - now, 0.0), sleep_s)
        poller.poll(int(sleep_s * 1000) + 1)
        self.server.turn()
        answer_clients(self.server, self.view)

    def view(self) -> NodeView:
        """The node as it is now. Any thread may call it: it changes nothing."""
        now = time.monotonic()
        return NodeView(
            root=self.held.place,
            options=self.options,
            settings=self.settings,
            children=self.children,
            advertised=self._places.advertised,
            takes_local=self.place.takes_local,
            ready=self._is_ready(now),
            stopping=self._stopping_since is not None,
            now=now,
            started_at=self._started_at,
            http_url=self._http_url,
            console_url=self._places.console.url,
            log_file=self.events.file,
            damage=self._damage,
            tls=None if self._tls is None else self._tls.state(),
        )


def _children(options: Options, settings: Settings) -> list[Child]:
    return plan.plan_children(
        options.serve.queue_workers,
        options.serve.readers,
        settings.message_index_enable,
        with_gateway=bool(options.serve.remoting),
        with_followers=bool(options.serve.ha_listen),
        with_tasks=not settings.follow,
        with_console=bool(options.serve.console),
    )


def _bind(context: Context, places: child_process.NodePlaces, gate: CurveGate | None) -> Server:
    """Opens the socket. Raises RefusedError for a taken address: waiting will not free it."""
    place = places.control
    name = "" if place.bound == place.endpoint else place.endpoint
    try:
        return open_server(
            gate, context, place.bound, frame_bytes_max=CONTROL_FRAME_BYTES_MAX, name=name,
            local=places.local,
        )  # fmt: skip
    except errors.ServiceNotAvailable as error:
        raise errors.RefusedError(error.reason, error.hint) from None


@contextmanager
def console_end(serve: ServeSettings, has_tls: bool) -> Iterator[child_process.ConsoleEnd]:
    """The socket at which the console is asked, within the context. It outlives the console's
    process, so that no connection is lost with it. Raises RefusedError."""
    place = bind.parse_console(serve.console)
    if place is None:
        yield child_process.NO_CONSOLE
        return
    try:
        listener = listen_at(place.host, place.port, bind.CONSOLE_BACKLOG)
    except OSError as error:
        raise errors.RefusedError(
            f"cannot listen at {place.host}:{place.port}, for --console: {error.strerror or error}",
            "stop the process that listens there, or name another port",
        ) from None
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", ANY_HOST: "127.0.0.1"}.get(place.host)
    scheme, port = "https" if has_tls else "http", listener.getsockname()[1]
    url = f"{scheme}://{host or place.host}:{port}{serve.console_path}/"
    with listener:
        yield child_process.ConsoleEnd(listener.fileno(), url)


def answer_clients(server: Server, view: Callable[[], NodeView]) -> None:
    """Replies to requests that wait, up to a number that does not delay the supervisor's work."""

    def reply(operation: str, header: frames.Header, received: Received) -> frames.Header:
        if received.payload is not None:
            raise errors.BadRequest(f"{operation[:40]!a} is one frame, two came")
        number = frames.request_id(header)
        match operation:
            case "routes":
                return frames.answer(number, **routes(view(), received.is_own))
            case "status":
                return frames.answer(number, **as_json(status(view())))
            case "health":
                return frames.answer(number, **as_json(health(view())))
            case "members":
                return frames.answer(number, groups=read_members(view().root))
            case "ping":
                return frames.answer(number)
        raise errors.UnknownOperation(
            f"the supervisor knows no operation {operation[:40]!a}",
            "ask routes where the writer and the readers are",
        )

    serve_waiting(server, _ANSWERS_AT_ONCE, "the supervisor", reply, CONTROL_FRAME_BYTES_MAX)


@contextmanager
def http_end(
    address: str,
    view: Callable[[], NodeView],
    turned_at: Callable[[], float],
    tls: "ServerTls | None" = None,
) -> Iterator[str]:
    """Serves the pages at `--http` within the context, and yields their URL, which is empty without
    `--http`. Raises RefusedError for a port that is taken."""
    place = bind.parse_http(address)
    if place is None:
        yield ""
        return
    # Only here: http.server takes longer to import than all else of a supervisor.
    from node.supervisor.monitoring.http_server import PATHS, HealthPages, HttpServer

    try:
        end = HttpServer(place.host, place.port, HealthPages(view, turned_at), tls)
    except OSError as error:
        raise errors.RefusedError(
            f"cannot listen at {place.host}:{place.port}, for --http: {error.strerror or error}",
            "stop the process that listens there, or name another port",
        ) from None
    log.info("health and metrics are served", extra=fields(url=end.url, paths=" ".join(PATHS)))
    if not place.is_loopback:
        log.warning("metrics can be read from other hosts", extra=fields(url=end.url))
    try:
        yield end.url
    finally:
        end.close()
