"""`/metrics` for Prometheus: collected from a node's pages, its processes and its disk.

A metric has RocketMQ's name and labels where it means the same, else a name with `keelog_`, in base
units. Users choose the values of two labels alone, the topic and the consumer group, and their
number is bounded; keys and addresses are never labels. The groups with the largest lag have labels
of their own, GROUP_ROWS_MAX pairs of a group and a topic; all others share one pair.
"""

import os
import platform
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, core, exposition
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from node.runtime import run_files, stats, stats_series
from node.runtime.event_log import stderr
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from node.runtime.shortage import disk_space
from node.runtime.state_page import LogState, WorkerState
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from node.store.config.topics_file import TopicsFile
from node.supervisor import status
from node.supervisor.plan import Child, ChildRole, ChildState, page_slot
from protocol.errors import MqError
from protocol.status import DiskStatus, ProcessStatus, facts_of

Sample = tuple[Sequence[str], float]
FOLLOW_STATES = (
    *(run_files.CONNECTING, run_files.COMPARING, run_files.FOLLOWING),
    *(run_files.WAITING, run_files.STOPPED),
)

_NODE_LABELS = {
    # The defaults of a broker: brokerClusterName, and brokerName.
    "cluster": "DefaultCluster",
    "node_type": "broker",
    "node_id": socket.gethostname(),
}
_STORAGE_LABELS = {**_NODE_LABELS, "storage_type": "local", "storage_medium": "disk"}
_SLOT = ("role", "index")
_TARGETS = {"cq": ChildRole.QUEUE, "index": ChildRole.INDEX}
_NS_PER_S = 1e9
_DURATION_EXPONENTS = range(12, 36, 2)
"""Powers of 2 ns: from 4 us to 17 s, each four times the one before."""
_SIZE_EXPONENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_GROUP_LABELS = ("consumer_group", "topic")


class Scrape(NamedTuple):
    """The state of the node for one scrape, read once so that its metrics agree."""

    view: status.NodeView
    log: LogState
    rows: tuple[ProcessStatus, ...]
    checks: status.HealthStatus
    space: DiskStatus
    pages: list[tuple[Child, LogState | WorkerState]]


class RunTotals:
    """Sums counts that each process of a slot begins at 0 again."""

    def __init__(self) -> None:
        self._runs: dict[object, tuple[int | None, float, float]] = {}
        """Of each slot the pid, what that process has counted, and the total."""

    def of(self, slot: object, pid: int | None, count: float) -> float:
        """The total of a slot, whose process `pid` has counted to `count`.

        A page shows the predecessor's count until the new process stores its own, so an equal count
        under a new pid adds nothing.
        """
        last_pid, counted, total = self._runs.get(slot, (pid, 0, 0))
        if count == counted:
            return total
        anew = count < counted or pid != last_pid
        total += count if anew else count - counted
        self._runs[slot] = pid, count, total
        return total


class HighWater:
    """The highest value seen: a writer that starts shows its offsets too low for a while."""

    def __init__(self) -> None:
        self._highest = 0

    def of(self, value: int) -> int:
        """The highest value, `value` included."""
        self._highest = max(self._highest, value)
        return self._highest


class Exporter(Collector):
    """Makes the text of a scrape; keeps totals, so that a restarted process lowers no counter. For
    one thread at a time."""

    content_type = exposition.CONTENT_TYPE_LATEST

    def __init__(self, view: Callable[[], status.NodeView]) -> None:
        self._view = view
        self._records = RunTotals()
        self._requests = RunTotals()
        self._cpu = RunTotals()
        self._dropped = RunTotals()
        self._appended = HighWater()
        self._by_topic = TopicFamilies()
        self._topics: TopicsFile | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return exposition.generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Returns nothing: the registry must not collect when it registers this."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields all families, from one look at the node."""
        view = self._view()
        log = status.read_log(view.root)
        shards = view.options.serve.queue_workers
        writer, *others = view.children
        pages: list[tuple[Child, LogState | WorkerState]] = [(writer, log)]
        pages += [
            (child, status.read_worker(view.root, page_slot(child, shards))) for child in others
        ]
        look = Scrape(
            view, log, status.process_rows(view), status.health(view), status.disk(view), pages
        )
        yield from self._rocketmq(look)
        yield from self._of_node(look)
        yield from self._of_log(look)
        yield from self._of_processes(look)
        yield from self._of_readers(look)
        yield from group_families(view.root)
        yield from declared(run_files.read_timer_state(view.root), _NODE_LABELS)
        yield from follower_families(view.root, view.children)
        yield from role_families(view.root, view.settings)
        yield from stats_families(stats.read_stats(view.root))

    def _rocketmq(self, look: Scrape) -> Iterator[Metric]:
        log = look.log
        records = self._records.of("log", log.pid, log.records)
        appended = self._appended.of(log.appended)
        used = disk_space(look.view.root).used_bytes
        lag = max(_lags(look, *_TARGETS.values()), default=0)
        yield _one("keelog_commitlog_messages_total", "Messages appended to the log.", records)
        yield from self._by_topic.collect(look.view.root)
        text = "Bytes appended to the log."
        yield _one("rocketmq_throughput_in_total", text, appended, _NODE_LABELS)
        yield _storage("size", "Bytes used on the file system of the store.", used)
        yield _storage("flush_behind_bytes", "Bytes not flushed yet.", log.appended - log.flushed)
        yield _storage("dispatch_behind_bytes", "Bytes not in queues and index yet.", lag)
        stored_at = status.oldest_ms(look.view.root, look.log)
        if stored_at is not None:
            age_ms = max(0, now_ms() - stored_at)
            yield _storage("message_reserve_time", "Age of the oldest message in ms.", age_ms)
        count = self._topic_count(look.view)
        if count is not None:
            yield _one("rocketmq_topic_number", "Topics.", count, _NODE_LABELS)

    def _topic_count(self, view: status.NodeView) -> int | None:
        """None while the file cannot be read: the writer reports what is wrong with it."""
        try:
            if self._topics is None:
                self._topics = TopicsFile(view.root)
            self._topics.reload()
        except MqError:
            return None
        return len(self._topics.topics)

    def _of_node(self, look: Scrape) -> Iterator[Metric]:
        view = look.view
        built = (view.options.version, platform.python_version())
        text = "1, with what runs as labels."
        yield _family("keelog_build_info", text, ["version", "python"], [(built, 1)])
        ready = int(look.checks.ready)
        yield _one("keelog_ready", "1 when the node takes appends and reads.", ready)
        samples = [([check.name], int(check.ok)) for check in look.checks.checks]
        yield _family("keelog_check_ok", "1 for a check that is good.", ["check"], samples)
        yield from declared(look.space)
        if view.tls is not None:
            yield from declared(view.tls)
        folder = own_dir(view.root) / QUARANTINE_DIR
        cut = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
        yield _one("keelog_quarantine_folders", "Cuts and repairs kept in quarantine.", cut)

    def _of_log(self, look: Scrape) -> Iterator[Metric]:
        yield from declared(status.log_status(look.log))
        lags = [
            ([target], max(found))
            for target, role in _TARGETS.items()
            if (found := _lags(look, role))
        ]
        yield _family("keelog_dispatch_lag_bytes", "Of the slowest worker.", ["target"], lags)
        done = look.rows[0].recovered
        text = "The part of the writer's recovery that is done; 1 when there is none."
        yield _one("keelog_recovery_done_ratio", text, 1 if done is None else done)

    def _of_processes(self, look: Scrape) -> Iterator[Metric]:
        own = ProcessStatus(
            "supervisor", 0, os.getpid(), ChildState.RUNNING, None, None, *status.usage(os.getpid())
        )
        rows = [*look.rows, own]
        up = [(_slot(row), int(row.state == ChildState.RUNNING)) for row in rows]
        yield _family("keelog_process_up", "1 for a process that runs.", _SLOT, up)
        damaged = [(_slot(row), int(row.state == ChildState.DAMAGED)) for row in look.rows]
        text = "1 for a process that stands before damage."
        yield _family("keelog_process_damaged", text, _SLOT, damaged)
        text = "Reads of the node's processes that met bytes which fail their checks."
        yield _one("keelog_damage_found_total", text, look.view.damage.meetings)
        memory = [(_slot(row), row.rss_bytes) for row in rows if row.rss_bytes is not None]
        yield _family("keelog_process_resident_memory_bytes", "Resident memory.", _SLOT, memory)
        text = "Since it last showed life."
        now = now_ms()
        beats = [
            (_slot(child), (now - page.heartbeat_ms) / 1000)
            for child, page in look.pages
            if page.heartbeat_ms  # a process that never ran has none
        ]
        yield _family("keelog_process_heartbeat_age_seconds", text, _SLOT, beats)
        cpu = [(_slot(row), self._cpu.of(_slot(row), row.pid, row.cpu_s or 0)) for row in rows]
        yield _family("keelog_process_cpu_seconds_total", "User and system time.", _SLOT, cpu)
        counts = [(_slot(child), page.pid, page.dropped_lines) for child, page in look.pages]
        counts.append((_slot(own), os.getpid(), stderr.dropped))
        dropped = [(slot, self._dropped.of(slot, pid, count)) for slot, pid, count in counts]
        text = "Log lines that nobody read."
        yield _family("keelog_process_dropped_lines_total", text, _SLOT, dropped)
        text, restarts = "Starts after an end.", _restarts(look.view).items()
        yield _family("keelog_process_restarts_total", text, ("role", "reason"), restarts)

    def _of_readers(self, look: Scrape) -> Iterator[Metric]:
        pages = [
            (child, page)
            for child, page in look.pages
            if child.role is ChildRole.READER and isinstance(page, WorkerState)
        ]
        requests = [
            ([str(child.index)], self._requests.of(_slot(child), page.pid, page.requests))
            for child, page in pages
        ]
        text = "Requests that readers answered."
        yield _family("keelog_reader_requests_total", text, ["index"], requests)
        held = [([str(child.index)], page.held) for child, page in pages]
        yield _family("keelog_reader_held_pulls", "Pulls that wait for messages.", ["index"], held)


def _restarts(view: status.NodeView) -> dict[tuple[str, str], int]:
    """Restarts by role and reason, summed over the indices of a role.

    The usual reasons are there from 0 on: a rate needs the value before the first restart.
    """
    counts = {(str(role), reason): 0 for role in ChildRole for reason in ("killed", "failed")}
    for child in view.children:
        for reason, count in list(child.restarts_by_reason.items()):
            key = (str(child.role), reason)
            counts[key] = counts.get(key, 0) + count
    return counts


def _slot(one: Child | ProcessStatus) -> tuple[str, str]:
    return str(one.role), str(one.index)


def _lags(look: Scrape, *roles: ChildRole) -> list[int]:
    return [row.lag_bytes or 0 for row in look.rows if row.role in roles]


def stats_families(slots: list[stats.SlotStats]) -> Iterator[Metric]:
    """Yields one metric for each family, summed over the slots.

    Every series is there from the start, except the codes of refusals: most never occur.
    """
    values: dict[stats_series.Series, int] = {}
    histograms: dict[stats_series.Series, stats.Histogram] = {}
    for slot in slots:
        for one, value in slot.values.items():
            values[one] = values.get(one, 0) + value
        for one, histogram in slot.histograms.items():
            histograms[one] = histograms.get(one, status.NO_TIMES).plus(histogram)
    families: dict[stats_series.Family, dict[stats_series.Series, None]] = {}
    for one in chain.from_iterable(
        stats_series.SERIES.values()
    ):  # two roles may declare the same one
        families.setdefault(one.family, {})[one] = None
    for family, all_series in families.items():
        names = [name for name, _ in next(iter(all_series)).labels]
        if family.kind in (stats_series.SeriesKind.SECONDS, stats_series.SeriesKind.SIZES):
            found = {one: histograms.get(one, status.NO_TIMES) for one in all_series}
            yield _histograms(family, names, found)
            continue
        samples = [
            ([label for _, label in one.labels], value)
            for one in all_series
            if (value := values.get(one, 0))
            or family is not stats_series.REQUESTS
            or stats_series.OK in dict(one.labels).values()
        ]
        is_gauge = family.kind is stats_series.SeriesKind.GAUGE
        yield _family(f"{family.name}{'' if is_gauge else '_total'}", family.text, names, samples)


def _histograms(
    family: stats_series.Family,
    names: list[str],
    found: Mapping[stats_series.Series, stats.Histogram],
) -> Metric:
    metric = core.HistogramMetricFamily(family.name, family.text, labels=names)
    is_time = family.kind is stats_series.SeriesKind.SECONDS
    for one, histogram in found.items():
        # Below 2**n: whole numbers up to one less.
        buckets = [
            (
                repr((1 << n) / _NS_PER_S if is_time else float((1 << n) - 1)),
                sum(histogram.buckets[: n + 1]),
            )
            for n in (_DURATION_EXPONENTS if is_time else _SIZE_EXPONENTS)
        ]
        buckets.append(("+Inf", histogram.total))
        value_sum = histogram.value_sum / _NS_PER_S if is_time else histogram.value_sum
        metric.add_metric([label for _, label in one.labels], buckets, value_sum)
    return metric


class TopicFamilies:
    """Families with the topic as a label, under RocketMQ's names.

    The first TOPICS_MAX topics have a label of their own as long as the supervisor runs; all others
    share one.
    """

    def __init__(self) -> None:
        self._listed: dict[str, None] = {}

    def collect(self, root: Path) -> Iterator[Metric]:
        """Yields the families with the counts of now."""
        came = self._capped(stats.read_topics(root, stats_series.QUEUE))
        went = self._capped(stats.read_topics(root, stats_series.READER))
        for name, text, counts in (
            ("messages_in", "Messages placed into queues.", came),
            ("messages_out", "Messages handed out by readers.", went),
            ("throughput_out", "Bytes handed out by readers.", went),
        ):
            is_size = name.startswith("throughput")
            found = [([topic], one.bytes if is_size else one.messages) for topic, one in counts]
            yield _family(f"rocketmq_{name}_total", text, ["topic"], found, _NODE_LABELS)

    def _capped(self, counts: Mapping[str, stats.Count]) -> Iterable[tuple[str, stats.Count]]:
        found = {stats.OTHER_TOPICS: stats.Count(0, 0)}
        for topic, count in counts.items():
            if len(self._listed) < stats.TOPICS_MAX and topic != stats.OTHER_TOPICS:
                self._listed[topic] = None
            shown = topic if topic in self._listed else stats.OTHER_TOPICS
            before = found.get(shown, stats.Count(0, 0))
            found[shown] = stats.Count(before.messages + count.messages, before.bytes + count.bytes)
        return found.items()


def group_families(root: Path) -> Iterator[Metric]:
    """Yields them from the file of the tasks."""
    found = run_files.read_group_lags(root)
    others = [(stats.OTHER_TOPICS, stats.OTHER_TOPICS, *found.others)]
    rows = [*((row.group, row.topic, row.lag, row.in_flight) for row in found.rows), *others]
    for name, text, value in (
        ("lag", "Messages that groups have not committed.", lambda lag, _: lag),
        ("inflight", "Messages that members have and did not commit.", lambda _, held: held),
        ("ready", "Messages that no member has yet.", lambda lag, held: lag - held),
    ):
        samples = [([group, topic], value(*counts)) for group, topic, *counts in rows]
        name = f"rocketmq_consumer_{name}_messages"
        yield _family(name, text, _GROUP_LABELS, samples, _NODE_LABELS)
    # Those of groups without a row are together.
    members = {row.group: row.members for row in found.rows}
    members[stats.OTHER_TOPICS] = max(0, found.members - sum(members.values()))
    counts = [([group], count) for group, count in members.items()]
    name, labels = "rocketmq_consumer_connections", _GROUP_LABELS[:1]
    yield _family(name, "Members of groups.", labels, counts, _NODE_LABELS)
    yield from declared(found, _NODE_LABELS)


def follower_families(root: Path, children: Sequence[Child]) -> Iterator[Metric]:
    """Yields them for a node that may be followed. Addresses are not labels: the slowest counts."""
    state = status.followers_of(root, children)
    if state is None:
        return
    rows = state.followers
    yield _one("keelog_followers", "Followers that are connected.", len(rows))
    yield _one("keelog_followers_in_sync", "Of these, those that are in sync.", state.in_sync)
    yield from declared(state)
    lag_bytes = max((row.lag_bytes for row in rows), default=0)
    yield _one("keelog_followers_lag_bytes", "Of the slowest follower.", lag_bytes)
    lag_s = max((row.lag_s for row in rows), default=0.0)
    yield _one("keelog_followers_lag_seconds", "As keelog_followers_lag_bytes, in time.", lag_s)


def role_families(root: Path, settings: Settings) -> Iterator[Metric]:
    """Yields them for a node that follows another one, and for one with controllers."""
    if settings.follow:
        state = run_files.read_follow_state(root)
        text = "1 for the state in which a replica is."
        states = [([name], int(state.state == name)) for name in FOLLOW_STATES]
        yield _family("keelog_replica_state", text, ["state"], states, _NODE_LABELS)
        yield from declared(state, _NODE_LABELS)
    if settings.controller_id:
        leads = int(not settings.follow)
        yield _one("keelog_elected_leads", "1 at the elected master.", leads, _NODE_LABELS)
        yield from declared(run_files.read_elected(root), _NODE_LABELS)


def declared(found: Any, labels: Mapping[str, str] = {}) -> Iterator[Metric]:
    """The metrics of a record's fields, as they are declared."""
    for name, field in facts_of(type(found)).items():
        if field.metric:
            value = getattr(found, name)
            if isinstance(value, tuple):
                value = len(value)
            if name.endswith("_ms"):
                value /= 1000
            text = f"{field.meaning[0].upper()}{field.meaning[1:]}."
            yield _one(field.metric, text, value, labels)


def _family(
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[Sample],
    fixed: Mapping[str, str] = {},
) -> Metric:
    """A counter if its name ends with `_total`, else a gauge. All samples have the `fixed` labels,
    which come first."""
    kind = core.CounterMetricFamily if name.endswith("_total") else core.GaugeMetricFamily
    family = kind(name, text, labels=[*fixed, *labels])
    for values, value in samples:
        family.add_metric([*fixed.values(), *values], value)
    return family


def _one(name: str, text: str, value: float, labels: Mapping[str, str] = {}) -> Metric:
    return _family(name, text, (), [((), value)], labels)


def _storage(name: str, text: str, value: float) -> Metric:
    return _one(f"rocketmq_storage_{name}", text, value, _STORAGE_LABELS)
