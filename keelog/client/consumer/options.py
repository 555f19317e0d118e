"""The options of a consumer and their checks; what it subscribes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from keelog.client.operations import milliseconds
from keelog.client.options import OnDamage, check_names, check_on_damage
from keelog.client.subscription import check_start
from protocol.errors import BadRequest, IllegalMessage
from protocol.names import RETRY_PREFIX, check_topic, is_group_name
from protocol.record.java_hash import java_hash
from protocol.remoting.bodies import SubscriptionData

if TYPE_CHECKING:
    from ssl import SSLContext

    from protocol.access.credentials import Credentials

Topics = str | Iterable[str] | Mapping[str, str]
"""One topic, several, or topics with the tags of each."""
GroupStart = Literal["latest", "earliest"] | datetime
ALL_TAGS = "*"
TAG, SQL92 = "TAG", "SQL92"
MESSAGES_MAX = 1_000
BYTES_MAX = 16 * 1024 * 1024
TOPICS_MAX = 1_000
"""Of one group, as the gateway takes them."""


class ConsumerOptions(TypedDict, total=False):
    """The options of `consumer` beside group and topics.

    `tags`: `"A || B"`, messages with one of these tags; all unless given.
    `sql`: an expression in SQL92 over properties, as `"amount > 5"`, in the place of tags.
    `start`: where a group begins in a queue in which it has no place: "latest" (unless given),
        "earliest", or a datetime (store time). As with RocketMQ, "latest" is the beginning of a
        topic whose first message is still young.
    `auto_commit`: False commits only what `commit()` is called for.
    `max_retries`: how often a message may come again before it becomes a dead letter; as the
        group's settings say (16) unless given.
    `orderly`: True gives out one message of a queue at a time, in order. One that failed comes
        again first, after a second, and keeps the others of its queue waiting.
    `on_damage`: "skip" (unless given) goes on after a damaged message and logs a warning; a
        function goes on too, and gets the MessageDamaged: it is called on the consumer's thread
        and must not wait. "fail" raises it when all messages before it in its queue were given
        out, and again until the consumer is closed; other queues go on. So does a function that
        fails itself.
    `max_messages`: messages that may be held, not handled yet, 1,000 unless given.
    `max_bytes`: the same for their bytes, 16 MiB unless given. One message of each queue always
        has room.
    `tls`: an `ssl.SSLContext`, for a node with a certificate (docs/tls.md); plain unless given.
    `credentials`: a user of the node, for one where RocketMQ's clients log in (docs/security.md);
        those of the client unless given.
    """

    tags: str | None
    sql: str | None
    start: GroupStart
    auto_commit: bool
    max_retries: int | None
    orderly: bool
    on_damage: OnDamage
    max_messages: int
    max_bytes: int
    tls: "SSLContext | None"
    credentials: "Credentials | None"


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """See ConsumerOptions. `subscriptions`: by topic, the group's own retry topic among them."""

    group: str
    subscriptions: Mapping[str, SubscriptionData]
    start: GroupStart = "latest"
    auto_commit: bool = True
    max_retries: int | None = None
    orderly: bool = False
    on_damage: OnDamage = "skip"
    max_messages: int = MESSAGES_MAX
    max_bytes: int = BYTES_MAX
    tls: "SSLContext | None" = None
    credentials: "Credentials | None" = None

    @property
    def retry_topic(self) -> str:
        """The topic from which messages come again."""
        return f"{RETRY_PREFIX}{self.group}"

    @property
    def consume_from_where(self) -> str:
        """`start` in RocketMQ's words."""
        if isinstance(self.start, datetime):
            return "CONSUME_FROM_TIMESTAMP"
        return f"CONSUME_FROM_{'FIRST' if self.start == 'earliest' else 'LAST'}_OFFSET"

    @property
    def start_ms(self) -> int:
        assert isinstance(self.start, datetime)
        return milliseconds(self.start, 0)


_Expression = tuple[str, str]
"""Its text and its kind."""


def consumer_settings(
    group: str, topics: Topics, options: ConsumerOptions, version: int
) -> ConsumerSettings:
    """Checks what a caller gave. `version`: the number of the subscriptions; a later one is
    larger. Raises BadRequest, IllegalMessage."""
    check_names("a consumer", options, ConsumerOptions)
    if not isinstance(group, str) or not is_group_name(group):
        hint = "use 1 to 255 of the characters % | a-z A-Z 0-9 _ -"
        raise BadRequest(f"group is {group!r}", hint)
    start = options.get("start", "latest")
    if isinstance(start, datetime):
        milliseconds(start, 0)
    elif start not in ("latest", "earliest"):
        check_start(start)
        raise BadRequest(f"start is {start!r}", "use 'latest', 'earliest' or a datetime")
    for name, least in (("max_messages", 1), ("max_bytes", 1), ("max_retries", 0)):
        value = options.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise BadRequest(f"{name} is {value!r}", f"use a whole number, at least {least}")
    check_on_damage(options.get("on_damage", "skip"))
    wanted = {
        topic: _subscription(topic, expression, version)
        for topic, expression in _wanted(topics, options).items()
    }
    retry = f"{RETRY_PREFIX}{group}"
    wanted[retry] = _subscription(retry, (ALL_TAGS, TAG), version)
    rest = {name: value for name, value in options.items() if name not in ("tags", "sql", "start")}
    return ConsumerSettings(group, wanted, start, **rest)  # type: ignore[arg-type]


def _wanted(topics: Topics, options: ConsumerOptions) -> dict[str, _Expression]:
    """The expression of each topic. Raises BadRequest, IllegalMessage."""
    tags, sql = options.get("tags"), options.get("sql")
    if tags is not None and sql is not None:
        raise BadRequest("tags and sql exclude each other", "leave one of them out")
    of_all = (tags or ALL_TAGS, TAG) if sql is None else (sql, SQL92)
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Mapping):
        if tags is not None or sql is not None:
            raise BadRequest("each topic has its tags already", "leave tags and sql out")
        found = {topic: (text, TAG) for topic, text in topics.items()}
    elif isinstance(topics, Iterable):
        found = dict.fromkeys(topics, of_all)
    else:
        raise BadRequest(f"topics is {topics!r}", "give a topic, or a list of topics")
    if not 1 <= len(found) < TOPICS_MAX:
        raise BadRequest(f"{len(found)} topics", f"subscribe 1 to {TOPICS_MAX - 1} topics")
    for topic, expression in found.items():
        if not isinstance(topic, str) or not isinstance(expression[0], str):
            raise BadRequest(f"{topic!r} is not a topic with tags", "both are text")
        try:
            check_topic(topic)
        except IllegalMessage as error:
            raise BadRequest(error.reason, error.hint) from None
    return found


def _subscription(topic: str, expression: _Expression, version: int) -> SubscriptionData:
    """As Java's FilterAPI makes it."""
    text, kind = expression
    if kind != TAG:
        return SubscriptionData(topic, text, sub_version=version, expression_type=kind)
    found = dict.fromkeys(part for one in text.split("||") if (part := one.strip()))
    tags = () if ALL_TAGS in found else tuple(found)
    hashes = tuple(map(java_hash, tags))
    return SubscriptionData(topic, text.strip() or ALL_TAGS, tags, hashes, version)
