"""The topics of the node, as RocketMQ's clients see them: routes, and topics that a send creates.

The table is the writer's (config/topics.json): the gateway reads it, and asks the writer for
changes.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway import settings
from keelog.gateway.connection import Reply, Request, json_reply
from keelog.gateway.guard import seen_topics
from node.store.config import topics_file
from node.store.config.topics_file import PERM_DEFAULT, PERM_INHERIT, Topic, TopicsFile
from protocol.errors import UnknownTopic
from protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_topic_for_send
from protocol.remoting import bodies
from protocol.remoting import header_fields as hf
from protocol.remoting.java_json import write_body

RELOAD_S = 1.0
NO_ROUTE = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""With the refusal of a route: RocketMQ's tools print it."""
_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)


def standard_topics(name: settings.BrokerName, with_default: bool) -> dict[str, Topic]:
    """The topics that every broker has without anybody making them: tools find brokers by them.
    They are at least two: a name server refuses a broker that begins with a single topic.
    `with_default`: sends create topics, by the settings of TBW102."""
    found = {one: Topic(one, 1, 1) for one in (settings.SELF_TEST_TOPIC, name.reply_topic)}
    models = {name.cluster: settings.CLUSTER_QUEUES, name.broker: 1}
    if with_default:
        models[settings.TBW102] = settings.TBW102_QUEUES
    perm = PERM_DEFAULT | PERM_INHERIT
    return found | {one: Topic(one, queues, queues, perm) for one, queues in models.items()}


@dataclass(eq=False)
class Topics:
    """One for each gateway, in the thread of its loop."""

    _file: TopicsFile
    _core: ClientCore
    _live: settings.LiveSettings
    name: settings.BrokerName
    is_wiped: bool = False
    """Whether routes say that nothing can be sent: 205, as of a name server."""
    when_changed: Callable[[], None] = lambda: None
    """Is called after the table was read anew; its owner sets it."""
    _reload_at: float = 0.0
    _making: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._standard = standard_topics(self.name, self.creates)
        self._live.when_changed(settings.CREATES_TOPICS, self._creation_changed)

    def find(self, name: str) -> Topic | None:
        """The topic; looks into the table again for one that is not known, and each RELOAD_S.
        Raises StoreDamaged."""
        found = self._file.topics.get(name)
        now = monotonic()
        if found is None or now >= self._reload_at:
            self._reload_at = now + RELOAD_S
            if self.look():
                found = self._file.topics.get(name)
        return found

    def look(self) -> bool:
        """Reads the table again if it has changed, and says so. Raises StoreDamaged."""
        if not self._file.reload():
            return False
        self.when_changed()
        return True

    def announced(self) -> bodies.TopicConfigTable:
        """103: the topics that a name server gets, as they are known."""
        names = sorted({*self._standard, *self._file.topics})
        known = ((name, self._known(name, self._file.topics.get(name))) for name in names)
        table = {name: _config(topic) for name, topic in known if topic is not None}
        return bodies.TopicConfigTable(table, self._version(), bodies.DataVersion(), {}, {})

    def _known(self, name: str, found: Topic | None) -> Topic | None:
        """`found` in the table, or the topic that every broker has of this name. New topics follow
        that, even where the table forbids it."""
        standard = self._standard.get(name)
        if standard is None or (found is not None and found.perm & PERM_INHERIT):
            return found
        if found is None or not standard.perm & PERM_INHERIT:
            return found or standard
        return replace(found, perm=standard.perm)

    def need(self, name: str) -> Topic:
        """As `find`, with the topics that every broker has. Raises UnknownTopic."""
        found = self._known(name, self.find(name))
        if found is None:
            raise UnknownTopic(f"topic {name} does not exist", "see keelog topic ls")
        return found

    def check_may_make(self, name: str, model: str) -> None:
        """Raises UnknownTopic, IllegalMessage or NotAllowed for a topic that no send creates.
        `model` is the topic whose settings it would get."""
        check_topic_for_send(name)
        if not self._is_always_made(name) and name not in self._standard:
            self._model_of(name, model)

    def _model_of(self, name: str, model: str) -> Topic:
        """The topic whose settings a new one gets: it is there, and lets others have them
        (TopicConfigManager#createTopicInSendMessageMethod). Raises UnknownTopic."""
        found = self._known(model, self.find(model))
        may_follow = model != settings.TBW102 or self.creates
        if found is None or not found.perm & PERM_INHERIT or not may_follow:
            raise UnknownTopic(
                f"topic {name} does not exist, and is not created from {model[:80]!a}",
                f"make it: keelog topic create {name} --queues 8",
            )
        return found

    async def make_for_send(self, wanted: hf.SendMessageHeader) -> Topic:
        """As `make`: with at most as many queues as the topic that is named for it, and with its
        perm. Dead letters and replies have one queue, as has a retry topic without such a topic.
        One that every broker has becomes what it is there."""
        name, queues, perm = wanted.topic, 1, PERM_DEFAULT
        standard = self._standard.get(name)
        if standard is not None:
            return await self.make(name, standard.write_queues, standard.perm)
        try:
            model = self._model_of(name, wanted.default_topic)
        except UnknownTopic:
            if not self._is_always_made(name):
                raise
        else:
            if not name.startswith(DLQ_PREFIX):
                queues = min(wanted.default_topic_queue_nums, model.write_queues)
                perm = model.perm & ~PERM_INHERIT
        return await self.make(name, max(queues, 1), perm, is_unit=wanted.unit_mode)

    def _is_always_made(self, name: str) -> bool:
        """A group's own topic, and that of replies."""
        return name.startswith(_OF_GROUPS) or name == self.name.reply_topic

    async def make(
        self, name: str, queues: int, perm: int = PERM_DEFAULT, *, is_unit: bool = False
    ) -> Topic:
        """Creates a topic; waits for the one who does it already. `is_unit`: for a client in unit
        mode, which the topic's flags say from then on. Raises what the writer refuses."""
        task = self._making.get(name)
        if task is None:
            of_group = name.startswith(RETRY_PREFIX)
            flag = (settings.UNIT_SUB_FLAG if of_group else settings.UNIT_FLAG) if is_unit else 0
            wanted = {"topic": name, "queues": queues, "perm": perm, "sys_flag": flag}
            task = self._making[name] = asyncio.ensure_future(self._make(wanted))
            task.add_done_callback(lambda _: self._making.pop(name, None))
        await asyncio.shield(task)
        return self.need(name)

    async def _make(self, wanted: dict[str, Any]) -> None:
        if self.find(wanted["topic"]) is None:
            await run(self._core, operations.create_topic(wanted, self._core.deadline(None)))
            self.look()

    # Requests

    def route(self, request: Request, wanted: hf.RouteHeader) -> Reply:
        """105: the one broker of a topic, and its queues."""
        known = self._known(wanted.topic, self.find(wanted.topic))
        if known is None:
            text = f"No topic route info in name server for the topic: {wanted.topic}"
            raise UnknownTopic(f"{text}\n{NO_ROUTE}")
        perm = known.perm & ~topics_file.PERM_WRITE if self.is_wiped else known.perm
        numbers = known.read_queues, known.write_queues, perm, known.sys_flag
        queues = bodies.QueueData(self.name.broker, *numbers)
        route = bodies.TopicRouteData((self._broker(request),), (queues,))
        standard = hf.wants_standard_json(request.header, wanted.accept_standard_json_only)
        return Reply(body=write_body(route, standard=standard))

    def cluster(self, request: Request) -> Reply:
        """106: all brokers: this one."""
        name, broker = self.name.broker, self._broker(request)
        info = bodies.ClusterInfo({name: broker}, {self.name.cluster: (name,)})
        return Reply(body=write_body(info, standard=hf.wants_standard_json(request.header, False)))

    def names(self, request: Request) -> Reply:
        """206: the names of all topics, or of those that the user may see."""
        self.look()
        return json_reply(bodies.TopicList(seen_topics(request, sorted(self._file.topics))))

    def config(self, _: Request, wanted: hf.TopicHeader) -> Reply:
        """351: the settings of one topic."""
        return json_reply(_config(self.need(wanted.topic)))

    def configs(self, _: Request, wanted: hf.PagedTopicsHeader) -> Reply:
        """21: the settings of all topics, or of a page of them."""
        self.look()
        known = sorted(self._file.topics.items())
        first = max(0, wanted.topic_seq)
        page = known[first : first + max(0, wanted.max_topic_num)]
        table = {name: _config(topic) for name, topic in page}
        body = bodies.TopicConfigTable(table, self._version())
        return json_reply(body, {"totalTopicNum": str(len(known))})

    @property
    def creates(self) -> bool:
        """Whether a topic is created by the first send to it."""
        return self._live.now.auto_create_topic_enable

    def _creation_changed(self) -> None:
        standard = standard_topics(self.name, self.creates)
        if not self.creates and settings.TBW102 in self._standard:
            # As at a broker it keeps its route, and clients hear why a send is refused.
            standard[settings.TBW102] = Topic(
                settings.TBW102, settings.TBW102_QUEUES, settings.TBW102_QUEUES
            )
        self._standard = standard
        self.when_changed()

    def _version(self) -> bodies.DataVersion:
        return bodies.DataVersion(counter=self._file.version)

    def _broker(self, request: Request) -> bodies.BrokerData:
        address = self.name.address or request.connection.address
        addresses: Mapping[int, str] = {self.name.broker_id: address}
        return bodies.BrokerData(self.name.broker, addresses, self.name.cluster)


def _config(topic: Topic) -> bodies.TopicConfig:
    attributes = dict(topic.attributes)
    if topic.retention_hours:
        attributes[topics_file.RESERVE_TIME] = str(topic.retention_hours)
    numbers = topic.read_queues, topic.write_queues, topic.perm
    return bodies.TopicConfig(
        topic.name, *numbers, "SINGLE_TAG", topic.sys_flag, topic.is_ordered, attributes
    )
