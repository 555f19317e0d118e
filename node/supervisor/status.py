"""What a supervisor reports of its node: routes, status, health.

Offsets come from the pages that the processes publish, memory and CPU time from psutil.

A process reports a damaged place when it meets one, and then how often it met it (`DamageReport`).
The list of them is the supervisor's: it outlives the processes, and is empty after a start of the
node. Retention is forecast: the age of the oldest message, and which segment goes next, and when.
`node/writer/log/retention.py` deletes, by the same rules.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil

from node.access.tls_settings import TlsState
from node.runtime import run_files, shortage, state_page, stats_series
from node.runtime.event_log import fields
from node.runtime.process import DamageReport, now_ms
from node.runtime.settings import Settings
from node.runtime.stats import SUM, Histogram, SlotStats, read_stats
from node.serving.request_server import bulk_socket
from node.store import staging_files
from node.supervisor import plan
from node.supervisor.bind import Advertised
from node.supervisor.child_process import UNKNOWN
from node.supervisor.options import Options
from protocol.addresses import WILDCARDS
from protocol.errors import ServiceNotAvailable
from protocol.names import COMMIT_LOG_DIR, offset_file_name, parse_offset_file_name
from protocol.status import (
    AT_MS,
    DiskStatus,
    Fact,
    FoundDamage,
    HealthCheck,
    LogStatus,
    ProcessStatus,
)
from protocol.wire.frames import PAYLOAD_BYTES_MAX, refusal

damage_log = logging.getLogger("keelog.supervisor")
DAMAGED_PLACES_MAX = 100
"""Places that are listed; of further ones only the number of meetings is kept."""
Fields = dict[str, Any]
SILENT = "silent"
"""Shown as the state of a process without heartbeats."""
WARN_AHEAD_MS = 5_000
"""A promoted replica has store times of another clock, which may be this much ahead."""
CONTROLLERS_HEARD_S = 10.0
"""After so long without an answer of the controllers the check is bad."""
GROUP_ROWS_SHOWN_MAX = 100
"""Pairs of a group and a topic in a status, the largest lag first."""

NO_TIMES = Histogram((0,) * SUM, 0)
_FLUSH = "log_flush"
"""A row beside those of requests: flushes of the log."""
_NO_LOG = state_page.LogState(*(0 for _ in state_page.LogState._fields))
_SHORTAGES = {
    state_page.DISK_FULL: (shortage.FULL, shortage.FREE_SPACE),
    state_page.NO_RESOURCES: (shortage.SHORT, shortage.MORE_RESOURCES),
}
"""What a writer lacks in a state: its name, and the hint."""
_SHOWN_STATES = (state_page.RECOVERING, state_page.DAMAGED, *_SHORTAGES)
_NO_WORKER = state_page.WorkerState(*(0 for _ in state_page.WorkerState._fields))
CERTIFICATE_DAYS_MIN = 14
"""A certificate that ends sooner is a check that fails."""
_HOUR_S = 3600
_DAY_MS = 86_400_000
_USUAL = Settings()


class DamageStatus(NamedTuple):
    """The damaged places that processes have met, the place that was met last first."""

    places: tuple[FoundDamage, ...]
    others: Annotated[int, Fact("meetings with places that are not listed")]


class DamageList:
    """Written by the supervisor's thread, read by others."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], FoundDamage] = {}
        self._others = 0
        self.meetings = 0
        """Reads of all processes that met damage."""

    def note(self, process: str, damage: DamageReport, logs: bool = True) -> None:
        """Adds a report; `logs`: a place that is new is a line of the node's log."""
        self.meetings += damage.times
        key = damage.file, damage.offset
        known = self._places.get(key)
        if known is None and (len(self._places) >= DAMAGED_PLACES_MAX or not damage.file):
            self._others += damage.times
            return
        if known is None and logs:
            found = fields(
                process=process, file=damage.file, offset=damage.offset, found=damage.found
            )
            damage_log.error("damage was found", extra=found)
        count, first_ms = damage.times, damage.first_ms
        if known is not None:
            count, first_ms = known.count + count, known.first_ms
        self._places[key] = FoundDamage(
            damage.file, damage.offset, damage.found, count, first_ms, damage.last_ms, process
        )

    def status(self, store: Path) -> DamageStatus:
        """As `keelog status --json` shows it. Files that retention has deleted since are left
        out."""
        is_away = not store.exists()
        found = sorted(self._places.values(), key=lambda place: -place.last_ms)
        rows = tuple(
            replace(place, file=str(store / place.file))
            for place in found
            if is_away or (store / place.file).exists()
        )
        return DamageStatus(rows, self._others)

    def text(self, store: Path) -> str:
        """The list in a line, for health; empty without damage."""
        rows, others = self.status(store)
        if not rows and not others:
            return ""
        count = sum(row.count for row in rows) + others
        places = f"{len(rows)}{' listed' if others else ''}"
        last = f", the last one at {rows[0].file}, offset {rows[0].offset}" if rows else ""
        return (
            f"damaged places: {places}, met {count} times{last}; on the node's machine:"
            f" keelog store verify {store} --deep"
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node at one moment."""

    root: Path
    """A path to the store that the supervisor holds, wherever the store is now."""
    options: Options
    """Its `root` is the path of the store for people."""
    settings: Settings
    children: list[plan.Child]
    advertised: Advertised
    """What clients are given for the addresses at which the children listen."""
    ready: bool
    stopping: bool
    now: float
    started_at: float
    http_url: str = ""
    """The URL of health and metrics; empty without `--http`."""
    console_url: str = ""
    """Where a browser of this machine finds the console; empty without `--console`."""
    log_file: Path | None = None
    """The file to which stderr goes, if it is a file."""
    damage: DamageList = field(default_factory=DamageList)
    takes_local: bool = True
    """Whether clients of this machine are given its local sockets."""
    tls: TlsState | None = None
    """None for a node without TLS."""


def routes(view: NodeView, is_own: bool = False) -> Fields:
    """The endpoints of writer and readers. `writer` is null while none can take appends soon.

    `writer_error` then gives the reason, in the form of the error of a refused request. `is_own`:
    who asks came over the local socket, and goes on over those of the others, which need no keys.
    """
    writer, *others = view.children
    refused = plan.refusal_of_appends(writer, view.options.root)
    error = refused and ServiceNotAvailable(f"{refused.reason}: {refused.cause}", refused.hint)
    known = bool(writer.endpoint) and refused is None and not view.stopping
    readers = [child for child in others if child.role is plan.ChildRole.READER and child.endpoint]
    serving = [child for child in readers if child.state is plan.ChildState.RUNNING] or readers

    def at(child: plan.Child) -> str:
        return child.local if is_own else view.advertised.endpoint(child.endpoint)

    # Others get both, where messages over both have the same born host.
    has_both = view.takes_local and not is_own
    return {
        "writer": at(writer) if known else None,
        "writer_error": None if error is None else refusal(0, error)["error"],
        "readers": [at(child) for child in serving],
        "local": {
            at(child): child.local
            for child in [writer, *serving]
            if has_both and child.endpoint and child.local
        },
        "bulk": {
            at(child): bulk_socket(child.local)
            for child in serving
            if child.local and (has_both or is_own)
        },
        "remoting": _remoting(view),
        "remoting_tls": None if view.tls is None else view.tls.mode,
        "crc": view.settings.enabled_append_prop_crc,
        "max_message_size": view.settings.max_message_size,
        "epoch": read_log(view.root).epoch,
        "node": view.options.version,
        "shards": view.options.serve.queue_workers,
    }


def _remoting(view: NodeView) -> str | None:
    """Where the gateway listens; empty before it does, None for a node without one."""
    gateways = [child for child in view.children if child.role is plan.ChildRole.GATEWAY]
    return view.advertised.endpoint(gateways[0].endpoint) if gateways else None


class SegmentToGo(NamedTuple):
    """The first segment of the log, and what makes it go; null where nothing does."""

    start: int
    end: int
    at_ms: Annotated[int, Fact(f"when it goes by its age at the earliest, {AT_MS}")]
    growth_bytes: Annotated[int | None, Fact("or when the log has grown by them")]
    disk_bytes: Annotated[int | None, Fact("or when they are used on the disk too")]


class RetentionStatus(NamedTuple):
    """The oldest message, and the first segment unless it is the last one too, which stays."""

    oldest_ms: Annotated[int | None, Fact(f"when the oldest message was stored, {AT_MS}")]
    next: SegmentToGo | None


class SupervisorStatus(NamedTuple):
    """The supervisor itself."""

    pid: int
    state: str
    uptime_s: float
    rss_bytes: int | None
    cpu_s: float | None


class SettingOrigin(NamedTuple):
    """A setting that was given, and by whom."""

    setting: str
    origin: Annotated[str, Fact("file, environment, -X or option")]
    where: str


class OperationStatus(NamedTuple):
    """Requests of one kind, and their times."""

    op: Annotated[str, Fact("append, pull, …, log_flush")]
    requests: int
    failed: Annotated[int, Fact("answered otherwise than OK")]
    p50_ms: Annotated[float | None, Fact("of all of them, exact to a power of two")]
    p99_ms: float | None
    buckets: tuple[int, ...]
    """Bucket n counts times in [2**(n - 1), 2**n) ns, without zeros at the end. The difference of
    two rows is the time between them."""


class Status(NamedTuple):
    """Everything about the processes, the log and the disk."""

    ready: bool
    mode: Annotated[str, Fact("normal, replica, or why appends are refused: read_only, …")]
    cause: str | None
    store: str
    kernel: str
    http: Annotated[str | None, Fact("where metrics and health pages are")]
    console: Annotated[str | None, Fact("where a browser of its machine finds the console")]
    log_file: Annotated[str | None, Fact("the file that the node's log goes to")]
    settings: Annotated[tuple[str, ...], Fact("NAME=VALUE, those that differ from their defaults")]
    origins: tuple[SettingOrigin, ...]
    processes: tuple[ProcessStatus, ...]
    log: LogStatus
    disk: DiskStatus
    retention: RetentionStatus
    damage: DamageStatus
    operations: tuple[OperationStatus, ...]
    groups: run_files.GroupsStatus
    timers: run_files.TimerState
    followers: run_files.FollowersState
    following: run_files.FollowState | None
    elected: run_files.ElectedState | None
    tls: TlsState | None
    transactions: Annotated[
        dict[str, int], Fact("that the last round of checks found open for long", names=("open",))
    ]
    supervisor: SupervisorStatus


def status(view: NodeView) -> Status:
    log, stats = read_log(view.root), read_stats(view.root)
    refused, settings = _refused(view, log), view.settings
    # A replica takes its messages from a master.
    usual_mode = "replica" if settings.follow else "normal"
    open_count = sum(
        slot.values.get(stats_series.series(stats_series.OPEN_TRANSACTIONS), 0) for slot in stats
    )
    has_gateway = any(child.role is plan.ChildRole.GATEWAY for child in view.children)
    groups, url = run_files.read_group_lags(view.root), view.http_url
    is_everywhere = url.partition("://")[2].rpartition(":")[0] in WILDCARDS
    # Imported here: it brings numpy, for which a start must not wait.
    from protocol.kernel import loader

    return Status(
        ready=_is_ready(view, refused, late_flush(view, log)),
        mode=usual_mode if refused is None else refused.reason,
        cause=None if refused is None else refused.cause,
        store=str(view.options.root),
        kernel=loader.describe(),
        # It has a host of its own, unless it listens at all of them.
        http=(view.advertised.endpoint(url) if is_everywhere else url) or None,
        console=view.console_url or None,
        log_file=None if view.log_file is None else str(view.log_file),
        settings=tuple(
            f"{name}={value}"
            for name, value in asdict(settings).items()
            if value != getattr(_USUAL, name)
        ),
        origins=tuple(SettingOrigin(**one) for one in view.options.origins),
        processes=process_rows(view),
        log=log_status(log),
        disk=disk(view),
        retention=retention(view.root, settings, log),
        damage=view.damage.status(view.options.root),
        operations=operations(stats),
        groups=groups._replace(rows=groups.rows[:GROUP_ROWS_SHOWN_MAX]),
        timers=run_files.read_timer_state(view.root),
        followers=followers_of(view.root, view.children) or run_files.FollowersState(),
        following=run_files.read_follow_state(view.root)._replace(source=settings.follow)
        if settings.follow
        else None,
        elected=run_files.read_elected(view.root) if settings.controller_id else None,
        tls=view.tls,
        transactions={"open": open_count if has_gateway else 0},
        supervisor=SupervisorStatus(
            os.getpid(),
            "stopping" if view.stopping else "running",
            round(view.now - view.started_at, 3),
            *usage(os.getpid()),
        ),
    )


def operations(slots: Iterable[SlotStats]) -> tuple[OperationStatus, ...]:
    """A row for each operation with a request, summed over all slots and restarts."""
    times: dict[str, Histogram] = {}
    requests: dict[str, int] = {}
    failed: Counter[str] = Counter()
    for slot in slots:
        for one, found in slot.histograms.items():
            if one.family in (stats_series.DURATION, stats_series.LOG_FLUSH):
                is_flush = one.family is stats_series.LOG_FLUSH
                op = _FLUSH if is_flush else dict(one.labels)["op"]
                times[op] = times.get(op, NO_TIMES).plus(found)
                requests[op] = requests.get(op, 0) + (found.total if is_flush else 0)
        for one, count in slot.values.items():
            if one.family is stats_series.REQUESTS and count:
                labels = dict(one.labels)
                requests[labels["op"]] = requests.get(labels["op"], 0) + count
                failed[labels["op"]] += 0 if labels["code"] == stats_series.OK else count
    rows = []
    for op, count in requests.items():
        if count:
            took = times.get(op, NO_TIMES)
            buckets = list(took.buckets)
            while buckets and not buckets[-1]:
                buckets.pop()
            rows.append(OperationStatus(op, count, failed[op], *quantiles(took), tuple(buckets)))
    return tuple(rows)


def quantiles(times: Histogram) -> tuple[float | None, float | None]:
    """p50 and p99 in ms, exact to a power of two; None without times."""
    found = (times.quantile(part) for part in (0.5, 0.99))
    p50, p99 = (None if value_ns is None else round(value_ns / 1e6, 3) for value_ns in found)
    return p50, p99


def log_status(log: state_page.LogState) -> LogStatus:
    """The writer's page as status has it."""
    return LogStatus(
        log.min_offset, log.appended, log.committed, log.flushed, log.readable, log.epoch,
        log.records, store_ahead_ms(log),
    )  # fmt: skip


class HealthStatus(NamedTuple):
    """Whether the node is ready, and each thing that should be right."""

    ready: bool
    checks: tuple[HealthCheck, ...]


def health(view: NodeView) -> HealthStatus:
    """The checks; those with `needed` decide whether the node is ready."""
    space, log = disk(view), read_log(view.root)
    refused = _refused(view, log)
    late = late_flush(view, log)
    silent = plan.silence(view.children, view.options.limits)
    ahead_ms = store_ahead_ms(log)
    clock = f"the newest store time lies {ahead_ms / 1000:.0f} s ahead of it: it is wrong, or was"
    problems = list(staging_files.problems(view.root))
    damage = view.damage.text(view.options.root)
    master = view.settings.follow
    appends = f"none are taken, the node follows {master}" if master else "accepted"
    if refused is not None:
        appends = f"refused, {refused.reason}: {refused.cause}"
    checks = (
        _role_check(view, plan.ChildRole.WRITER, "writer", needed=True),
        _check("appends", refused is None, appends, needed=True),
        _role_check(view, plan.ChildRole.READER, "readers", needed=True),
        _role_check(view, plan.ChildRole.QUEUE, "queue_workers", needed=False),
        _role_check(view, plan.ChildRole.INDEX, "index_worker", needed=False),
        *_feature_checks(view),
        _check("heartbeat", not silent, silent or "every process gives its own", needed=True),
        _check("flush", not late, late or "none takes long", needed=view.settings.is_sync_flush),
        *_undelivered_check(view),
        _check("clock", ahead_ms <= WARN_AHEAD_MS, clock if ahead_ms else "no store time is ahead"),
        _check("publications", not problems, "; ".join(problems) or "none is stuck"),
        # Reads of everything else go on: one bad record must not cost a node its clients.
        _check("damage", not damage, damage or "none was met since the start"),
        _check("disk", not space.shortage, disk_text(space)),
    )
    return HealthStatus(_is_ready(view, refused, late), checks)


def late_flush(view: NodeView, log: state_page.LogState) -> str:
    """The flush of the log that takes longer than the limit of silence; empty without one."""
    flushes = log.flush_began_ms and view.children[0].is_alive
    took_s = (now_ms() - log.flush_began_ms) / 1000 if flushes else 0.0
    if took_s <= view.options.limits.silence_s_max:
        return ""
    return f"the disk has not ended a flush of the log for {took_s:.0f} s"


def store_ahead_ms(log: state_page.LogState) -> int:
    """How far the newest store time lies ahead of the clock."""
    return max(0, log.newest_ms - now_ms())


def _undelivered_check(view: NodeView) -> list[HealthCheck]:
    """None for a node that delivers, or whose master does."""
    if view.settings.follow or any(child.role is plan.ChildRole.TASKS for child in view.children):
        return []
    waiting = run_files.read_timer_state(view.root).undelivered
    text = f"{waiting} messages wait, and nobody delivers them: start the node with --remoting"
    return [_check("delays", not waiting, text if waiting else "no delayed message waits")]


def _is_ready(view: NodeView, refused: plan.Refusal | None, late: str) -> bool:
    """False while a flush is late in SYNC_FLUSH: no send is acknowledged then."""
    waits = view.settings.is_sync_flush and late != ""
    return view.ready and refused is None and not waits


def _refused(view: NodeView, log: state_page.LogState) -> plan.Refusal | None:
    """Why appends are refused: as a running writer says it, or as the supervisor knows."""
    writer = view.children[0]
    other = run_files.read_other_master(view.root)
    if other is not None and other.leads:
        return plan.Refusal(run_files.ANOTHER_MASTER, str(other), run_files.STEP)
    if writer.is_alive and writer.lacks is None and log.state in _SHORTAGES:
        reason, hint = _SHORTAGES[log.state]
        with suppress(OSError), state_page.LogPage.open(view.root) as page:
            return plan.Refusal(reason, page.refusal.removeprefix(f"{reason}: "), hint)
    return plan.refusal_of_appends(writer, view.options.root)


def _check(name: str, ok: bool, detail: str, needed: bool = False) -> HealthCheck:
    return HealthCheck(name, ok, detail, needed)


def _role_check(view: NodeView, role: plan.ChildRole, name: str, needed: bool) -> HealthCheck:
    children = [child for child in view.children if child.role is role]
    running = sum(child.state is plan.ChildState.RUNNING for child in children)
    others = [
        f"{child.name} "
        + (child.state if child.recovered is None else f"recovering, {child.recovered:.0%} done")
        for child in children
        if child.state != plan.ChildState.RUNNING
    ]
    detail = ", ".join([f"{running} of {len(children)} running", *others])
    enough = running >= min(1, len(children)) if needed else running == len(children)
    return _check(name, enough and not (needed and view.stopping), detail, needed)


def _feature_checks(view: NodeView) -> Iterator[HealthCheck]:
    """Yields the checks of what a node has only where an option asks for it."""
    settings, roles = view.settings, {child.role for child in view.children}
    if plan.ChildRole.GATEWAY in roles:
        yield _role_check(view, plan.ChildRole.GATEWAY, "gateway", needed=True)
        if not settings.follow:  # a replica has no tasks: the master delivers what is delayed
            yield _role_check(view, plan.ChildRole.TASKS, "tasks", needed=True)
    if not settings.follow and not settings.controller_id and _remoting(view):
        other = run_files.read_other_master(view.root)
        found = "no other one is known" if other is None else f"{other}; {run_files.STEP}"
        yield _check("masters", other is None, found)
    followers = followers_of(view.root, view.children)
    if followers is not None:
        yield _role_check(view, plan.ChildRole.FOLLOWERS, "followers_process", needed=True)
        yield _check("followers", *followers_check(followers, settings))
    if plan.ChildRole.CONSOLE in roles:
        yield _role_check(view, plan.ChildRole.CONSOLE, "console", needed=False)
    if settings.follow:
        yield _check("following", *following_check(view.root))
    if settings.controller_id:
        yield _check("controllers", *elected_check(view.root))
    if view.tls is not None:
        yield _check("certificate", *certificate_check(view.tls))


def certificate_check(state: TlsState) -> tuple[bool, str]:
    """Whether the certificate is one for a while yet, and its files are in use as they are."""
    days = state.left_ms // _DAY_MS
    text = f"ends in {days} days" if days >= 0 else f"ended {-days} days ago"
    if state.trouble:
        text = f"new files are not used: {state.trouble}; the one in use {text}"
    return not state.trouble and days >= CERTIFICATE_DAYS_MIN, text


def following_check(root: Path) -> tuple[bool, str]:
    """Whether the replica follows, and its state in words."""
    state = run_files.read_follow_state(root)
    master = state.master or state.source or "its master"
    if state.state == run_files.FOLLOWING:
        words = f"follows {master}, lag {state.lag_bytes} bytes, {state.lag_ms / 1000:.1f} s"
        failed = ", ".join(f"{part} ({why})" for part, why in state.metadata.items() if why)
        return True, f"{words}; not taken over: {failed}" if failed else words
    if state.state == run_files.STOPPED:
        return False, f"stopped following {master}: {state.kind}: {state.reason}"
    why = state.reason or state.disconnected
    since_s = (now_ms() - state.disconnected_ms) / 1000
    since = f", without it for {since_s:.0f} s" if state.disconnected_ms else ""
    words = f"{state.state} to {master}{since}" + (f": {why}" if why else "")
    return state.state == run_files.COMPARING, words


def followers_of(root: Path, children: Sequence[plan.Child]) -> run_files.FollowersState | None:
    """None for a node that nobody may follow; nobody while the process does not run."""
    found = [child for child in children if child.role is plan.ChildRole.FOLLOWERS]
    if not found:
        return None
    state = run_files.read_followers(root)
    return state if found[0].is_alive else state._replace(followers=())


def followers_check(state: run_files.FollowersState, settings: Settings) -> tuple[bool, str]:
    """Whether as many are in sync as messages need, and how they are, in words."""
    needed = settings.followers_needed if settings.waits_for_followers else 0
    rows = state.followers
    late = max(rows, key=lambda row: row.lag_bytes, default=None)
    text = f"{len(rows)} connected, {state.in_sync} in sync"
    if needed:
        text += f", {needed} needed"
    if late is not None:
        text += f"; the largest lag is {late.lag_bytes} bytes, {late.lag_s:.1f} s"
    elif state.ended:
        text += f"; the last one was {state.ended[0].address}: {state.ended[0].reason}"
    return state.in_sync >= needed, text


def elected_check(root: Path) -> tuple[bool, str]:
    """Whether the controllers answer, and what they have decided in words."""
    state = run_files.read_elected(root)
    silent_s = (now_ms() - state.heard_ms) / 1000
    if silent_s > CONTROLLERS_HEARD_S:
        why = f": {state.why}" if state.why else ""
        return False, f"no controller has answered for {silent_s:.0f} s{why}"
    ids = ", ".join(map(str, state.in_sync)) or "nobody"
    text = (
        f"node {state.broker_id} {state.role}, epoch {state.epoch}, master {state.master_id} at"
        f" {state.master or 'no place'}, in sync {ids}; {state.controllers} of"
        f" {state.controllers_all} controllers hear it, {state.leader or 'none'} leads them"
    )
    return not state.why, state.why or text


def process_rows(view: NodeView) -> tuple[ProcessStatus, ...]:
    """A row for each child, the writer first."""
    log = read_log(view.root)
    return tuple(_process_row(view, child, log) for child in view.children)


def _process_row(view: NodeView, child: plan.Child, log: state_page.LogState) -> ProcessStatus:
    if child.role is plan.ChildRole.WRITER:
        own_state, offset, lag = log.state, log.appended, log.appended - log.flushed
    else:
        worker = read_worker(view.root, plan.page_slot(child, view.options.serve.queue_workers))
        own_state, offset, lag = worker.state, worker.dispatched, log.readable - worker.dispatched
        if child.role in (plan.ChildRole.TASKS, plan.ChildRole.CONSOLE):
            lag = 0  # they read queues, as any consumer
        if child.role is plan.ChildRole.FOLLOWERS and not worker.held:
            lag = 0  # nobody follows
    state: str = child.state
    if child.is_alive and own_state in _SHOWN_STATES:
        state = state_page.STATE_NAMES[own_state]
    if child.is_failing and child.is_alive:
        state = plan.ChildState.FAILING
    if child.recovered is not None:
        state = state_page.STATE_NAMES[state_page.RECOVERING]
    if child.lacks is not None and child.is_alive:
        state = child.lacks
    if plan.is_silent(child, view.options.limits):
        state = SILENT
    return ProcessStatus(
        child.role,
        child.index,
        child.pid,
        state,
        child.restarts,
        round(view.now - child.started_at, 3) if child.is_alive else 0.0,
        *usage(child.pid),
        endpoint=view.advertised.endpoint(child.endpoint),
        offset=offset,
        lag_bytes=max(0, lag),
        exit_code=child.exit_code,
        cause=child.cause or None,
        recovered=child.recovered,
    )


def read_log(root: Path) -> state_page.LogState:
    """The writer's page; zeros while there is none that can be read."""
    with suppress(OSError), state_page.LogPage.open(root) as page:
        return page.read()
    return _NO_LOG


def read_worker(root: Path, slot: str) -> state_page.WorkerState:
    """A worker's page; zeros while there is none that can be read."""
    with suppress(OSError), state_page.WorkerPage.open(root, slot) as page:
        return page.read()
    return _NO_WORKER


def usage(pid: int | None) -> tuple[int | None, float | None]:
    """Memory and CPU time of a process; None when it is gone, or the system does not show them."""
    if pid is not None:
        with suppress(psutil.Error, OSError, *UNKNOWN):
            process = psutil.Process(pid)
            times = process.cpu_times()
            return process.memory_info().rss, round(times.user + times.system, 3)
    return None, None


def disk(view: NodeView) -> DiskStatus:
    """Free bytes and the used part of the store's file system, and what that costs by the
    settings, as the writer sees it."""
    space = shortage.disk_space(view.root)
    costs = shortage.shortage_at(shortage.use_of(view.root), view.settings)
    return DiskStatus(space.free_bytes, round(space.used_ratio, 6), costs or None)


def disk_text(space: DiskStatus) -> str:
    """The disk in words, for people."""
    free = f"{space.free_bytes} bytes free, {space.used_ratio:.1%} used"
    return f"{free}; {space.shortage}" if space.shortage else free


def retention(root: Path, settings: Settings, log: state_page.LogState) -> RetentionStatus:
    """What goes next. `at_ms` is the earliest: a topic of a longer retention, or a worker with a
    lag, keeps a segment."""
    following = None
    with suppress(FileNotFoundError):  # it goes just now, or somebody has removed the directory
        following = _next_segment(root, settings)
    return RetentionStatus(oldest_ms(root, log), following)


def oldest_ms(root: Path, log: state_page.LogState) -> int | None:
    """The store time of the log's first record, in ms since 1970; None for an empty log, or while
    its first record cannot be read."""
    # Imported here: it brings numpy, for which a start must not wait.
    from protocol.record.codec import Record, decode

    if log.readable <= log.min_offset or not log.segment_bytes:
        return None
    position = log.min_offset % log.segment_bytes
    path = root / COMMIT_LOG_DIR / offset_file_name(log.min_offset - position)
    try:
        with path.open("rb", buffering=0) as file:
            size = int.from_bytes(os.pread(file.fileno(), 4, position), "big")
            data = os.pread(file.fileno(), min(size, PAYLOAD_BYTES_MAX), position)
    except OSError:
        return None  # retention has just removed it, or writer and readers report a bad disk
    found = decode(data, 0, log.min_offset)
    return found.head.store_timestamp if isinstance(found, Record) else None


def _next_segment(root: Path, settings: Settings) -> SegmentToGo | None:
    with os.scandir(root / COMMIT_LOG_DIR) as entries:
        found = {
            start: entry
            for entry in entries
            if (start := parse_offset_file_name(entry.name)) is not None
        }
        if len(found) < 2:
            return None
        start, last = min(found), max(found)
        state = found[start].stat()
    over, forced = settings.retention_bytes, settings.clean_file_forcibly_enable
    return SegmentToGo(
        start,
        start + state.st_size,
        at_ms=1000 * expiry_s(state.st_mtime, settings),
        growth_bytes=max(0, start + over - last - state.st_size) if over else None,
        disk_bytes=max(0, shortage.room_below(root, shortage.forced_ratio(settings)))
        if forced
        else None,
    )


def expiry_s(written_s: float, settings: Settings) -> int:
    """When a segment goes by its age: in the first hour of `delete_when` after
    `file_reserved_time`, unless the disk is full earlier."""
    return shortage.next_delete_s(int(written_s) + settings.file_reserved_time * _HOUR_S, settings)
