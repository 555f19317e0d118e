"""The requests of RocketMQ's admin tools: which code goes where.

A code of which a node offers nothing is refused with the reason.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keelog.client.core import ClientCore
from keelog.gateway.admin.broker_info import BrokerHandlers
from keelog.gateway.admin.clients import ClientHandlers
from keelog.gateway.admin.figures import BrokerCounts
from keelog.gateway.admin.groups import GroupHandlers
from keelog.gateway.admin.name_server import NameServerHandlers
from keelog.gateway.admin.slaves import SlaveHandlers
from keelog.gateway.admin.topics import TopicHandlers
from keelog.gateway.commits import GroupOffsets
from keelog.gateway.connection import Reply, Request, json_reply, system_error
from keelog.gateway.settings import UNIT_FLAG, UNIT_SUB_FLAG
from protocol.errors import NotAllowed
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.controller import ControllerCode
from protocol.remoting.header_fields import RequestModeHeader, StatsHeader, request_fields
from protocol.remoting.java_json import read_body

if TYPE_CHECKING:
    from keelog.gateway.service import GatewayService

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


class AdminHandlers:
    """One for each gateway, in the thread of its loop: it looks at all of the service, and changes
    some of it."""

    def __init__(self, service: "GatewayService", root: Path, core: ClientCore) -> None:
        topics, members, groups = service.topics, service.members, service.groups
        resets, live, facts = service.resets, service.live, service.facts
        self._counts = counts = BrokerCounts(root, members)
        self._names = NameServerHandlers(root, topics)
        self._settings = groups
        offsets = GroupOffsets(core, service.commits)
        self._topics = TopicHandlers(core, topics, members, resets, facts, offsets, counts)
        self._groups = GroupHandlers(
            core, topics, groups, members, service.commits, resets, facts, offsets, counts
        )
        name = topics.name
        self._clients = ClientHandlers(members, service.asked, name.broker, service.look_up)
        self._broker = BrokerHandlers(facts, topics, counts, service.waiting, live)
        self._elected_id = live.now.controller_id
        self._slaves = SlaveHandlers(root, name, offsets, facts.end, self._elected_id)

    def handlers(self) -> dict[int, Handle]:
        """What replies to each code."""
        refused = dict.fromkeys(REFUSED, _refuse)
        return {**self._of_broker(), **self._of_groups(), **refused, **self._of_slaves()}

    def _of_slaves(self) -> dict[int, Handle]:
        code, slaves = RequestCode, self._slaves
        found: dict[int, Handle] = {
            code.GET_BROKER_HA_STATUS: slaves.connections,
            code.GET_ALL_CONSUMER_OFFSET: slaves.group_offsets,
            code.GET_ALL_DELAY_OFFSET: slaves.delay_offsets,
            code.GET_TIMER_CHECK_POINT: slaves.timer_check,
            code.GET_TIMER_METRICS: slaves.timer_metrics,
            ControllerCode.GET_BROKER_EPOCH_CACHE: slaves.epochs,
        }
        if self._elected_id:
            found[code.EXCHANGE_BROKER_HA_INFO] = slaves.place
            # The keeper asks the controller by itself, twice a second.
            found[ControllerCode.NOTIFY_BROKER_ROLE_CHANGED] = _nothing_to_do
        return found

    def _of_broker(self) -> dict[int, Handle]:
        code, topics, broker, names = RequestCode, self._topics, self._broker, self._names
        return {
            code.UPDATE_AND_CREATE_TOPIC: topics.create,
            code.UPDATE_AND_CREATE_TOPIC_LIST: topics.create_all,
            code.DELETE_TOPIC_IN_BROKER: topics.delete,
            code.DELETE_TOPIC_IN_NAMESRV: topics.forget_route,
            code.GET_TOPIC_STATS_INFO: topics.stats,
            code.QUERY_CONSUME_TIME_SPAN: topics.time_span,
            code.QUERY_CONSUME_QUEUE: topics.units,
            code.GET_BROKER_RUNTIME_INFO: broker.runtime,
            code.GET_BROKER_CONFIG: broker.settings,
            code.UPDATE_BROKER_CONFIG: broker.update,
            code.VIEW_BROKER_STATS_DATA: self._stats,
            # Workers remove what a queue does not need any more, each time the log gets shorter.
            code.CLEAN_EXPIRED_CONSUMEQUEUE: _nothing_to_do,
            code.CLEAN_UNUSED_TOPIC: _nothing_to_do,
            # It is for slaves: a master has nothing to do either.
            code.RESET_MASTER_FLUSH_OFFSET: _nothing_to_do,
            # There are no records of POP to export.
            code.POP_ROLLBACK: _nothing_to_do,
            code.SET_MESSAGE_REQUEST_MODE: _request_mode,
            code.GET_ALL_MESSAGE_REQUEST_MODE: _request_modes,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: names.own_system_topics,
            code.PUT_KV_CONFIG: names.put,
            code.GET_KV_CONFIG: names.get,
            code.DELETE_KV_CONFIG: names.delete,
            code.GET_KVLIST_BY_NAMESPACE: names.values,
            code.WIPE_WRITE_PERM_OF_BROKER: partial(names.set_wiped, True),
            code.ADD_WRITE_PERM_OF_BROKER: partial(names.set_wiped, False),
            code.GET_TOPICS_BY_CLUSTER: names.topics_of_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: names.system_topics,
            code.GET_UNIT_TOPIC_LIST: partial(names.flagged, UNIT_FLAG, 0),
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(names.flagged, UNIT_SUB_FLAG, 0),
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(
                names.flagged, UNIT_SUB_FLAG, UNIT_FLAG
            ),
        }

    def _of_groups(self) -> dict[int, Handle]:
        code, groups, clients = RequestCode, self._groups, self._clients
        return {
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._settings.configure_all,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.configs,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.config,
            code.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            code.GET_CONSUME_STATS: groups.stats,
            code.GET_BROKER_CONSUME_STATS: groups.stats_of_all,
            code.QUERY_TOPIC_CONSUME_BY_WHO: groups.readers_of,
            code.QUERY_TOPICS_BY_CONSUMER: groups.topics_of,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.subscription,
            code.INVOKE_BROKER_TO_RESET_OFFSET: groups.reset,
            code.CLONE_GROUP_OFFSET: groups.clone,
            code.GET_CONSUMER_CONNECTION_LIST: clients.of_group,
            code.GET_PRODUCER_CONNECTION_LIST: clients.of_producers,
            code.GET_ALL_PRODUCER_INFO: clients.all_producers,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: clients.status,
            code.GET_CONSUMER_RUNNING_INFO: clients.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: clients.consume,
        }

    def _stats(self, request: Request) -> Reply:
        """315: how much went in or out over a minute, an hour and a day."""
        wanted: StatsHeader = request_fields(request.header)
        found = self._counts.find(wanted.stats_name, wanted.stats_key)
        if found is None:
            return system_error(f"The stats <{wanted.stats_name}> <{wanted.stats_key}> not exist")
        return json_reply(found)

    def turn(self, now: float) -> None:
        """Counts and saves when that is due. Call it each second or so."""
        self._counts.look(now)
        self._names.file.turn(now)

    def close(self) -> None:
        self._names.file.close()


def _nothing_to_do(_: Request) -> Reply:
    return Reply()


def _request_mode(request: Request) -> Reply:
    """401: pulls are what there is. Raises NotAllowed for POP."""
    wanted = read_body(RequestModeHeader, request.body)
    if wanted.mode != "PULL":
        raise NotAllowed(f"{wanted.mode[:40]} is not offered: groups pull")
    return Reply()


def _request_modes(_: Request) -> Reply:
    """402: no group has a mode of its own."""
    return json_reply({"messageRequestModeMap": {}})


def _refuse(request: Request) -> Reply:
    code = request.header.code
    text = f"request type {code} is not supported: {REFUSED[code]}"
    return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text)
