"""A member of a group as a machine without sockets: heart-beats, routes, who takes which queue.

The owner of a connection says when there is one (`connected`, `lost`), gives received bytes to
`received`, and calls `turn` when something may be due. Messages are handed out and settled by the
queues (`client.consumer.queues`).

All members decide by the same rule from the same two lists, Java's among them, which queues each
takes (`averagely`), so that each queue has one owner without anybody saying so.
"""

import logging
from collections.abc import Iterable
from functools import partial

from keelog.client.consumer.options import TAG, ConsumerSettings
from keelog.client.consumer.queues import AGAIN_S, BUSY, REQUEST_S, QueueHandler, Settle
from keelog.client.consumer.remoting_exchange import RemotingAnswer, RemotingExchange
from protocol.errors import BadRequest, MqError, NotAllowed
from protocol.remoting import bodies
from protocol.remoting.codes import BadCommand, RequestCode, ResponseCode
from protocol.remoting.header_fields import (
    ConsumerGroupHeader,
    RouteHeader,
    UnregisterClientHeader,
)
from protocol.remoting.java_json import read_body, write_body, write_ext

log = logging.getLogger("keelog.client")

BEAT_EVERY_S = 30.0
ROUTE_EVERY_S = 30.0
UNKNOWN_ROUTE_S = 1.0
REBALANCE_EVERY_S = 20.0
PERM_READ = 4


class ConsumerEngine:
    """One member of one group. Times are seconds of the monotonic clock."""

    def __init__(self, settings: ConsumerSettings, client_id: str, settle: Settle) -> None:
        self.settings = settings
        self.client_id = client_id
        self.queues = QueueHandler(settings, client_id, settle)
        self.exchange: RemotingExchange | None = None
        self.failure: MqError | None = None
        """Why the node refuses this member, for ever."""
        self.is_member = False
        """Whether the node has taken a heart-beat on this connection."""
        self.is_closing = False
        self.is_over = False
        """Whether the member has left its group."""
        self._routes: dict[str, tuple[bodies.MessageQueue, ...]] = {}
        self._unknown: set[str] = set()
        self._beat_at = self._rebalance_at = 0.0
        self._route_at: dict[str, float] = {}
        self._is_rebalancing = self._is_leaving = False

    # The connection

    def connected(self, now: float) -> RemotingExchange:
        """A new connection: this member joins its group there."""
        self.exchange = self.queues.exchange = RemotingExchange(self.settings.credentials)
        self.is_member = self._is_rebalancing = self._is_leaving = False
        self._beat_at = now
        self._route_at = dict.fromkeys(self.settings.subscriptions, now)
        return self.exchange

    def lost(self, now: float) -> None:
        """It is gone. This member keeps what it holds, until the next one says whose it is."""
        exchange, self.exchange = self.exchange, None
        self.is_member = False
        self.queues.lost()
        if exchange is not None:
            exchange.lost(now)

    def received(self, size: int, now: float) -> None:
        """Takes bytes that were put into the exchange's room. Raises BrokenFrame."""
        assert self.exchange is not None
        for header in self.exchange.received(size, now):
            if header.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._rebalance_at = now
            else:
                self.exchange.refuse(header)

    def is_stale(self, now: float) -> bool:
        """Whether a request has no answer for too long, so that the connection is dead."""
        deadline = None if self.exchange is None else self.exchange.next_deadline
        return deadline is not None and deadline <= now

    def turn(self, now: float) -> float:
        """Asks for what is due; returns when it is to be called again. Not without a connection."""
        assert self.exchange is not None
        due = [now + REQUEST_S, self.exchange.next_deadline or now + REQUEST_S]
        if self.is_closing:
            if not self._is_leaving:
                due.append(self.queues.turn(now, is_closing=True))
                self._leave(now)
            return min(due)
        if self.queues.is_refused:
            # A user who lost the right, or whose password is another now: a heart-beat says so.
            self.queues.is_refused, self._beat_at = False, now
        if now >= self._beat_at:
            self._beat(now)
        due.append(self._beat_at)
        if self.is_member:
            self._look_at_topics(now)
            due += self._route_at.values()
            if not self._is_rebalancing:
                due.append(self._rebalance_at)
            due.append(self.queues.turn(now))
        return min(due)

    # Membership

    def _beat(self, now: float) -> None:
        assert self.exchange is not None
        self._beat_at = now + BEAT_EVERY_S
        settings = self.settings
        member = bodies.ConsumerData(
            settings.group, "CONSUME_PASSIVELY", "CLUSTERING", settings.consume_from_where,
            tuple(settings.subscriptions.values()),
        )  # fmt: skip
        body = write_body(
            bodies.HeartbeatData(self.client_id, consumer_data_set=(member,)), standard=True
        )
        self.exchange.ask(RequestCode.HEART_BEAT, {}, now + REQUEST_S, self._beaten, body)

    def _beaten(self, answer: RemotingAnswer | None, now: float) -> None:
        if answer is None:
            return
        if answer.code == ResponseCode.SUCCESS:
            if not self.is_member:
                self.is_member = True
                self._rebalance_at = now
                self._check_expressions(now)
        elif answer.code in BUSY:
            self._beat_at = now + AGAIN_S
        else:
            self.failure = NotAllowed(
                f"the node refuses the group {self.settings.group}: {answer.remark}",
                self._step_after(answer.code),
            )

    def _step_after(self, code: int) -> str:
        """The hint after a refusal."""
        if code != ResponseCode.NO_PERMISSION:
            return "see keelog group ls"
        if self.settings.credentials is None:
            return (
                "log in: consumer(…, credentials=keelog.credentials_of(USER, FILE)), or keelog "
                "consume --access-key USER --secret-file FILE"
            )
        user = self.settings.credentials.access_key
        return f"is the password right? may the user? keelog acl ls {user}"

    def _check_expressions(self, now: float) -> None:
        """Whether the node takes what is not a choice of tags."""
        assert self.exchange is not None
        for wanted in self.settings.subscriptions.values():
            if wanted.expression_type != TAG:
                body = bodies.CheckClientBody(self.client_id, self.settings.group, wanted)
                self.exchange.ask(
                    RequestCode.CHECK_CLIENT_CONFIG, {}, now + REQUEST_S, self._checked,
                    write_body(body, standard=True),
                )  # fmt: skip

    def _checked(self, answer: RemotingAnswer | None, now: float) -> None:
        if answer is not None and answer.code not in (ResponseCode.SUCCESS, *BUSY):
            hint = "see docs/rocketmq-clients.md, filters in SQL92"
            self.failure = BadRequest(f"the node refuses the expression: {answer.remark}", hint)

    def _leave(self, now: float) -> None:
        """Leaves the group, once all is committed."""
        if self.exchange is None or not self.queues.is_at_rest():
            return
        self._is_leaving = True
        for owned in list(self.queues.owned.values()):
            self.queues.drop(owned)
        asked = UnregisterClientHeader(self.client_id, None, self.settings.group)
        code = RequestCode.UNREGISTER_CLIENT
        self.exchange.ask(code, write_ext(asked), now + REQUEST_S, self._left)

    def _left(self, answer: RemotingAnswer | None, now: float) -> None:
        self.is_over = True

    # Routes and queues

    def _look_at_topics(self, now: float) -> None:
        assert self.exchange is not None
        for topic, due in self._route_at.items():
            if now >= due:
                self._route_at[topic] = now + ROUTE_EVERY_S
                asked = write_ext(RouteHeader(topic, True))
                code = RequestCode.GET_ROUTEINFO_BY_TOPIC
                done = partial(self._route_found, topic)
                self.exchange.ask(code, asked, now + REQUEST_S, done)
        if now >= self._rebalance_at and not self._is_rebalancing:
            self._is_rebalancing = True
            self._rebalance_at = now + REBALANCE_EVERY_S
            asked = write_ext(ConsumerGroupHeader(self.settings.group))
            code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
            self.exchange.ask(code, asked, now + REQUEST_S, self._rebalance)

    def _route_found(self, topic: str, answer: RemotingAnswer | None, now: float) -> None:
        if answer is None:
            return
        queues: tuple[bodies.MessageQueue, ...] = ()
        if answer.code == ResponseCode.SUCCESS:
            try:
                found = read_body(bodies.TopicRouteData, answer.body).queue_datas
            except BadCommand as error:
                log.warning("the route of %s: %s", topic, error.reason)
                return
            queues = tuple(
                bodies.MessageQueue(topic, of_broker.broker_name, number)
                for of_broker in found
                if of_broker.perm & PERM_READ
                for number in range(of_broker.read_queue_nums)
            )
            self._unknown.discard(topic)
        elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._route_at[topic] = now + UNKNOWN_ROUTE_S
            if topic not in self._unknown and topic != self.settings.retry_topic:
                log.warning("topic %s is not there yet: waiting for it", topic)
            self._unknown.add(topic)
        else:
            self._route_at[topic] = now + AGAIN_S
            return
        if self._routes.get(topic) != queues:
            self._routes[topic] = queues
            self._rebalance_at = now

    def _rebalance(self, answer: RemotingAnswer | None, now: float) -> None:
        """Divides the queues of each topic among the members (RocketMQ: RebalanceImpl)."""
        self._is_rebalancing = False
        if answer is None or self.is_closing:
            return
        if answer.code != ResponseCode.SUCCESS:
            self._rebalance_at = now + AGAIN_S  # what this member has, it keeps
            return
        try:
            members = read_body(bodies.ConsumerIdList, answer.body).consumer_id_list
        except BadCommand as error:
            log.warning("the members of %s: %s", self.settings.group, error.reason)
            return
        if self.client_id not in members:
            self._beat_at = now
            self._rebalance_at = now + AGAIN_S
        for topic, queues in self._routes.items():
            self.queues.own(topic, averagely(queues, members, self.client_id))


def averagely(
    queues: Iterable[bodies.MessageQueue], members: Iterable[str], own: str
) -> list[bodies.MessageQueue]:
    """The queues of the member `own` (RocketMQ: AllocateMessageQueueAveragely).

    Each gets a run of neighbours, the first ones one more. A member that is not among `members`
    gets none. Where an id is there twice, the queues of its second entry stay without an owner.
    """
    # Java compares texts by their UTF-16 units.
    ids = sorted(members, key=lambda member: member.encode("utf-16-be", "surrogatepass"))
    if own not in ids:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(ids))
    index = ids.index(own)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]
