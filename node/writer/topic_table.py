"""Which topics may be sent to, which queue is next: the writer's view of `config/topics.json`.

Creating topics follows `TopicConfigManager#createTopicInSendMessageMethod`.
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.store.config import topics_file
from protocol import names
from protocol.errors import BadRequest, MqError, NotAllowed, UnknownTopic
from protocol.ids import Queue
from protocol.record.encode import ANY_QUEUE
from protocol.requests import CreateTopicFields

log = logging.getLogger("keelog.writer")

Value = TypeVar("Value")

_TOPICS_OF_ONE_QUEUE = frozenset(
    (names.TIMER_TOPIC, names.HALF_TOPIC, names.OP_TOPIC, names.UNDECIDED_TOPIC)
)
TOPIC_QUEUES_MAX = 1024
"""Each queue is a folder and a file: a topic with more is refused."""
TOPICS_MAX = 20_000
QUEUES_MAX = 1_000_000
"""Write queues of all topics together. Topics that are there already keep theirs."""


class TopicTable:
    """Topics by name, with the next queue of each. `now_ms` returns the wall clock in ms."""

    def __init__(
        self,
        file: topics_file.TopicsFile,
        settings: Settings,
        stored: Iterable[Queue],
        now_ms: Callable[[], int],
    ) -> None:
        self._file = file
        self._settings = settings
        self._now_ms = now_ms
        self._stored_queues: dict[str, int] = {}
        for queue in stored:
            count = self._stored_queues.get(queue.topic, 0)
            self._stored_queues[queue.topic] = max(count, queue.queue_id + 1)
        self._turn: dict[str, int] = {}
        self._warned: set[str] = set()
        self._warn()

    def for_inner(self, name: str) -> topics_file.Topic:
        """The topic that a process of the node writes to: one of the system's is created, and a
        permission counts for clients alone. Raises as `for_send`."""
        topic = self._file.topics.get(name)
        if name == names.SCHEDULE_TOPIC:
            queues = len(self._settings.delay_levels_ms)
        elif name in _TOPICS_OF_ONE_QUEUE:
            queues = 1
        else:
            if topic is None:
                topic = self._draft(name)
                self._put([topic])
            return topic
        if topic is None or topic.write_queues < queues:
            topic = topics_file.Topic(name, queues, queues, topics_file.PERM_DEFAULT)
            self._put([topic])
        return topic

    def for_send(self, name: str) -> topics_file.Topic:
        """The topic, created if allowed. Raises IllegalMessage, NotAllowed, UnknownTopic."""
        topic = self.would_take(name)
        if name not in self._file.topics:
            self._put([topic])
        return topic

    def would_take(self, name: str) -> topics_file.Topic:
        """As `for_send`, but creates nothing: the topic as it is, or as it would be created."""
        topic = self._file.topics.get(name) or self._draft(name)
        if not topic.is_writable:
            raise NotAllowed(f"topic {name} does not take messages (perm {topic.perm})")
        return topic

    def make(self, wanted: Iterable[str]) -> None:
        """Creates the topics among these that are missing, with one save for all of them.

        A topic that cannot be created stays missing: `for_send` says why.
        """
        drafts: list[topics_file.Topic] = []
        with suppress(MqError):
            drafts += [self._draft(name) for name in wanted if name not in self._file.topics]
            if len(drafts) > 1:
                self._put(drafts)

    def _draft(self, name: str) -> topics_file.Topic:
        names.check_topic_for_send(name)
        stored = self._stored_queues.get(name)
        if stored is None and not self._settings.auto_create_topic_enable:
            raise UnknownTopic(
                f"there is no topic {name}", f"make it: keelog topic create {name} --queues 8"
            )
        return self._new(name)

    def _new(self, name: str) -> topics_file.Topic:
        """A topic as it is made where nobody says more."""
        queues = max(self._stored_queues.get(name, 0), self._settings.default_topic_queue_nums)
        return topics_file.Topic(name, queues, queues, topics_file.PERM_DEFAULT)

    def _put(self, topics: Sequence[topics_file.Topic]) -> None:
        """Saves topics. Raises NotAllowed for more topics or queues than one node can hold."""
        wanted = {topic.name for topic in topics}
        others = [known for name, known in self._file.topics.items() if name not in wanted]
        queues = sum(known.write_queues for known in others)
        more = sum(topic.write_queues for topic in topics)
        if len(others) + len(topics) > TOPICS_MAX or queues + more > QUEUES_MAX:
            raise NotAllowed(
                f"{len(others)} topics with {queues} queues are there already, "
                f"{TOPICS_MAX} with {QUEUES_MAX} are allowed",
                "use one topic for many kinds of messages, with tags; see: keelog topic ls",
            )
        self._file.put(topics, self._now_ms())

    def check_queue(self, topic: topics_file.Topic, queue_id: int) -> None:
        """Raises BadRequest for a queue that the topic does not have (SendMessageProcessor)."""
        queues = max(topic.read_queues, topic.write_queues)
        if not 0 <= queue_id < queues:
            raise BadRequest(
                f"queue {queue_id} of topic {topic.name} is outside [0, {queues - 1}]",
                f"see keelog topic describe {topic.name}",
            )

    def queue_of(self, topic: topics_file.Topic, wanted: int) -> int:
        """The queue for a message that names `wanted`, or -1 for the next in turn. Raises as
        `check_queue`, `choose_queue`."""
        queue_id = self.choose_queue(topic) if wanted == ANY_QUEUE else wanted
        self.check_queue(topic, queue_id)
        return queue_id

    def choose_queue(self, topic: topics_file.Topic) -> int:
        """The write queues in turn, from a random start. Raises NotAllowed where there is none."""
        if not topic.write_queues:
            raise NotAllowed(f"topic {topic.name} has no queue to write to")
        turn = self._turn.get(topic.name)
        if turn is None:
            turn = random.randrange(topic.write_queues)
        self._turn[topic.name] = turn + 1
        return turn % topic.write_queues

    def queue_for(self, name: str, wanted: int) -> int | None:
        """The queue for a message that names `wanted`, or -1 to take the next in turn.

        The fast path of `for_send`, `choose_queue` and `check_queue`: None where one of them has
        more to do, or would refuse.
        """
        topic = self._file.topics.get(name)
        if topic is None or not topic.perm & topics_file.PERM_WRITE:
            return None
        if wanted != ANY_QUEUE:
            return wanted if 0 <= wanted < max(topic.read_queues, topic.write_queues) else None
        turn = self._turn.get(name)
        if turn is None or not topic.write_queues:
            return None
        self._turn[name] = turn + 1
        return turn % topic.write_queues

    def create(self, wanted: CreateTopicFields) -> tuple[topics_file.Topic, bool]:
        """Makes a topic or changes it; True when it is new. The rest stays as it was."""
        names.check_topic_for_send(wanted.topic)
        limit = min(TOPIC_QUEUES_MAX, names.QUEUE_ID_MAX)
        for queues in (wanted.queues, wanted.read_queues):
            if queues is not None and not 1 <= queues <= limit:
                raise BadRequest(f"{queues} queues are outside [1, {limit}]")
        if (wanted.perm or 0) & ~(topics_file.PERM_DEFAULT | topics_file.PERM_INHERIT):
            raise BadRequest(f"perm is {wanted.perm}", "use 2 (write), 4 (read) or 6 (both)")
        known = self._file.topics.get(wanted.topic)
        before = known or self._new(wanted.topic)
        write_queues = _or(wanted.queues, before.write_queues)
        read_queues = _or(_or(wanted.read_queues, wanted.queues), before.read_queues)
        if known is None:
            # Its messages are there, its entry is not: no queue that has some is hidden.
            stored = self._stored_queues.get(wanted.topic, 0)
            read_queues, write_queues = max(read_queues, stored), max(write_queues, stored)
        attributes = before.attributes
        if wanted.attributes is not None:
            topics_file.check_offered(wanted.attributes, dict(before.attributes))
            attributes = tuple(sorted(wanted.attributes.items()))
        topic = topics_file.Topic(
            wanted.topic,
            read_queues,
            write_queues,
            _or(wanted.perm, before.perm),
            _or(wanted.retention_hours, before.retention_hours),
            _or(wanted.order, before.is_ordered),
            _or(wanted.sys_flag, before.sys_flag),
            attributes,
        )
        if known != topic:
            self._put([topic])
        if topic.read_queues < before.read_queues and known is not None:
            details = fields(topic=topic.name, before=before.read_queues, now=topic.read_queues)
            log.warning("consumers of groups read fewer queues of a topic", extra=details)
        return topic, known is None

    @property
    def version(self) -> int:
        return self._file.version

    def has(self, name: str) -> bool:
        """True for a topic of the table, and for one that only has messages."""
        return name in self._file.topics or name in self._stored_queues

    def find(self, name: str) -> topics_file.Topic | None:
        return self._file.topics.get(name)

    def forget(self, name: str) -> None:
        """Takes a topic whose messages are gone out of the table, and saves it."""
        self._stored_queues.pop(name, None)
        self._turn.pop(name, None)
        self._file.remove(name, self._now_ms())

    def keep_file(self) -> None:
        """Writes the file again, with a warning, where somebody has removed it."""
        if self._file.write_again():
            log.warning("the table of topics was removed, and is written again")

    def adopt(self, document: dict[str, Any]) -> bool:
        """Replaces the table by a master's. Raises as `TopicsFile.adopt`."""
        is_changed = self._file.adopt(document)
        self._warn()
        return is_changed

    def _warn(self) -> None:
        """Logs, once each, topics that a broker would keep in another way."""
        for topic in self._file.topics.values():
            for name, value in topic.attributes:
                why = topics_file.reason_not_offered(name, value)
                if why and topic.name not in self._warned:
                    self._warned.add(topic.name)
                    found = fields(topic=topic.name, attribute=f"{name}={value}", why=why)
                    log.warning("a topic has an attribute that is not offered", extra=found)

    def all(self) -> list[topics_file.Topic]:
        return [self._file.topics[name] for name in sorted(self._file.topics)]


def _or(given: Value | None, before: Value) -> Value:
    return before if given is None else given
