"""The bodies of the replies to RocketMQ's admin tools, as classes of Java.

As in `protocol.remoting.bodies`, which has those that clients get too.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from protocol.remoting.bodies import (
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from protocol.remoting.java_class import Int32

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class ClientConnection(NamedTuple):
    """One connection of a client, as a broker shows it; `client_addr` is IP:PORT."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnection(NamedTuple):
    """203: who consumes for a group, and what."""

    connection_set: tuple[ClientConnection, ...] = ()
    subscription_table: Mapping[str, SubscriptionData] = _EMPTY
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class ProducerConnection(NamedTuple):
    """204: who produces for a group."""

    connection_set: tuple[ClientConnection, ...] = ()


class ProducerInfo(NamedTuple):
    """One producer of 328. `last_update_timestamp`: ms of its last heart-beat."""

    client_id: str
    remote_ip: Annotated[str, "remoteIP"]
    language: str
    version: Int32
    last_update_timestamp: int


class ProducerTable(NamedTuple):
    """328: all producers, by group."""

    data: Mapping[str, tuple[ProducerInfo, ...]] = _EMPTY


class GroupList(NamedTuple):
    """300: names of groups."""

    group_list: tuple[str, ...] = ()


class SubscriptionOfGroup(NamedTuple):
    """345: what a group subscribes of a topic."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class QueueTimeSpan(NamedTuple):
    """One queue of 303; ms, -1 where there is no message."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class ConsumeTimeSpans(NamedTuple):
    """303: the times of a topic's messages, and how far a group has come."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


class StatsOfSpan(NamedTuple):
    """A statistic over a span of time: the sum, and that by second and by time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStats(NamedTuple):
    """315: a statistic over the last minute, hour and day."""

    stats_minute: StatsOfSpan = StatsOfSpan()
    stats_hour: StatsOfSpan = StatsOfSpan()
    stats_day: StatsOfSpan = StatsOfSpan()


class UnitOfQueue(NamedTuple):
    """One unit of 321."""

    physic_offset: int
    physic_size: Int32
    tags_code: int
    eval: bool = False


class UnitsOfQueue(NamedTuple):
    """321: units of a queue, and its bounds."""

    queue_data: tuple[UnitOfQueue, ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class TopicConfigs(NamedTuple):
    """18: topics to make or change."""

    topic_config_list: tuple[TopicConfig, ...] = ()


class GroupConfigs(NamedTuple):
    """225: groups to make or change, each as in 200."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


class HAClientInfo(NamedTuple):
    """907: a slave's connection to its master; a master shows zeros."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    is_activated: Annotated[bool, "activated"] = False


class HAConnectionInfo(NamedTuple):
    """907: one connection of a slave, as its master sees it."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HARuntimeInfo(NamedTuple):
    """907: the slaves of a master."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: tuple[HAConnectionInfo, ...] = ()
    ha_client_runtime_info: HAClientInfo = HAClientInfo()
