"""Which request goes where: the codes that a gateway serves.

Nothing that holds a group together (34, 35, 38, 41, 105) waits for the disk or for the writer: a
Java client closes its connection when one answer takes more than 3 s.

The gateway of a replica replies as a broker that is a slave (`as_slave`). Messages and changes are
the master's. Pulls are served where `slave_read_enable` says so, and each sends the consumer back
to the master (PullMessageProcessor#rejectRequest).
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import iscoroutine
from time import monotonic
from typing import Any

from keelog.client.core import ClientCore
from keelog.client.event_loop import pass_on_error
from keelog.gateway.admin.handlers import AdminHandlers, Handle
from keelog.gateway.admin.look_ups import LookUps
from keelog.gateway.commits import Commits
from keelog.gateway.connection import (
    ConnectionBuffers,
    EndReason,
    RemotingConnection,
    Reply,
    Request,
)
from keelog.gateway.groups import Groups
from keelog.gateway.members import AwaitedMembers, Members
from keelog.gateway.offsets import Offsets, QueueFacts
from keelog.gateway.places import ClientPlaces, GroupQueuePlace, PlaceVerdict, WaitingResets
from keelog.gateway.pulls import COMMIT, Pulls, moved_reply
from keelog.gateway.sending.returns import SendBack, recall
from keelog.gateway.sending.sends import Sends, refusal_of_send
from keelog.gateway.sending.stored_properties import DelayRules, retry_topic
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.settings import BrokerName, LiveSettings
from keelog.gateway.stats import GatewayStats
from keelog.gateway.to_clients import ClientRequests, Replies
from keelog.gateway.topics import Topics
from keelog.gateway.transaction_checks import Checks
from keelog.gateway.transaction_ends import Ends
from node.reader.answers import look_again
from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.process import met_damage, now_ms
from node.runtime.settings import Settings
from node.runtime.shortage import as_refusal
from node.runtime.state_page import run_dir
from node.runtime.stored_times import clock_sets
from node.store.config.topics_file import TopicsFile
from node.store.opening import RunningStore
from node.store.query.pull import TransferLimits
from node.store.run_files import read_members, write_members
from protocol.errors import CorruptError, MqError, NodeBusy, NodeFollows
from protocol.names import is_system_group
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.header_fields import PullMessageHeader, request_fields

log = logging.getLogger("keelog.gateway")

TASKS_MAX = 4_096
"""Requests of all connections that wait for the writer, but sends; further ones are refused."""
CONNECTIONS_MAX = 10_000
SHOW_PULLS_S = 5.0
"""How often the file of the members says from where they pull."""
SPARE_DESCRIPTORS = 128
"""Of a process with few descriptors: kept for the store's files, and for the way to the writer."""
SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
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
_BUSY = "[REJECTREQUEST]system busy, start flow control for a while"


class GatewayService:
    """Takes the requests of all connections, in the thread of the loop."""

    def __init__(
        self,
        store: RunningStore,
        core: ClientCore,
        settings: Settings,
        name: BrokerName,
        limits: TransferLimits,
        shards: int,
    ) -> None:
        self.requests = 0
        self.buffers = ConnectionBuffers()
        self.stats = GatewayStats(store.root)
        self.count, self.count_end = self.stats.answered, self.stats.ended
        self._connections_max, self._is_slave = connections_max(), bool(settings.follow)
        self._root = store.root
        self._shown = self._shown_pulls = -1
        """The numbers of the changes that the file of the members has."""
        self._show_pulls_at = 0.0
        self.connections: set[RemotingConnection] = set()
        self.members = members = Members(AwaitedMembers(read_members(store.root), monotonic()))
        self.live = live = LiveSettings(settings)
        self.topics = topics = Topics(TopicsFile(store.root), core, live, name)
        self.groups = groups = Groups(
            store.root,
            live,
            lambda group: members.has_locks(group, monotonic()),
            is_owner=not settings.follow,
        )
        members.may_notify = lambda group: groups.settings(group).notifies
        self.pulls = Pulls(store, topics, members, groups, limits, shards)
        self.link = link = WriterLink(core, run_dir(store.root), settings, self.buffers.gathering)
        levels = len(settings.delay_levels_ms)
        delays = DelayRules(levels, settings.timer_max_delay_sec * 1000, name.broker)
        self.sends = Sends(link, topics, groups, name.cluster, delays, settings)
        self._recall = partial(recall, self.sends, topics, delays, settings.recall_message_enable)
        self._ends = ends = Ends(link, topics, self.look_up, settings, delays)
        self.checks = Checks(core, link, topics, ends, members.producer_of, name.broker, settings)
        self.checks.clock_sets = partial(clock_sets, store.root)
        self._send_back = SendBack(link, topics, groups, self.look_up, levels)
        self.asked = ClientRequests()
        self.answered = self.asked.answered
        self._replies = Replies(self.sends, members, self.asked, name.address, live)
        self._places = ClientPlaces(self._generation_of, self._readable)
        self.commits = commits = Commits(core, self._generation_of)
        self.resets = resets = WaitingResets(self._generation_of)
        self.facts = facts = QueueFacts(self.pulls.desk, self.now)
        self._offsets = Offsets(core, topics, commits, facts, resets, groups, members, self._places)
        self._look_ups = LookUps(core, store.root, self.look_up, self._readable)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._own_tasks: list[asyncio.Future[Any]] = []
        self._admin = AdminHandlers(self, store.root, core)
        self.before_reading: Callable[[float], None] = lambda now: None
        """Takes in how far the log has grown; its owner sets it."""
        self._handlers = as_slave(self._declared(), settings)

    def _declared(self) -> dict[int, Handle]:
        """Each replies at once (Reply), by itself (None), or later (an awaitable of either)."""
        topics, members, offsets, send = self.topics, self.members, self._offsets, self.sends.send
        code = RequestCode
        return {
            code.SEND_MESSAGE: send,
            code.SEND_MESSAGE_V2: send,
            code.SEND_BATCH_MESSAGE: send,
            code.SEND_REPLY_MESSAGE: self._replies.take,
            code.SEND_REPLY_MESSAGE_V2: self._replies.take,
            code.CONSUMER_SEND_MSG_BACK: self._send_back.take,
            code.RECALL_MESSAGE: self._recall,
            code.END_TRANSACTION: self._ends.take,
            code.PULL_MESSAGE: self._pull,
            code.LITE_PULL_MESSAGE: self._pull,
            code.QUERY_CONSUMER_OFFSET: offsets.stored,
            code.UPDATE_CONSUMER_OFFSET: offsets.commit,
            code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.by_time,
            code.GET_MAX_OFFSET: offsets.max,
            code.GET_MIN_OFFSET: offsets.min,
            code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_time,
            code.QUERY_MESSAGE: self._look_ups.by_key,
            code.VIEW_MESSAGE_BY_ID: self._look_ups.by_offset,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.groups.configure,
            code.HEART_BEAT: self._beat,
            code.UNREGISTER_CLIENT: members.unregister,
            code.GET_CONSUMER_LIST_BY_GROUP: members.members_of,
            code.CHECK_CLIENT_CONFIG: self.pulls.check,
            code.LOCK_BATCH_MQ: lambda request: members.lock(request, monotonic()),
            code.UNLOCK_BATCH_MQ: members.unlock,
            code.GET_ALL_TOPIC_CONFIG: topics.configs,
            code.GET_TOPIC_CONFIG: topics.config,
            code.GET_ROUTEINFO_BY_TOPIC: topics.route,
            code.GET_BROKER_CLUSTER_INFO: topics.cluster,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.names,
            **self._admin.handlers(),
        }

    def look_up(self, offset: int) -> Record:
        """The record at a log offset. Raises NotFound, StoreDamaged."""
        self.now()
        store = self.pulls.desk.store
        return look_again(store, lambda: store.look_up(offset))

    def _readable(self) -> int:
        self.now()
        return self.pulls.desk.store.log.end

    def _generation_of(self, topic: str) -> int:
        """That of the topic, as of the last look."""
        return self.pulls.desk.store.removed.horizon(topic)

    def waiting(self) -> int:
        """How many requests wait for the writer."""
        return len(self._tasks)

    def now(self) -> float:
        """The time, after taking in how far the log has grown."""
        now = monotonic()
        self.before_reading(now)
        return now

    # Connections

    def came(self, connection: RemotingConnection) -> None:
        """One more; beyond `connections_max` it is closed."""
        if len(self.connections) >= self._connections_max:
            connection.end(EndReason.CROWD, f"there are {len(self.connections)} already")
            return
        self.connections.add(connection)
        self._places.came(connection)

    def went(self, connection: RemotingConnection) -> None:
        """It is gone, with its memberships and held pulls."""
        self.connections.discard(connection)
        self.pulls.went(connection)
        self.members.went(connection)
        self._places.went(connection)
        self.asked.went(connection)

    def look_around(self, now: float) -> None:
        """Ends what is silent. Call it each second or so."""
        self.members.drop_silent(now)
        self.groups.turn(now)
        self._admin.turn(now)
        self._show_members(now)
        self.buffers.count_anew()
        self.stats.publish(self)
        for connection in list(self.connections):
            connection.close_if_idle(now)

    def _show_members(self, now: float) -> None:
        """Writes the file of the members: soon after a change of them, else when they pull."""
        members = self.members
        is_pulled = members.pulls != self._shown_pulls and now >= self._show_pulls_at
        if members.changes != self._shown or is_pulled:
            with disk.if_room():
                write_members(self._root, members.shown(now, now_ms()))
                self._shown, self._shown_pulls = members.changes, members.pulls
                self._show_pulls_at = now + SHOW_PULLS_S

    # Requests

    def take(self, request: Request) -> None:
        """Serves a request, at once or later."""
        self.requests += 1
        handle = self._handlers.get(request.header.code)
        if handle is None:
            text = f" request type {request.header.code} not supported"
            request.answer(Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text))
            return
        try:
            found = handle(request)
        except (MqError, OSError) as error:
            self._refuse(request, error)
            return
        if iscoroutine(found):
            self._begin(found, partial(self._refuse, request), request)
        elif found is not None:
            request.answer(found)

    def _begin(
        self,
        coming: Coroutine[Any, Any, Any],
        refuse: Callable[[MqError | OSError], None],
        request: Request | None = None,
    ) -> None:
        """Does what takes longer, as a task, and replies to the request with its result."""

        async def run() -> None:
            try:
                found = await coming
            except (MqError, OSError) as error:
                refuse(error)
            else:
                if request is not None and found is not None:
                    request.answer(found)

        if len(self._tasks) >= TASKS_MAX:
            coming.close()
            refuse(NodeBusy(f"{TASKS_MAX} requests wait for the writer"))
            return
        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, request: Request, error: MqError | OSError) -> None:
        refused = as_refusal(error, "the gateway")
        if isinstance(refused, CorruptError):
            met_damage.note(refused)
        if request.header.code in SENDS:
            request.answer(refusal_of_send(refused))
        else:
            request.answer(Reply(refused.code, remark=refused.reason))

    def _pull(self, request: Request) -> Coroutine[Any, Any, None] | None:
        wanted: PullMessageHeader = request_fields(request.header)
        now = self.now()
        if self.resets and (moved := self.resets.taken(wanted)) is not None:
            place = GroupQueuePlace(wanted.topic, wanted.consumer_group, wanted.queue_id)
            self._places.note(request.connection, place)  # it has one of the topic that is there
            request.answer(moved_reply(moved))
            return None
        if self._generation_of(wanted.topic) and not is_system_group(wanted.consumer_group):
            return self._pull_of_later(request, wanted, now)
        self._pull_on(request, wanted, now)
        return None

    def _pull_of_later(
        self, request: Request, wanted: PullMessageHeader, now: float
    ) -> Coroutine[Any, Any, None] | None:
        """A pull from a topic of which there was an earlier one: no client may pass over messages
        because it counts those of that one."""
        connection, group = request.connection, wanted.consumer_group
        if self.topics.find(wanted.topic) is None:
            # Refused: neither the place nor its commit may count in the topic that is made anew.
            self.pulls.pull(request, wanted, now)
            return None
        place = GroupQueuePlace(wanted.topic, group, wanted.queue_id)
        verdict = self._places.verdict(connection, place, wanted.known_at)
        if wanted.queue_offset <= 0:
            verdict = PlaceVerdict.SOUND
        if verdict is PlaceVerdict.UNKNOWN and self.members.may_be_behind(group, connection):
            return self._pull_of_unknown(request, wanted, place)
        if verdict is PlaceVerdict.STALE:
            request.answer(moved_reply(0, f"topic {wanted.topic} was removed, and made anew"))
        else:
            self._places.note(connection, place)
            self._pull_on(request, wanted, now)
        return None

    async def _pull_of_unknown(
        self, request: Request, wanted: PullMessageHeader, place: GroupQueuePlace
    ) -> None:
        """The place of a member that came back with it: sound if the group has committed it."""
        known = await self._offsets.committed(*place) or 0
        if wanted.queue_offset > known:
            text = f"topic {place.topic} was removed: the group's place in it is {known}"
            request.answer(moved_reply(known, text))
        else:
            self._places.note(request.connection, place)
            self._pull_on(request, wanted, self.now())

    def _pull_on(self, request: Request, wanted: PullMessageHeader, now: float) -> None:
        if wanted.sys_flag & COMMIT:
            self.commits.note(
                wanted.topic, wanted.consumer_group, wanted.queue_id, wanted.commit_offset
            )
        self.pulls.pull(request, wanted, now)
        self.members.note_pull(
            wanted.consumer_group,
            request.connection,
            wanted.topic,
            wanted.queue_id,
            wanted.queue_offset,
        )

    def _beat(self, request: Request) -> None:
        for group in self.members.beat(request, monotonic()):
            settings, name = self.groups.find(group.group_name), retry_topic(group.group_name)
            if settings is not None and self.topics.find(name) is None and not self._is_slave:
                coming = self.topics.make(name, settings.retry_queues, is_unit=group.unit_mode)
                self._begin(coming, _no_retry_topic)

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Begins what the gateway does by itself; `fail` is called with an unexpected error."""
        if self._is_slave:
            return  # the master asks for open transactions
        task = asyncio.ensure_future(self.checks.run())
        task.add_done_callback(partial(pass_on_error, fail=fail))
        self._own_tasks.append(task)

    async def stop(self) -> None:
        """Serves the held pulls, and closes all connections."""
        self.pulls.desk.stop()
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.close()
        for task in [*self._tasks, *self._own_tasks]:
            task.cancel()
        await self.commits.close()
        await self._ends.ops.close()
        self.link.close()
        self.groups.close()
        self._admin.close()
        self.stats.close(self)


def connections_max() -> int:
    """CONNECTIONS_MAX, or fewer where the process may open fewer files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, soft - SPARE_DESCRIPTORS))


def as_slave(handlers: Mapping[int, Handle], settings: Settings) -> dict[int, Handle]:
    """The handlers of a node that follows, made of those of a master; of any other node, the same.

    Topics are changed by the writer's process, which refuses that by itself.
    """
    if not settings.follow:
        return dict(handlers)

    def refuse(request: Request) -> Reply:
        raise NodeFollows(
            f"this node follows {settings.follow} and takes no request {request.header.code}",
            "send it to the master",
        )

    changed: dict[int, Handle] = {**handlers, **dict.fromkeys(_OF_MASTER, refuse)}
    changed[RequestCode.END_TRANSACTION] = _no_end
    if not settings.slave_read_enable:
        changed.update(dict.fromkeys(_PULLS, _no_pull))
    return changed


def _no_retry_topic(error: MqError | OSError) -> None:
    log.warning("a retry topic was not made", extra=fields(why=error))


def _no_end(_: Request) -> Reply:
    """As EndTransactionProcessor of a slave."""
    text = "Message store is slave mode, so end transaction is forbidden. "
    return Reply(ResponseCode.SLAVE_NOT_AVAILABLE, remark=text)


def _no_pull(_: Request) -> Reply:
    return Reply(ResponseCode.SYSTEM_BUSY, remark=_BUSY)
