"""The requests of RocketMQ's admin tools: which code goes where.

A code of which a node offers nothing is refused with the reason.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keelog.client.core import ClientCore
from keelog.gateway.admin.broker_info import BrokerInfo, SettingChanges
from keelog.gateway.admin.clients import ClientCalls, Connections
from keelog.gateway.admin.figures import BrokerCounts, QueueFacts
from keelog.gateway.admin.groups import GroupChanges, GroupReports
from keelog.gateway.admin.name_desk import NameDesk
from keelog.gateway.admin.topics import TopicChanges, TopicReports
from keelog.gateway.commits import Commits, GroupOffsets
from keelog.gateway.connection import Reply, Request
from keelog.gateway.groups import Groups
from keelog.gateway.members import Members
from keelog.gateway.places import Resets, WaitingResets
from keelog.gateway.settings import LiveSettings
from keelog.gateway.slaves import ElectedDesk, SlaveDesk
from keelog.gateway.to_clients import ClientRequests
from keelog.gateway.topics import Topics
from node.reader.pull_desk import PullDesk
from protocol.errors import NotAllowed
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.controller import ControllerCode
from protocol.remoting.header_fields import RequestModeHeader, StatsHeader, request_fields
from protocol.remoting.java_json import read_body, write_body

Handle = Callable[[Request], Any]
_ACL = "a node has no users and no access lists"
_FILES = "the node does it by itself, by delete_when and the room on the disk"
_POP = "POP is not offered"
_NAME_SERVER = "a node is its own name server, without settings of one"
_COLD = "a node does not limit how cold messages are read"
_ROCKSDB = "a node has no RocksDB"
_LITE = "a node has no lite topics"
REFUSED: Mapping[int, str] = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "a node has no static topics",
    RequestCode.DELETE_EXPIRED_COMMITLOG: _FILES,
    RequestCode.TRIGGER_DELETE_FILES: _FILES,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "a node forbids no topic to a group",
    RequestCode.GET_NAMESRV_CONFIG: _NAME_SERVER,
    RequestCode.UPDATE_NAMESRV_CONFIG: _NAME_SERVER,
    RequestCode.EXCHANGE_BROKER_HA_INFO: "a node has no acting masters",
    RequestCode.QUERY_CORRECTION_OFFSET: "a node compares no group's offsets with another's",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (
        "a transaction that was given up after transaction_check_max rounds stays so"
    ),
    RequestCode.SWITCH_TIMER_ENGINE: "a node keeps timer messages in files of a time wheel alone",
    **dict.fromkeys((354, 355), _ROCKSDB),
    **dict.fromkeys(
        range(RequestCode.POP_LITE_MESSAGE, RequestCode.TRIGGER_LITE_DISPATCH + 1), _LITE
    ),
    **dict.fromkeys(range(2001, 2005), _COLD),
    **dict.fromkeys(range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1), _ACL),
    **dict.fromkeys(range(RequestCode.POP_MESSAGE, RequestCode.POLLING_INFO + 1), _POP),
    RequestCode.BATCH_ACK_MESSAGE: _POP,
    RequestCode.QUERY_ASSIGNMENT: _POP,
}
"""Why a code is answered with 3."""


class AdminParts(NamedTuple):
    """All that the desk looks at and changes: all of the gateway's own."""

    root: Path
    core: ClientCore
    desk: PullDesk
    topics: Topics
    groups: Groups
    members: Members
    commits: Commits
    resets: WaitingResets
    asked: ClientRequests
    live: LiveSettings
    look_up: Callable[[int], Record]
    now: Callable[[], float]
    waiting: Callable[[], int]


class AdminDesk:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, parts: AdminParts) -> None:
        topics, groups, members = parts.topics, parts.groups, parts.members
        self._counts = counts = BrokerCounts(parts.root, members)
        self._groups = groups
        facts = QueueFacts(parts.desk, parts.now)
        offsets = GroupOffsets(parts.core, parts.commits)
        self._slaves = SlaveDesk(parts.root, topics.name, offsets.all, facts.end)
        self._topic_reports = TopicReports(facts, topics, members, offsets, counts)
        self._group_reports = GroupReports(facts, topics, groups, members, offsets, counts)
        self._topic_changes = TopicChanges(parts.core, topics, parts.resets)
        self._group_changes = GroupChanges(parts.core, groups, parts.resets)
        self._resets = Resets(parts.resets, facts, topics, groups, members, parts.commits, offsets)
        self._calls = ClientCalls(members, parts.asked, topics.name.broker, parts.look_up)
        self._connections = Connections(members)
        self._names = NameDesk(parts.root, topics)
        self._elected = (
            ElectedDesk(parts.root, topics.name, parts.live.now.controller_id, facts.end)
            if parts.live.now.controller_id
            else None
        )
        self._info = BrokerInfo(facts, topics, counts, parts.waiting, parts.live)
        self._changes = SettingChanges(parts.live)

    def handlers(self) -> dict[int, Handle]:
        """What replies to each code."""
        return {
            **self._of_broker(),
            **self._of_groups(),
            **self._of_names(),
            **_refusals(),
            **self._of_controllers(),
        }

    def _of_controllers(self) -> dict[int, Handle]:
        if self._elected is None:
            return {ControllerCode.GET_BROKER_EPOCH_CACHE: _no_controller}
        return {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self._elected.place,
            ControllerCode.GET_BROKER_EPOCH_CACHE: self._elected.epochs,
            ControllerCode.NOTIFY_BROKER_ROLE_CHANGED: self._elected.role_changed,
        }

    def _of_broker(self) -> dict[int, Handle]:
        code, topics, info = RequestCode, self._topic_changes, self._info
        return {
            code.UPDATE_AND_CREATE_TOPIC: topics.create,
            code.UPDATE_AND_CREATE_TOPIC_LIST: topics.create_all,
            code.DELETE_TOPIC_IN_BROKER: topics.delete,
            code.GET_TOPIC_STATS_INFO: self._topic_reports.stats,
            code.QUERY_CONSUME_TIME_SPAN: self._topic_reports.time_span,
            code.QUERY_CONSUME_QUEUE: self._topic_reports.units,
            code.GET_BROKER_RUNTIME_INFO: info.runtime,
            code.GET_BROKER_CONFIG: info.settings,
            code.UPDATE_BROKER_CONFIG: self._changes.update,
            code.GET_BROKER_HA_STATUS: self._slaves.connections,
            code.GET_ALL_CONSUMER_OFFSET: self._slaves.group_offsets,
            code.GET_ALL_DELAY_OFFSET: self._slaves.delay_offsets,
            code.GET_TIMER_CHECK_POINT: self._slaves.timer_check,
            code.GET_TIMER_METRICS: self._slaves.timer_metrics,
            code.VIEW_BROKER_STATS_DATA: self._stats,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._names.own_system_topics,
            # Workers remove what a queue does not need any more, each time the log gets shorter.
            code.CLEAN_EXPIRED_CONSUMEQUEUE: _nothing_to_do,
            code.CLEAN_UNUSED_TOPIC: _nothing_to_do,
            # It is for slaves: a master has nothing to do either.
            code.RESET_MASTER_FLUSH_OFFSET: _nothing_to_do,
            # There are no records of POP to export.
            code.POP_ROLLBACK: _nothing_to_do,
            code.SET_MESSAGE_REQUEST_MODE: _request_mode,
            code.GET_ALL_MESSAGE_REQUEST_MODE: _request_modes,
        }

    def _of_groups(self) -> dict[int, Handle]:
        code, reports, calls = RequestCode, self._group_reports, self._calls
        return {
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._groups.configure_all,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._group_changes.configs,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_changes.config,
            code.DELETE_SUBSCRIPTIONGROUP: self._group_changes.delete,
            code.GET_CONSUME_STATS: reports.stats,
            code.GET_BROKER_CONSUME_STATS: reports.stats_of_all,
            code.QUERY_TOPIC_CONSUME_BY_WHO: reports.readers_of,
            code.QUERY_TOPICS_BY_CONSUMER: reports.topics_of,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: reports.subscription,
            code.GET_CONSUMER_CONNECTION_LIST: self._connections.of_group,
            code.GET_PRODUCER_CONNECTION_LIST: self._connections.of_producers,
            code.GET_ALL_PRODUCER_INFO: self._connections.all_producers,
            code.INVOKE_BROKER_TO_RESET_OFFSET: self._resets.reset,
            code.CLONE_GROUP_OFFSET: self._resets.clone,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: calls.status,
            code.GET_CONSUMER_RUNNING_INFO: calls.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: calls.consume,
        }

    def _of_names(self) -> dict[int, Handle]:
        code, names = RequestCode, self._names
        return {
            code.PUT_KV_CONFIG: names.put,
            code.GET_KV_CONFIG: names.get,
            code.DELETE_KV_CONFIG: names.delete,
            code.GET_KVLIST_BY_NAMESPACE: names.values,
            code.WIPE_WRITE_PERM_OF_BROKER: names.wipe,
            code.ADD_WRITE_PERM_OF_BROKER: names.unwipe,
            code.DELETE_TOPIC_IN_NAMESRV: self._topic_changes.forget_route,
            code.GET_TOPICS_BY_CLUSTER: names.topics_of_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: names.system_topics,
            code.GET_UNIT_TOPIC_LIST: names.unit_topics,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: names.unit_retry_topics,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: names.unit_retry_topics_of_others,
        }

    def _stats(self, request: Request) -> Reply:
        """315: how much went in or out over a minute, an hour and a day."""
        wanted: StatsHeader = request_fields(request.header)
        found = self._counts.find(wanted.stats_name, wanted.stats_key)
        if found is None:
            text = f"The stats <{wanted.stats_name}> <{wanted.stats_key}> not exist"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text)
        return Reply(body=write_body(found, standard=True))

    def turn(self, now: float) -> None:
        """Counts and saves when that is due. Call it each second or so."""
        self._counts.look(now)
        self._names.turn(now)

    def close(self) -> None:
        """Saves what is not saved."""
        self._names.close()


def _nothing_to_do(_: Request) -> Reply:
    return Reply()


def _no_controller(_: Request) -> Reply:
    """1007: as a broker that has no controller replies."""
    text = "this request only for controllerMode "
    return Reply(ResponseCode.SYSTEM_ERROR, remark=text)


def _request_mode(request: Request) -> Reply:
    """401: pulls are what there is. Raises NotAllowed for POP."""
    wanted = read_body(RequestModeHeader, request.body)
    if wanted.mode != "PULL":
        raise NotAllowed(f"{wanted.mode[:40]} is not offered: groups pull")
    return Reply()


def _request_modes(_: Request) -> Reply:
    """402: no group has a mode of its own."""
    return Reply(body=write_body({"messageRequestModeMap": {}}, standard=True))


def _refusals() -> dict[int, Handle]:
    def refuse(request: Request) -> Reply:
        code = request.header.code
        text = f"request type {code} is not supported: {REFUSED[code]}"
        return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text)

    return dict.fromkeys(REFUSED, refuse)
