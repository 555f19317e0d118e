"""The node as a broker: its state (28), and its settings (25, 26).

The names are those of a broker 5.5; where a node has no such thing, the value is that of a broker
that has nothing to do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from time import localtime, monotonic

from keelog.gateway.admin.figures import GET_NUMS, PUT_NUMS, PUT_SIZE, BrokerCounts
from keelog.gateway.connection import Reply, Request, json_reply
from keelog.gateway.offsets import QueueFacts
from keelog.gateway.settings import CHANGEABLE, LiveSettings
from keelog.gateway.topics import Topics
from node.reader.answers import NO_TIME
from node.runtime.process import met_damage, now_ms
from node.runtime.settings import Settings, snake_case
from node.runtime.shortage import disk_space
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from protocol.errors import CorruptError, NotAllowed, NotFound, StoreDamaged
from protocol.names import DELAY_OFFSETS_FILE, SCHEDULE_TOPIC
from protocol.remoting.bodies import KVTable
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import parse_java_json

_POOLS = ("send", "pull", "litePull", "query", "ack")
VERSION_NAME = "V5_5_0"
PROPERTIES_BYTES_MAX = 64 * 1024
_BOOLEANS = {"true": True, "false": False}
_KNOWN = frozenset(one.name for one in dataclass_fields(Settings))


@dataclass(slots=True, eq=False)
class BrokerHandlers:
    """One for each gateway. `_waiting` returns how many requests wait for the writer."""

    _facts: QueueFacts
    _topics: Topics
    _counts: BrokerCounts
    _waiting: Callable[[], int]
    _live: LiveSettings
    _began_at: float = field(default_factory=monotonic)
    _began_ms: int = field(default_factory=now_ms)

    def runtime(self, _: Request) -> Reply:
        """28: names and values."""
        self._facts.look()
        table = {
            **self._times(),
            **self._of_log(),
            **self._rates(),
            **self._queues(),
            **self._delays(),
        }
        return json_reply(KVTable(dict(sorted(table.items()))))

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
        except NotFound:
            return NO_TIME
        except CorruptError as damage:
            met_damage.note(damage)
            return NO_TIME

    def _of_log(self) -> Mapping[str, str]:
        store = self._facts.desk.store
        disk = disk_space(store.root / "commitlog")
        ratio = str(disk.used_percent / 100)
        total, free = _size(disk.total_bytes), _size(disk.free_bytes)
        commit_log = store.root / "commitlog"
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
        put, got = (_three(self._counts.rates(name)) for name in (PUT_NUMS, GET_NUMS))
        found = {
            "putTps": put,
            "getTransferredTps": got,
            "getFoundTps": got,
            "getTotalTps": got,
            "getMissTps": _three([0.0, 0.0, 0.0]),
        }
        for word, name in (("Put", PUT_NUMS), ("Get", GET_NUMS)):
            morning, now = self._counts.since_midnight(name, _midnight)
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
        path = self._facts.desk.store.root / DELAY_OFFSETS_FILE
        try:
            text = read_bounded(path, OFFSETS_FILE_BYTES_MAX).decode("utf-8", "replace")
            table = parse_java_json(text)["offsetTable"]
            levels = {int(level): int(offset) for level, offset in table.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StoreDamaged):
            return {}
        return {
            f"scheduleMessageOffset_{level}": (
                f"{offset},{self._facts.bounds(SCHEDULE_TOPIC, level - 1).max}"
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
            "storePathRootDir": self._facts.desk.store.root,
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
            raise NotAllowed(f"{name[:80]} cannot be changed while the node runs: {how}")
        if value not in _BOOLEANS:
            raise BadCommand(f"{name} is {value[:40]!a}: true or false")
        return ours, _BOOLEANS[value]


def camel_case(name: str) -> str:
    """A setting's name as RocketMQ writes it."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others)).replace("PropCrc", "PropCRC")


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _three(rates: list[float]) -> str:
    return " ".join(str(round(rate, 3)) for rate in rates)


def _midnight() -> float:
    """When the local day began, on the monotonic clock."""
    now = localtime()
    return monotonic() - (now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec)


def _size(count: float) -> str:
    """As MixAll#humanReadableByteCount."""
    if count < 1024:
        return f"{count} B"
    power = -1
    while count >= 1024:
        count, power = count / 1024, power + 1
    return f"{count:.1f} {'KMGTPE'[power]}iB"
