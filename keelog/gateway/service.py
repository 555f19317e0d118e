"""All that the connections of a gateway share, and how their requests are served.

Nothing that holds a group together (34, 35, 38, 41, 105) waits for the disk or for the writer: a
Java client closes its connection when one answer takes more than 3 s.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutine
from pathlib import Path
from time import monotonic
from typing import Any

from keelog.client.core import ClientCore
from keelog.client.event_loop import pass_on_error
from keelog.gateway import connection as connections
from keelog.gateway import handlers, offsets, to_clients, transaction_checks, transaction_ends
from keelog.gateway.connection import EndReason, RemotingConnection, Reply, Request
from keelog.gateway.groups import Groups
from keelog.gateway.guard import AskingUser, Guard, LoginRefused
from keelog.gateway.members import AwaitedMembers, Members
from keelog.gateway.places import ClientPlaces, GroupQueuePlace, PlaceVerdict, WaitingResets
from keelog.gateway.pulls import COMMIT, Pulls, moved_reply
from keelog.gateway.sending.sends import Sends, refusal_of_send
from keelog.gateway.sending.stored_properties import DelayRules, retry_topic
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.settings import BrokerName, LiveSettings
from keelog.gateway.topics import Topics
from node.access.audit import GATEWAY_AUDIT_FILE, AuditLog
from node.access.user_table import UserTable
from node.reader.answers import look_again
from node.reader.follower import ReaderSite, open_fitting, transfer_limits
from node.runtime import disk, shortage, state_page, stats, stats_series, stored_times
from node.runtime.event_log import fields
from node.runtime.process import met_damage, now_ms
from node.runtime.run_files import read_members, write_members
from node.runtime.settings import Settings
from node.store.config.topics_file import TopicsFile
from protocol import errors, names
from protocol.access.decision import Action
from protocol.access.needs import topic_needs
from protocol.record.codec import Record
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import PullMessageHeader

log = logging.getLogger("keelog.gateway")

TASKS_MAX = 4_096
"""Requests of all connections that wait for the writer, but sends; further ones are refused."""
CONNECTIONS_MAX = 10_000
SHOW_PULLS_S = 5.0
"""How often the file of the members says from where they pull."""
SPARE_DESCRIPTORS = 128
"""Of a process with few descriptors: kept for the store's files, and for the way to the writer."""
_GOOD = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)
"""Outcomes other than refusals: messages were stored, or there is nothing."""


class GatewayService:
    """Takes the requests of all connections, in the thread of the loop."""

    is_guarded = False
    """Whether requests must prove who sent them."""

    def __init__(self, site: ReaderSite, core: ClientCore, name: BrokerName) -> None:
        store, settings = open_fitting(site), site.settings
        self.requests = 0
        self.buffers = connections.ConnectionBuffers()
        self._stats = GatewayStats(store.root)
        self.count, self.count_end = self._stats.answered, self._stats.ended
        self._connections_max, self._is_slave = connections_max(), bool(settings.follow)
        self._root = store.root
        self._shown = self._shown_pulls = -1
        """The numbers of the changes that the file of the members has."""
        self._show_pulls_at = 0.0
        self.connections: dict[RemotingConnection, None] = {}
        """In the order in which they came."""
        self.members = members = Members(AwaitedMembers(read_members(store.root), monotonic()))
        self.live = live = LiveSettings(settings)
        self.topics = topics = Topics(TopicsFile(store.root), core, live, name)
        self.groups = groups = Groups(
            store.root,
            live,
            lambda group: members.has_locks(group, monotonic()),
            not settings.follow,
        )
        members.may_notify = lambda group: groups.settings(group).notifies
        limits = transfer_limits(settings)
        self.pulls = Pulls(store, topics, members, groups, limits, site.shards)
        run_dir, gathering = state_page.run_dir(store.root), self.buffers.gathering
        self.link = link = WriterLink(core, run_dir, settings, gathering)
        delays = _delay_rules(settings, name.broker)
        self.sends = Sends(link, topics, groups, name.cluster, delays, settings, self.look_up)
        self.ends = ends = transaction_ends.Ends(link, topics, self.look_up, settings, delays)
        self.checks = transaction_checks.Checks(
            core, link, topics, ends, self._producer_of, name.broker, settings,
            partial(stored_times.clock_sets, store.root),
        )  # fmt: skip
        self.asked = to_clients.ClientRequests()
        self.answered = self.asked.answered
        self.places = ClientPlaces(self._generation_of, self.readable)
        self.commits = offsets.Commits(core, self._generation_of)
        self.resets = WaitingResets(self._generation_of)
        self.facts = offsets.QueueFacts(self.pulls.desk, self.now)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._checking: asyncio.Future[None] | None = None
        self.before_reading: Callable[[float], None] = lambda now: None
        """Takes in how far the log has grown; its owner sets it."""
        self.guard = _guard_of(store.root, settings, name.cluster)
        self._users_changed()
        self._handlers = handlers.Handlers(self, store.root, core)
        self._table = self._handlers.table()

    def look_up(self, offset: int) -> Record:
        """The record at a log offset. Raises NotFound, StoreDamaged."""
        self.now()
        store = self.pulls.desk.store
        return look_again(store, lambda: store.look_up(offset))

    def readable(self) -> int:
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

    # Users

    def look_at_users(self, now: float) -> None:
        """Takes in that users have changed. Call it several times a second. Raises StoreMoved."""
        if self.guard.table.look(now):
            self._users_changed()

    def changed_users(self) -> None:
        """This gateway has asked for a change: it counts for the next request."""
        self.guard.table.current()
        self._users_changed()

    def _users_changed(self) -> None:
        was_guarded, self.is_guarded = self.is_guarded, self.guard.is_on
        if self.is_guarded:
            self._note_strangers(was_guarded)
        self.buffers.strangers_limit = connections.STRANGERS_BYTES_MAX if self.is_guarded else None
        self.buffers.count_anew()
        if self.is_guarded:
            self.pulls.decide_again()

    def _note_strangers(self, was_guarded: bool) -> None:
        """Connections on which nobody has logged in who still may end soon. Those of users who are
        gone leave their groups: others get their queues at once."""
        now = monotonic()
        for connection in list(self.connections):
            if self.guard.forget_logins(connection):
                continue
            if not was_guarded:
                connection.is_strangers(now)
            elif connection.is_known:
                connection.is_strangers(now)
                self.members.went(connection)
                self.asked.went(connection)

    def _producer_of(self, group: str, topic: str) -> RemotingConnection | None:
        """A producer of a group that may be asked for a transaction: the question has the message,
        of this topic, and whoever beats may name the group."""
        if not self.is_guarded:
            return self.members.producer_of(group)
        needs = topic_needs(topic, Action.PUB)
        known: dict[tuple[str, str], bool] = {}

        def may(asker: AskingUser | None) -> bool:
            if asker is None:
                return False
            key = asker.user.name, asker.address
            if key not in known:
                known[key] = asker.may(needs)
            return known[key]

        return self.members.producer_of(group, may)

    # Connections

    def came(self, connection: RemotingConnection) -> None:
        """One more. Beyond `connections_max` it is closed; where users log in, the one that came
        first is, of those on which nobody has."""
        if len(self.connections) >= self._connections_max:
            ended = self._oldest_stranger() or connection
            self.connections.pop(ended, None)
            ended.end(EndReason.CROWD, f"{self._connections_max} are there already")
            if ended is connection:
                return
        self.connections[connection] = None
        self.places.came(connection)

    def _oldest_stranger(self) -> RemotingConnection | None:
        if not self.is_guarded:
            return None
        return next((one for one in self.connections if not one.is_known), None)

    def went(self, connection: RemotingConnection) -> None:
        """It is gone, with its memberships and held pulls."""
        self.connections.pop(connection, None)
        self.pulls.went(connection)
        self.members.went(connection)
        self.places.went(connection)
        self.asked.went(connection)

    def look_around(self, now: float) -> None:
        """Ends what is silent. Call it each second or so."""
        self.members.drop_silent(now)
        self.groups.turn(now)
        self._handlers.turn(now)
        self._show_members(now)
        self.buffers.count_anew()
        self._stats.publish(self)
        for connection in list(self.connections):
            connection.close_if_idle(now, self.is_guarded)

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
        handle = self._table.get(request.header.code)
        if handle is None:
            text = f" request type {request.header.code} not supported"
            request.answer(Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text))
            return
        if self.is_guarded and not self._lets_pass(request):
            return
        try:
            found = handle(request)
        except (errors.MqError, OSError) as error:
            self._refuse(request, error)
            return
        if iscoroutine(found):
            self._begin(found, partial(self._refuse, request), request)
        elif found is not None:
            request.answer(found)

    def _lets_pass(self, request: Request) -> bool:
        """Whether the user who sent a request may; refuses it else."""
        try:
            self.guard.admit(request)
        except LoginRefused as error:
            request.forget_fields()  # the refusal may come late
            refuse = partial(self._refuse, request, error)
            self.guard.failures.answer(request.connection, refuse, monotonic())
        except (errors.MqError, OSError) as error:
            self._refuse(request, error)
        else:
            return True
        return False

    def _begin(
        self,
        coming: Coroutine[Any, Any, Any],
        refuse: Callable[[errors.MqError | OSError], None],
        request: Request | None = None,
    ) -> None:
        """Does what takes longer, as a task, and replies to the request with its result."""

        async def run() -> None:
            try:
                found = await coming
            except (errors.MqError, OSError) as error:
                refuse(error)
            else:
                if request is not None and found is not None:
                    request.answer(found)

        if len(self._tasks) >= TASKS_MAX:
            coming.close()
            refuse(errors.NodeBusy(f"{TASKS_MAX} requests wait for the writer"))
            return
        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, request: Request, error: errors.MqError | OSError) -> None:
        refused = shortage.as_refusal(error, "the gateway")
        if isinstance(refused, errors.CorruptError):
            met_damage.note(refused)
        if request.header.code in handlers.SENDS:
            request.answer(refusal_of_send(refused))
        else:
            request.answer(Reply(refused.code, remark=refused.reason))

    def pull(self, request: Request, wanted: PullMessageHeader) -> Coroutine[Any, Any, None] | None:
        """11, 361: serves a pull, or sends its client on to where its group goes on."""
        now = self.now()
        if self.resets and (moved := self.resets.taken(wanted)) is not None:
            place = GroupQueuePlace(wanted.topic, wanted.consumer_group, wanted.queue_id)
            self.places.note(request.connection, place)  # it has one of the topic that is there
            request.answer(moved_reply(moved))
            return None
        if self._generation_of(wanted.topic) and not names.is_system_group(wanted.consumer_group):
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
        verdict = self.places.verdict(connection, place, wanted.known_at)
        if wanted.queue_offset <= 0:
            verdict = PlaceVerdict.SOUND
        if verdict is PlaceVerdict.UNKNOWN and self.members.may_be_behind(group, connection):
            return self._pull_of_unknown(request, wanted, place)
        if verdict is PlaceVerdict.STALE:
            request.answer(moved_reply(0, f"topic {wanted.topic} was removed, and made anew"))
        else:
            self.places.note(connection, place)
            self._pull_on(request, wanted, now)
        return None

    async def _pull_of_unknown(
        self, request: Request, wanted: PullMessageHeader, place: GroupQueuePlace
    ) -> None:
        """The place of a member that came back with it: sound if the group has committed it."""
        known = await self.commits.committed(*place) or 0
        if request.asker is not None and (refused := request.asker.refusal()) is not None:
            raise refused  # it would be held, and users have changed in the meantime
        if wanted.queue_offset > known:
            text = f"topic {place.topic} was removed: the group's place in it is {known}"
            request.answer(moved_reply(known, text))
        else:
            self.places.note(request.connection, place)
            self._pull_on(request, wanted, self.now())

    def _pull_on(self, request: Request, wanted: PullMessageHeader, now: float) -> None:
        topic, group, queue_id = wanted.topic, wanted.consumer_group, wanted.queue_id
        if wanted.sys_flag & COMMIT:
            self.commits.note(topic, group, queue_id, wanted.commit_offset)
        self.pulls.pull(request, wanted, now)
        self.members.note_pull(group, request.connection, topic, queue_id, wanted.queue_offset)

    def beat(self, request: Request) -> None:
        """34: takes a heart-beat, and makes the retry topics of groups that are new."""
        for group in self.members.beat(request, monotonic()):
            settings, name = self.groups.find(group.group_name), retry_topic(group.group_name)
            if settings is not None and self.topics.find(name) is None and not self._is_slave:
                coming = self.topics.make(name, settings.retry_queues, is_unit=group.unit_mode)
                self._begin(coming, _no_retry_topic)

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Begins what the gateway does by itself; `fail` is called with an unexpected error."""
        if self._is_slave:
            return  # the master asks for open transactions
        self._checking = asyncio.ensure_future(self.checks.run())
        self._checking.add_done_callback(partial(pass_on_error, fail=fail))

    async def stop(self) -> None:
        """Serves the held pulls, and closes all connections."""
        self.pulls.desk.stop()
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.close()
        for task in (*self._tasks, *((self._checking,) if self._checking else ())):
            task.cancel()
        await self.commits.close()
        await self.ends.ops.close()
        self.link.close()
        self.groups.close()
        self._handlers.close()
        self.guard.close()
        self._stats.close(self)


def _delay_rules(settings: Settings, broker: str) -> DelayRules:
    levels = len(settings.delay_levels_ms)
    return DelayRules(levels, settings.timer_max_delay_sec * 1000, broker)


def _guard_of(root: Path, settings: Settings, cluster: str) -> Guard:
    """Raises UnsafeUsers, StoreDamaged."""
    audit = AuditLog(root, GATEWAY_AUDIT_FILE)
    return Guard(UserTable(root), settings, cluster, audit, handlers.not_served(settings))


def connections_max() -> int:
    """CONNECTIONS_MAX, or fewer where the process may open fewer files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, soft - SPARE_DESCRIPTORS))


def _no_retry_topic(error: errors.MqError | OSError) -> None:
    log.warning("a retry topic was not made", extra=fields(why=error))


class GatewayStats:
    """Counts for metrics: requests, refusals, connections, and what they hold."""

    def __init__(self, root: Path) -> None:
        self._page = stats.StatsPage(root, stats_series.GATEWAY, 0)
        counts = self._page.counts
        self._numbers = counts.numbers
        self._requests = {
            int(code): counts.place(stats_series.GATEWAY_REQUESTS, request_code=code.name.lower())
            for code in stats_series.GATEWAY_CODES
        }
        self._other = counts.place(stats_series.GATEWAY_REQUESTS, request_code=stats_series.OTHER)
        self._refusals = {
            int(code): counts.place(stats_series.GATEWAY_REFUSALS, response_code=code.name.lower())
            for code in stats_series.GATEWAY_REFUSED
        }
        self._other_refusal = counts.place(
            stats_series.GATEWAY_REFUSALS, response_code=stats_series.OTHER
        )
        self._ends = {
            one: counts.place(stats_series.GATEWAY_ENDED, reason=one) for one in EndReason
        }
        self._checks = counts.place(stats_series.GATEWAY_CHECKS)
        self._gauges = [counts.place(family) for family in stats_series.GATEWAY_GAUGES]

    def answered(self, code: int, outcome: int) -> None:
        numbers = self._numbers
        place = self._requests.get(code)
        numbers[self._other if place is None else place] += 1
        if outcome and outcome not in _GOOD:
            numbers[self._refusals.get(outcome, self._other_refusal)] += 1

    def ended(self, reason: EndReason) -> None:
        self._numbers[self._ends[reason]] += 1

    def publish(self, service: GatewayService) -> None:
        """Shows what was counted, and the gauges."""
        now = (
            len(service.connections),
            service.pulls.desk.holds.count,
            service.buffers.held,
            len(service.asked),
            len(service.members.producers_by_id),
            service.checks.open,
        )
        for place, value in zip(self._gauges, now, strict=True):
            self._numbers[place] = value
        self._numbers[self._checks] = service.checks.asked
        self._page.publish()

    def close(self, service: GatewayService) -> None:
        """Shows the last counts; the file stays."""
        self.publish(service)
        self._page.close()
