"""The node as a broker: its state (28), its settings (25, 26), how much went in and out (315), and
what RocketMQ's slaves and tools ask of a master beside its log (43, 45, 60, 61, 906, 907, 1007).

The names are those of a broker 5.5; where a node has no such thing, the value is that of a broker
that has nothing to do.

The counts of late, by topic and group, are as RocketMQ's StatsItem: totals are looked at each 10 s,
10 min and hour, and a figure is what came between the first and the last of these looks. Queue
workers count what topics get; what groups get is what their members have pulled.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from time import localtime, monotonic
from typing import NamedTuple

from keelog.gateway.connection import Reply, Request, json_reply, system_error
from keelog.gateway.members import Members
from keelog.gateway.offsets import Commits, QueueFacts
from keelog.gateway.settings import CHANGEABLE, LiveSettings
from keelog.gateway.topics import Topics
from node.reader.answers import NO_TIME
from node.runtime import shortage, stats, stats_series
from node.runtime.process import met_damage, now_ms
from node.runtime.run_files import FollowersState, read_followers
from node.runtime.settings import Settings, snake_case
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.store.identity.roles import load_master_epochs
from protocol import errors, ha, names
from protocol.derived.file_layouts import TIMER_CHECK_BYTES, TIMER_CHECK_FILE_BYTES
from protocol.remoting import bodies, java_json
from protocol.remoting.codes import BadCommand
from protocol.remoting.header_fields import StatsHeader

PUT_NUMS, PUT_SIZE, GET_NUMS = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS"
"""Names of statistics (Stats)."""
LOOK_S = 10.0
KEYS_MAX = 5_000
"""Topics, and pairs of a topic and a group, with figures; further ones have none."""
_SPANS = ((LOOK_S, 7), (600.0, 7), (3_600.0, 25))
"""Of minute, hour and day: seconds between two looks, and how many of them are kept."""

_POOLS = ("send", "pull", "litePull", "query", "ack")
VERSION_NAME = "V5_5_0"
PROPERTIES_BYTES_MAX = 64 * 1024
NO_DELAYS = b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{}}'
_NO_CLIENT = {
    "activated": False, "lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0,
    "maxOffset": 0, "transferredByteInSecond": 0,
}  # fmt: skip
"""Of 907: a slave's connection to its master, of which a master shows zeros."""
_LAST_END = 2**63 - 1
"""The end of the last epoch: Java's largest long."""
_BOOLEANS = {"true": True, "false": False}
_KNOWN = frozenset(one.name for one in dataclass_fields(Settings))


Totals = Mapping[tuple[str, str], int]
"""By the name of a statistic, and of what."""


class _Look(NamedTuple):
    at: float
    totals: Totals


class BrokerCounts:
    """One for each gateway. Times are seconds of the caller's monotonic clock."""

    def __init__(self, root: Path, members: Members) -> None:
        self._root = root
        self._members = members
        self._pulled: dict[tuple[str, int, str], int] = {}
        """By topic, queue and group: the offset that was pulled from at the last look."""
        self._got: dict[str, int] = {}
        """By `topic@group`: what its members have pulled since the gateway began."""
        self._looks: tuple[deque[_Look], ...] = tuple(deque(maxlen=kept) for _, kept in _SPANS)

    def look(self, now: float) -> None:
        """Looks at the totals when that is due. Call it each second or so."""
        minutes = self._looks[0]
        if minutes and now - minutes[-1].at < LOOK_S:
            return
        self._note_pulls()
        look = _Look(now, dict(self._totals()))
        for kept, (every_s, _) in zip(self._looks, _SPANS, strict=True):
            if not kept or now - kept[-1].at >= every_s:
                kept.append(look)

    def _totals(self) -> Iterable[tuple[tuple[str, str], int]]:
        topics = sorted(stats.read_topics(self._root, stats_series.QUEUE).items())[:KEYS_MAX]
        for topic, count in topics:
            yield (PUT_NUMS, topic), count.messages
            yield (PUT_SIZE, topic), count.bytes
        for key, count_of_group in self._got.items():
            yield (GET_NUMS, key), count_of_group

    def _note_pulls(self) -> None:
        now = {
            (topic, queue_id, name): offset
            for name, group in self._members.groups.items()
            for topic, of in group.pulled.items()
            for queue_id, (_, offset) in of.items()
        }
        for place, offset in now.items():
            topic, queue_id, name = place
            key, begun = f"{topic}@{name}", self._members.groups[name].begun
            if key not in self._got:
                if len(self._got) >= KEYS_MAX:
                    continue
                self._got[key] = 0
            self._got[key] += max(0, offset - self._pulled.get(place, begun[topic, queue_id]))
        self._pulled = now

    def of_statistic(self, _: Request, wanted: StatsHeader) -> Reply:
        """315: how much went in or out over a minute, an hour and a day."""
        name, key = wanted
        minutes = self._looks[0]
        if not minutes or (name, key) not in minutes[-1].totals:
            return system_error(f"The stats <{name}> <{key}> not exist")
        minute, hour, day = (_of_span(kept, name, key) for kept in self._looks)
        return json_reply({"statsDay": day, "statsHour": hour, "statsMinute": minute})

    def put_tps(self, topic: str) -> float:
        """Messages each second that a topic got in the last minute."""
        return _of_span(self._looks[0], PUT_NUMS, topic).tps

    def get_tps(self, topic: str, group: str) -> float:
        """Messages each second that a group got of a topic in the last minute."""
        return _of_span(self._looks[0], GET_NUMS, f"{topic}@{group}").tps

    def rates(self, name: str) -> list[float]:
        """Of all keys of a statistic together, each second: over the last 10 s, 60 s and 600 s."""
        minutes, hours = self._looks[0], self._looks[1]
        spans = (list(minutes)[-2:], minutes, list(hours)[-2:] if len(hours) > 1 else minutes)
        return [_growth(looks, lambda totals: _sum(totals, name))[1] for looks in spans]

    def total(self, name: str) -> int:
        """Of all keys of a statistic together, since the counts began."""
        minutes = self._looks[0]
        return _sum(minutes[-1].totals, name) if minutes else 0

    def since_midnight(self, name: str) -> tuple[int, int]:
        """The total when the day began, as far as it is known, and now."""
        now = localtime()
        midnight = monotonic() - (now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec)
        first = next((one for one in self._looks[2] if one.at >= midnight), None)
        return (0 if first is None else _sum(first.totals, name)), self.total(name)


def _of_span(looks: Iterable[_Look], name: str, key: str) -> bodies.StatsOfSpan:
    """StatsItem#computeStatsData: sums of messages, so a message is one time."""
    # What was not there yet at the first look has come since.
    total, each_s = _growth(looks, lambda totals: totals.get((name, key), 0))
    return bodies.StatsOfSpan(total, each_s, 1.0 if total else 0.0)


def _sum(totals: Totals, name: str) -> int:
    return sum(count for (one, _), count in totals.items() if one == name)


def _growth(looks: Iterable[_Look], count: Callable[[Totals], int]) -> tuple[int, float]:
    """How much came between the first look and the last, and how much of it each second."""
    known = list(looks)
    if len(known) < 2:
        return 0, 0.0
    first, last = known[0], known[-1]
    total = max(0, count(last.totals) - count(first.totals))
    return total, total / (last.at - first.at)


@dataclass(slots=True, eq=False)
class BrokerHandlers:
    """One for each gateway. `_waiting` returns how many requests wait for the writer."""

    _facts: QueueFacts
    _topics: Topics
    _counts: BrokerCounts
    _waiting: Callable[[], int]
    _live: LiveSettings
    _commits: Commits
    _version: int = 0
    """Of how far groups are. A slave copies it, and compares nothing with it."""
    _began_at: float = field(default_factory=monotonic)
    _began_ms: int = field(default_factory=now_ms)

    def runtime(self, _: Request) -> Reply:
        """28: names and values."""
        self._facts.look()
        rows = (self._times(), self._of_log(), self._rates(), self._queues(), self._delays())
        return json_reply(bodies.KVTable(dict(sorted(row for one in rows for row in one.items()))))

    def _times(self) -> Mapping[str, str]:
        seconds = int(monotonic() - self._began_at)
        days, hours = seconds // 86_400, seconds // 3_600 % 24
        parts = f"{days} days, {hours} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds"
        return {
            "bootTimestamp": str(self._began_ms),
            "runtime": f"[ {parts} ]",
            "brokerActive": "true",
            "brokerVersionDesc": VERSION_NAME,
            "startAcceptSendRequestTimeStamp": "0",
            "earliestMessageTimeStamp": str(self._earliest()),
        }

    def _earliest(self) -> int:
        log = self._facts.desk.store.log
        try:
            return self._facts.desk.store.look_up(log.min_offset).head.store_timestamp
        except errors.NotFound:
            return NO_TIME
        except errors.CorruptError as damage:
            met_damage.note(damage)
            return NO_TIME

    def _of_log(self) -> Mapping[str, str]:
        store = self._facts.desk.store
        commit_log = store.root / "commitlog"
        disk = shortage.disk_space(commit_log)
        ratio = str(disk.used_percent / 100)
        total, free = _size(disk.total_bytes), _size(disk.free_bytes)
        messages = self._counts.total(PUT_NUMS)
        size = self._counts.total(PUT_SIZE)
        return {
            "commitLogMinOffset": str(store.log.min_offset),
            "commitLogMaxOffset": str(store.log.end),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{commit_log}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "dispatchBehindBytes": str(max(0, store.log.end - store.followed)),
            "dispatchMaxBuffer": "0",
            "putMessageTimesTotal": str(messages or 1),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / (messages or 1)),
            "putMessageFailedTimes": "0",
            "putMessageEntireTimeMax": "0",
            "getMessageEntireTimeMax": "0",
            "putMessageDistributeTime": "null",
            "putLatency99": "0.00",
            "putLatency999": "0.00",
            "remainHowManyDataToFlush": "0 B",
            "remainTransientStoreBufferNumbs": "2147483647",
        }

    def _rates(self) -> Mapping[str, str]:
        put, got = (
            " ".join(str(round(rate, 3)) for rate in self._counts.rates(name))
            for name in (PUT_NUMS, GET_NUMS)
        )
        found = {
            "putTps": put,
            "getTransferredTps": got,
            "getFoundTps": got,
            "getTotalTps": got,
            "getMissTps": "0.0 0.0 0.0",
        }
        for word, name in (("Put", PUT_NUMS), ("Get", GET_NUMS)):
            morning, now = self._counts.since_midnight(name)
            found |= {
                f"msg{word}TotalYesterdayMorning": "0",
                f"msg{word}TotalTodayMorning": str(morning),
                f"msg{word}TotalTodayNow": str(now),
            }
        return found

    def _queues(self) -> Mapping[str, str]:
        """A gateway has one queue, that of requests which wait for the writer."""
        found = {
            "pageCacheLockTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }
        capacity = str(self._live.now.send_thread_pool_queue_capacity)
        for pool in _POOLS:
            waiting = self._waiting() if pool == "send" else 0
            found |= {
                f"{pool}ThreadPoolQueueSize": str(waiting),
                f"{pool}ThreadPoolQueueCapacity": capacity,
                f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0",
            }
        return found

    def _delays(self) -> Mapping[str, str]:
        path = self._root() / names.DELAY_OFFSETS_FILE
        try:
            text = read_bounded(path, OFFSETS_FILE_BYTES_MAX).decode("utf-8", "replace")
            table = java_json.parse_java_json(text)["offsetTable"]
            levels = {int(level): int(offset) for level, offset in table.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, errors.StoreDamaged):
            return {}
        return {
            f"scheduleMessageOffset_{level}": (
                f"{offset},{self._facts.bounds(names.SCHEDULE_TOPIC, level - 1).max}"
            )
            for level, offset in sorted(levels.items())
            if level > 0
        }

    def settings(self, request: Request) -> Reply:
        """26: the settings of the node, under the names that a broker has for them."""
        broker = self._topics.name
        known: dict[str, object] = {
            "brokerClusterName": broker.cluster,
            "brokerName": broker.broker,
            "brokerId": broker.broker_id,
            "brokerPermission": 6,
            "listenPort": request.connection.address.rpartition(":")[2],
            "storePathRootDir": self._root(),
        }
        for name in _KNOWN:
            known[camel_case(name)] = getattr(self._live.now, name)
        if self._live.now.follow:
            known["brokerRole"] = "SLAVE"
        text = "".join(f"{key}={_property(value)}\n" for key, value in sorted(known.items()))
        version = '{"counter":0,"stateVersion":0,"timestamp":0}'
        return Reply(ext={"version": version}, body=text.encode())

    def update(self, request: Request) -> Reply:
        """25: changes settings while the node runs, `name=value` lines, all or none. Raises
        NotAllowed for those that do not change, BadCommand."""
        if len(request.body) > PROPERTIES_BYTES_MAX:
            raise BadCommand(f"{len(request.body)} bytes", f"send {PROPERTIES_BYTES_MAX}")
        text = bytes(request.body).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines()]
        pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
        wanted = [self._checked(name.strip(), value.strip()) for name, _, value in pairs]
        for name, value in wanted:
            self._live.change(name, value)
        return Reply()

    def _checked(self, name: str, value: str) -> tuple[str, bool]:
        ours = snake_case(name)
        if ours not in CHANGEABLE:
            how = "start the node with it" if ours in _KNOWN else "a node has no such setting"
            raise errors.NotAllowed(f"{name[:80]} cannot be changed while the node runs: {how}")
        if value not in _BOOLEANS:
            raise BadCommand(f"{name} is {value[:40]!a}: true or false")
        return ours, _BOOLEANS[value]

    def _root(self) -> Path:
        return self._facts.desk.store.root

    # For slaves: what they copy beside the log (SlaveSynchronize), and who follows the node. Topics
    # (21), groups (201) and request modes (402) are asked by tools too, and answered elsewhere.

    async def group_offsets(self, _: Request) -> Reply:
        """43: how far all groups are. Raises what the writer refuses."""
        known = await self._commits.of_all()
        table = {
            f"{topic}@{group}": {str(queue): offset for queue, offset in sorted(places.items())}
            for group, topics in sorted(known.items())
            for topic, places in sorted(topics.items())
        }
        self._version += 1
        version = bodies.DataVersion(counter=self._version)
        return json_reply({"dataVersion": version, "offsetTable": table})

    def delay_offsets(self, _: Request) -> Reply:
        """45: how far delay levels are delivered, as the file has it."""
        try:
            text = read_bounded(self._root() / names.DELAY_OFFSETS_FILE, OFFSETS_FILE_BYTES_MAX)
            json.loads(text)
        except (OSError, ValueError):
            return Reply(body=NO_DELAYS)
        return Reply(body=text)

    def timer_check(self, _: Request) -> Reply:
        """60: how far timer messages are, in the form that the file begins with
        (TimerCheckpoint#encode): zeros without one."""
        found = b""
        with suppress(OSError):
            found = read_bounded(self._root() / names.TIMER_CHECK_FILE, TIMER_CHECK_FILE_BYTES)
        return Reply(body=found[:TIMER_CHECK_BYTES].ljust(TIMER_CHECK_BYTES, b"\0"))

    def timer_metrics(self, _: Request) -> Reply:
        """61: how many timer messages wait by topic: a node counts none of them so."""
        return json_reply({"dataVersion": bodies.DataVersion(), "timingCount": {}})

    def connections(self, _: Request) -> Reply:
        """907: who follows the node; as up to a second ago."""
        # Without the process that writes it the file is that of an earlier node.
        state = read_followers(self._root()) if self._topics.name.ha else FollowersState()
        end = self._facts.end()
        rows = [
            {
                "addr": row.address,
                "diff": max(0, end - row.acknowledged),
                "inSync": row.in_sync,
                "slaveAckOffset": row.acknowledged,
                "transferFromWhere": row.sent,
                "transferredByteInSecond": row.bytes_per_s,
            }
            for row in state.followers
        ]
        body = {
            "haClientRuntimeInfo": _NO_CLIENT,
            "haConnectionInfo": rows,
            "inSyncSlaveNums": state.in_sync,
            "master": True,
            "masterCommitLogMaxOffset": end,
        }
        return json_reply(body)

    # Where a controller elects the master

    def place(self, _: Request) -> Reply:
        """906: where the master is followed; nothing of a node that follows."""
        name = self._topics.name
        if name.broker_id or not name.ha:
            return Reply()
        ext = {"masterAddress": name.announced, "masterHaAddress": name.ha}
        return Reply(ext={**ext, "masterFlushOffset": str(self._facts.end())})

    def epochs(self, _: Request) -> Reply:
        """1007, as a broker that has no controller replies without one. Raises StoreDamaged."""
        broker_id = self._live.now.controller_id
        if not broker_id:
            return system_error("this request only for controllerMode ")
        known = load_master_epochs(self._root())
        ends = [ha.epoch_at(known, one.start)[1] for one in known]
        rows = [
            {"epoch": one.number, "startOffset": one.start, "endOffset": end or _LAST_END}
            for one, end in zip(known, ends, strict=True)
        ]
        body = {
            "brokerId": broker_id,
            "brokerName": self._topics.name.broker,
            "clusterName": self._topics.name.cluster,
            "epochList": rows,
            "maxOffset": self._facts.end(),
        }
        return json_reply(body)


def camel_case(name: str) -> str:
    """A setting's name as RocketMQ writes it."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others)).replace("PropCrc", "PropCRC")


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size(count: float) -> str:
    """As MixAll#humanReadableByteCount."""
    if count < 1024:
        return f"{count} B"
    power = -1
    while count >= 1024:
        count, power = count / 1024, power + 1
    return f"{count:.1f} {'KMGTPE'[power]}iB"
