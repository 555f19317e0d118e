"""Which request goes where: the codes that a gateway serves, and those of which it offers nothing.

A handler gets the request, and the fields that its code declares where it declares some
(`protocol.remoting.header_fields`). It replies at once (Reply), by itself (None), or later (an
awaitable of either).

The gateway of a replica replies as a broker that is a slave (`as_slave`). Messages and changes are
the master's. Pulls are served where `slave_read_enable` says so, and each sends the consumer back
to the master (PullMessageProcessor#rejectRequest).
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from keelog.client.core import ClientCore
from keelog.gateway import offsets, pulls, to_clients
from keelog.gateway.admin import broker_info, groups, topics, users
from keelog.gateway.connection import Reply, Request, json_reply
from keelog.gateway.sending.sends import no_recall
from keelog.gateway.settings import UNIT_FLAG, UNIT_SUB_FLAG
from node.runtime.settings import Settings
from protocol.errors import NodeFollows, NotAllowed
from protocol.remoting import controller, java_json
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.header_fields import REQUEST_HEADERS, RequestModeHeader, request_fields

if TYPE_CHECKING:
    from keelog.gateway.service import GatewayService

SENDS = frozenset(code for code in RequestCode if code.name.startswith("SEND_"))
_OF_MASTER = (
    *SENDS,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.RECALL_MESSAGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
"""Messages and changes that a node which follows refuses."""
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
Handle = Callable[[Request], Any]
Declared = Callable[..., Any]
"""Takes the request, and its fields where its code declares some."""
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
    **dict.fromkeys(range(RequestCode.POP_MESSAGE, RequestCode.POLLING_INFO + 1), _POP),
    RequestCode.BATCH_ACK_MESSAGE: _POP,
    RequestCode.QUERY_ASSIGNMENT: _POP,
}
"""Why a code is answered with 3."""


class Handlers:
    """One for each gateway, in the thread of its loop: it looks at all of the service, and changes
    some of it."""

    def __init__(self, service: "GatewayService", root: Path, core: ClientCore) -> None:
        known, members, commits = service.topics, service.members, service.commits
        resets, live, facts = service.resets, service.live, service.facts
        self._service = service
        self._counts = counts = broker_info.BrokerCounts(root, members)
        self._broker = broker_info.BrokerHandlers(
            facts, known, counts, service.waiting, live, commits
        )
        self._names = topics.NameServerHandlers(root, known)
        self._topics = topics.TopicHandlers(core, known, members, resets, facts, commits, counts)
        parts = core, known, service.groups, members, commits, resets, facts, counts
        self._groups = groups.GroupHandlers(*parts, service.asked, service.look_up)
        self._look_ups = pulls.LookUps(core, root, service.look_up, service.readable)
        sends, asked, address = service.sends, service.asked, known.name.address
        reply_topic = known.name.reply_topic
        self._replies = to_clients.Replies(sends, members, asked, address, live, reply_topic)
        self._users = users.UserHandlers(core, service.guard.table, service.changed_users)
        places, known_groups = service.places, service.groups
        self._offsets = offsets.Offsets(
            known, commits, facts, resets, known_groups, members, places
        )

    def table(self) -> dict[int, Handle]:
        """By code: the handler with its fields decoded."""
        clients, refused = self.of_clients(), dict.fromkeys(REFUSED, _refuse)
        tools = {**self._of_broker(), **self._of_groups(), **refused, **self._of_slaves()}
        tools |= self._of_users()
        found = {code: _decoding(code, handle) for code, handle in {**clients, **tools}.items()}
        settings = self._service.live.now
        if not settings.recall_message_enable:
            forbidden = no_recall("operation is forbidden", ResponseCode.NO_PERMISSION)
            found[RequestCode.RECALL_MESSAGE] = lambda _: forbidden
        return as_slave(found, settings)

    def of_clients(self) -> dict[int, Declared]:
        """Those of producers and consumers, each with a count of its own."""
        service, offsets, code = self._service, self._offsets, RequestCode
        topics, members, send = service.topics, service.members, service.sends.send
        return {
            code.SEND_MESSAGE: send,
            code.SEND_MESSAGE_V2: send,
            code.SEND_BATCH_MESSAGE: send,
            code.SEND_REPLY_MESSAGE: self._replies.take,
            code.SEND_REPLY_MESSAGE_V2: self._replies.take,
            code.CONSUMER_SEND_MSG_BACK: service.sends.take_back,
            code.RECALL_MESSAGE: service.sends.recall,
            code.END_TRANSACTION: service.ends.take,
            code.PULL_MESSAGE: service.pull,
            code.LITE_PULL_MESSAGE: service.pull,
            code.QUERY_CONSUMER_OFFSET: offsets.stored,
            code.UPDATE_CONSUMER_OFFSET: offsets.commit,
            code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.by_time,
            code.GET_MAX_OFFSET: offsets.max,
            code.GET_MIN_OFFSET: offsets.min,
            code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_time,
            code.QUERY_MESSAGE: self._look_ups.by_key,
            code.VIEW_MESSAGE_BY_ID: self._look_ups.by_offset,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: service.groups.configure,
            code.HEART_BEAT: service.beat,
            code.UNREGISTER_CLIENT: members.unregister,
            code.GET_CONSUMER_LIST_BY_GROUP: members.members_of,
            code.CHECK_CLIENT_CONFIG: service.pulls.check,
            code.LOCK_BATCH_MQ: lambda request: members.lock(request, monotonic()),
            code.UNLOCK_BATCH_MQ: members.unlock,
            code.GET_ALL_TOPIC_CONFIG: topics.configs,
            code.GET_TOPIC_CONFIG: topics.config,
            code.GET_ROUTEINFO_BY_TOPIC: topics.route,
            code.GET_BROKER_CLUSTER_INFO: topics.cluster,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.names,
        }

    def _of_slaves(self) -> dict[int, Declared]:
        code, broker = RequestCode, self._broker
        found: dict[int, Declared] = {
            code.GET_BROKER_HA_STATUS: broker.connections,
            code.GET_ALL_CONSUMER_OFFSET: broker.group_offsets,
            code.GET_ALL_DELAY_OFFSET: broker.delay_offsets,
            code.GET_TIMER_CHECK_POINT: broker.timer_check,
            code.GET_TIMER_METRICS: broker.timer_metrics,
            controller.ControllerCode.GET_BROKER_EPOCH_CACHE: broker.epochs,
        }
        if self._service.live.now.controller_id:
            found[code.EXCHANGE_BROKER_HA_INFO] = broker.place
            # The keeper asks the controller by itself, twice a second.
            found[controller.ControllerCode.NOTIFY_BROKER_ROLE_CHANGED] = _nothing_to_do
        return found

    def _of_broker(self) -> dict[int, Declared]:
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
            code.VIEW_BROKER_STATS_DATA: self._counts.of_statistic,
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

    def _of_groups(self) -> dict[int, Declared]:
        code, groups = RequestCode, self._groups
        return {
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._service.groups.configure_all,
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
            code.GET_CONSUMER_CONNECTION_LIST: groups.connected,
            code.GET_PRODUCER_CONNECTION_LIST: groups.of_producers,
            code.GET_ALL_PRODUCER_INFO: groups.all_producers,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: groups.client_offsets,
            code.GET_CONSUMER_RUNNING_INFO: groups.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: groups.consume,
        }

    def _of_users(self) -> dict[int, Declared]:
        asked = self._users
        changes: dict[int, Declared] = dict.fromkeys(users.CHANGES, asked.change)
        return {**changes, 3004: asked.user, 3005: asked.users, 3009: asked.acl, 3010: asked.acls}

    def turn(self, now: float) -> None:
        """Counts and saves when that is due. Call it each second or so."""
        self._counts.look(now)
        self._names.file.turn(now)

    def close(self) -> None:
        self._names.file.close()


def not_served(settings: Settings) -> frozenset[int]:
    """The codes that are answered with 3, whoever asks."""
    of_controllers = {RequestCode.EXCHANGE_BROKER_HA_INFO} if settings.controller_id else set()
    return frozenset(REFUSED) - of_controllers


def _decoding(code: int, handle: Declared) -> Handle:
    """The handler with the fields that the code declares. It raises BadCommand for wrong ones."""
    if code not in REQUEST_HEADERS:
        return handle
    return lambda request: handle(request, request_fields(request.header))


def as_slave(handlers: Mapping[int, Handle], settings: Settings) -> dict[int, Handle]:
    """The handlers of a node that follows, made of those of a master; of any other node, the same.
    Topics are changed by the writer's process, which refuses that by itself."""
    if not settings.follow:
        return dict(handlers)

    def refuse(request: Request) -> Reply:
        raise NodeFollows(
            f"this node follows {settings.follow} and takes no request {request.header.code}",
            "send it to the master",
        )

    changed: dict[int, Handle] = {**handlers, **dict.fromkeys(_OF_MASTER, refuse)}
    # As EndTransactionProcessor of a slave.
    text = "Message store is slave mode, so end transaction is forbidden. "
    forbidden = Reply(ResponseCode.SLAVE_NOT_AVAILABLE, remark=text)
    changed[RequestCode.END_TRANSACTION] = lambda _: forbidden
    if not settings.slave_read_enable:
        text = "[REJECTREQUEST]system busy, start flow control for a while"
        busy = Reply(ResponseCode.SYSTEM_BUSY, remark=text)
        changed.update(dict.fromkeys(_PULLS, lambda _: busy))
    return changed


def _nothing_to_do(_: Request) -> Reply:
    return Reply()


def _request_mode(request: Request) -> Reply:
    """401: pulls are what there is. Raises NotAllowed for POP."""
    wanted = java_json.read_body(RequestModeHeader, request.body)
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
