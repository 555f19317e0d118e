"""Messages as RocketMQ's clients ask for them: by pulls (11, 361), which are answered from the
store's files, or held; by key (12), and by log offset (33).

The rules and their order are those of RocketMQ's PullMessageProcessor and QueryMessageProcessor.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from keelog.client import messages, operations
from keelog.client.consumer.options import SQL92, TAG
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway import groups, guard, members, topics
from keelog.gateway.connection import RemotingConnection, Reply, Request, system_error
from node.reader.answers import Answer, look_again
from node.reader.pull_desk import Held, Pull, PullDesk
from node.runtime.process import met_damage
from node.runtime.state_page import WorkerPage
from node.store.config.topics_file import PERM_READ
from node.store.indexes import MAX_MESSAGES_BATCH
from node.store.opening import RunningStore
from node.store.query.filters import SqlFilter, TagFilter, parse_tags, sql_filter
from node.store.query.pull import PullRequest, PullStatus, TransferLimits
from protocol import errors, ids
from protocol.derived.file_layouts import TAGS_KEY_PREFIX
from protocol.record.codec import Record, stated_offset
from protocol.remoting import bodies, java_json
from protocol.remoting import header_fields as hf
from protocol.remoting.codes import BadCommand, ResponseCode

COMMIT, SUSPEND, SUBSCRIPTION = 0x1, 0x2, 0x4
"""Bits of sysFlag: commit an offset, may be held, the subscription is in the header."""
HOLD_MS_MAX = 60_000
"""A broker has no limit of its own: clients ask for 15 s and 20 s."""
PULL_BYTES_MAX = 1024 * 1024
"""Records of one answer, where the client asks for more."""
PULL_MESSAGES_MAX = 1_024
OPEN_CHARS_MAX = 64 * 1024 * 1024
"""Of the expressions of all pulls that are held: beyond it, no pull with one is held."""
CACHED_CHARS_MAX = 4_096
"""Of an expression that is remembered for the next pull."""
UNIQUE_MESSAGES_MAX = 32
"""Of one unique key, whatever the client asks for; a Java broker's defaultQueryMaxNum."""
WAIT_S_MAX = 1.0
"""For the index, where it is not as far as the log."""
_LOOK_S = 0.005
_INDEX = "index"
"""The slot of the index worker."""
_OF_TAGS = "T"
"""The type of index in which tags are."""
_MOVED_AWAY_FROM_0 = (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE)
_CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_MASTER = "0"
_ALWAYS = {"suggestWhichBrokerId": _MASTER, "topicSysFlag": "0", "groupSysFlag": "0"}
_SCANNED = (PullStatus.NO_MATCHED_MESSAGE, PullStatus.MESSAGE_WAS_REMOVING)
"""Of a pull that went through messages and returns none."""
_SIZE_BYTES = 4
"""Of each record in the field `sizes`, the lowest byte first."""


class Selection(NamedTuple):
    """An expression and its language, "" for tags."""

    expression: str
    kind: str = ""


EVERYTHING = Selection("*")
"""Most pulls ask for it."""


@dataclass(eq=False)
class Pulls:
    """The pulls of all connections, in the thread of the loop."""

    _store: RunningStore
    _topics: topics.Topics
    _members: members.Members
    _groups: groups.Groups
    _limits: TransferLimits
    _shards: int
    _open: dict[int, Request] = field(default_factory=dict)
    _open_chars: int = 0
    _readers: dict[int, str] = field(default_factory=dict)
    """The groups of open pulls, where it matters who is slow."""

    def __post_init__(self) -> None:
        self.desk = PullDesk(self._store, self._deliver, self._shards)
        self._numbers = count(1)
        self.settings = settings = self._store.settings
        self._scans = (
            settings.max_filter_message_size,
            settings.travel_cq_file_num_when_get_message,
        )
        self._far_bytes = self._limits.memory_bytes if settings.slave_read_enable else None
        """A pull that ends more bytes before the log's end is one of a slow consumer; None: nobody
        asks."""

    def pull(self, request: Request, wanted: hf.PullMessageHeader, now: float) -> None:
        """Serves a pull, or holds it. Raises UnknownTopic, NotAllowed, BadRequest, BadCommand."""
        settings = self._groups.find(wanted.consumer_group)
        if settings is None:
            text = f"subscription group [{wanted.consumer_group}] does not exist"
            request.answer(Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=text))
            return
        if not settings.may_consume:
            raise errors.NotAllowed(f"the group {wanted.consumer_group} may not consume")
        topic = self._topics.need(wanted.topic)
        if not topic.perm & PERM_READ:
            raise errors.NotAllowed(f"the topic {topic.name} is not readable (perm {topic.perm})")
        if not 0 <= wanted.queue_id < topic.read_queues:
            raise errors.BadRequest(
                f"queue {wanted.queue_id} of topic {topic.name} is outside"
                f" [0, {topic.read_queues - 1}]"
            )
        selection = self._selection(wanted)
        if isinstance(selection, Reply):
            request.answer(selection)
            return
        chars = len(selection.expression)
        may_hold = wanted.sys_flag & SUSPEND and self._open_chars + chars <= OPEN_CHARS_MAX
        held_ms = wanted.suspend_timeout_millis if may_hold else 0
        make = _pull_request if chars <= CACHED_CHARS_MAX else _pull_request.__wrapped__
        asked = Pull(
            ids.queue_of(wanted.topic, wanted.queue_id),
            wanted.queue_offset,
            make(selection, wanted.max_msg_nums, wanted.max_msg_bytes, self._limits, *self._scans),
            max(0, min(held_ms, HOLD_MS_MAX)),
            selection.expression,
            selection.kind,
            generation=self.desk.store.removed.horizon(wanted.topic),
        )
        number = next(self._numbers)
        self._open[number] = request
        self._open_chars += chars
        if self._far_bytes is not None:
            self._readers[number] = wanted.consumer_group
        try:
            self.desk.pull(request.connection.number, number, asked, now)
        except errors.MessageDamaged as damage:
            self._close(number, chars)
            request.answer(self._past(damage))
        except errors.MqError:
            self._close(number, chars)
            raise
        if request.is_open:
            request.forget_fields()  # a held pull costs no more than its expression

    def decide_again(self) -> None:
        """Ends the held pulls whose users may not pull any more, or who never said who they are.
        Call it when users have changed."""
        known: dict[tuple[object, ...], errors.MqError | None] = {}

        def refusal(held: Held) -> errors.MqError | None:
            request = self._open.get(held.request_id)
            asker = None if request is None else request.asker
            if asker is None:
                return guard.LoginRefused(guard.NO_LOGIN)
            key = asker.user, asker.address, asker.needs
            if key not in known:
                known[key] = asker.refusal()
            return known[key]

        self.desk.end_refused(refusal)

    def _close(self, number: int, chars: int) -> Request | None:
        """Takes a pull out, with an expression of `chars` characters."""
        request = self._open.pop(number, None)
        if self._readers:
            self._readers.pop(number, None)
        self._open_chars -= chars if request is not None else 0
        return request

    def check(self, request: Request) -> Reply:
        """46: whether an expression may be subscribed. Raises BadCommand."""
        asked = java_json.read_body(bodies.CheckClientBody, request.body).subscription_data
        selection = _selected(asked.sub_string, asked.expression_type)
        if not selection.kind:
            return Reply()
        self._check_kind(selection.kind)
        return self._refusal(selection, ResponseCode.SUBSCRIPTION_PARSE_FAILED) or Reply()

    def _check_kind(self, kind: str) -> None:
        """Raises BadCommand for a language other than tags while these are off."""
        if kind and not self.settings.enable_property_filter:
            raise BadCommand(
                f"the broker does not support consumer to filter message by {kind}",
                "start the node with enable_property_filter=true, or filter by tags",
            )

    def _refusal(self, selection: Selection, code: ResponseCode) -> Reply | None:
        try:
            _filter(selection)
        except errors.BadRequest as error:
            return Reply(
                code, remark=f"{error.reason}; {error.hint}" if error.hint else error.reason
            )
        return None

    def _selection(self, wanted: hf.PullMessageHeader) -> Selection | Reply:
        bad_code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        if wanted.sys_flag & SUBSCRIPTION:
            selection = _selected(wanted.subscription, wanted.expression_type)
        else:
            group = self._members.groups.get(wanted.consumer_group)
            if group is None:
                text = f"the consumer's group info not exist: {wanted.consumer_group}"
                return Reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark=text)
            is_broadcast = group.message_model == members.BROADCASTING
            if is_broadcast and not self._groups.settings(wanted.consumer_group).may_broadcast:
                raise errors.NotAllowed(f"the group {wanted.consumer_group} may not broadcast")
            found = group.subscriptions.get(wanted.topic)
            if found is None:
                text = f"{wanted.consumer_group} does not subscribe {wanted.topic}"
                return Reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark=text)
            if found.sub_version < wanted.sub_version:
                text = f"an older subscription of {wanted.topic} is known"
                return Reply(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark=text)
            selection = _selected(found.sub_string, found.expression_type)
            if selection.kind:
                # A broker compiles it with the heart-beat, and has no filter then.
                bad_code = ResponseCode.FILTER_DATA_NOT_EXIST
        if selection is EVERYTHING:
            return selection
        self._check_kind(selection.kind)
        return self._refusal(selection, bad_code) or selection

    def _deliver(self, held: Held, found: Answer | errors.MqError, _: Mapping[str, Any]) -> bool:
        group = self._readers.get(held.request_id)
        request = self._close(held.request_id, len(held.pull.tags))
        if request is None:
            return False
        if isinstance(found, errors.MessageDamaged):
            request.answer(self._past(found))
        elif isinstance(found, errors.TopicRemoved):
            request.answer(moved_reply(0, found.reason))
        elif isinstance(found, errors.MqError):
            if isinstance(found, errors.CorruptError):
                met_damage.note(found)
            request.answer(Reply(found.code, remark=found.reason))
        else:
            which = _MASTER if group is None else self._suggested(group, held, found)
            request.answer(_reply(held, found, which))
        return not request.connection.is_closed

    def _past(self, damage: errors.MessageDamaged) -> Reply:
        """Sends a consumer on after a damaged message, as after one that its filter refuses; or
        refuses the pull, as the settings say. Either way the answer names the damage."""
        met_damage.note(damage)
        end = str(damage.next_offset)
        ext = {**_ALWAYS, "minOffset": "0", "maxOffset": end, **hf.damage_fields(damage)}
        skips = self.settings.skip_damaged_message
        code = ResponseCode.PULL_RETRY_IMMEDIATELY if skips else damage.code
        return Reply(code, ext, remark=damage.reason)

    def _suggested(self, group: str, held: Held, found: Answer) -> str:
        """The id of the broker that the consumer shall ask next. The master's, from a replica,
        unless the consumer is slow."""
        settings, place = self._groups.settings(group), self._last_place(held, found)
        assert self._far_bytes is not None
        if place is not None and self.desk.store.log.end - place > self._far_bytes:
            return str(settings.slow_broker_id)
        return _MASTER if self.settings.follow else str(settings.broker_id)

    def _last_place(self, held: Held, found: Answer) -> int | None:
        """The log offset of the last message that a pull took or went through, if there is one."""
        if found.payload:
            size = int.from_bytes(found.fields["sizes"][-_SIZE_BYTES:], "little")
            return stated_offset(found.payload, len(found.payload) - size)
        last = found.fields["next_begin_offset"] - 1
        if found.fields["status"] not in _SCANNED or last < held.pull.offset:
            return None
        cached = self.desk.tail.record(held.pull.queue, last)
        if cached is not None:
            # The queue's files may not show it yet.
            return stated_offset(cached)

        def look() -> int | None:
            queue = self.desk.store.queue(*held.pull.queue)
            unit = None if queue is None else queue.unit(last)
            return None if unit is None else unit.physical_offset

        with suppress(errors.MqError):
            return look_again(self.desk.store, look)
        return None

    def went(self, connection: RemotingConnection) -> None:
        """Drops the held pulls of a connection that is gone."""
        for held in self.desk.holds.forget(connection.number):
            self._close(held.request_id, len(held.pull.tags))


def moved_reply(offset: int, remark: str = "OFFSET_RESET") -> Reply:
    """Of a pull whose group shall go on from an offset that a tool has set, or anew."""
    ext = {
        **_ALWAYS, "nextBeginOffset": str(offset), "minOffset": "0", "maxOffset": str(offset),
    }  # fmt: skip
    return Reply(ResponseCode.PULL_OFFSET_MOVED, ext, remark=remark)


def _reply(held: Held, found: Answer, which_broker: str) -> Reply:
    status: PullStatus = found.fields["status"]
    code = _CODES[status]
    if status in _MOVED_AWAY_FROM_0 and held.pull.offset:
        code = ResponseCode.PULL_OFFSET_MOVED
    ext = {
        **_ALWAYS,
        "suggestWhichBrokerId": which_broker,
        "nextBeginOffset": str(found.fields["next_begin_offset"]),
        "minOffset": str(found.fields["min_offset"]),
        "maxOffset": str(found.fields["max_offset"]),
    }
    return Reply(code, ext, found.payload or b"", status)


def _selected(expression: str | None, kind: str) -> Selection:
    if kind in ("", TAG):
        return Selection(expression) if expression and expression != "*" else EVERYTHING
    return Selection(expression or "", kind)


def _filter(selection: Selection) -> TagFilter | SqlFilter | None:
    """Remembers those that are not long. Raises BadRequest."""
    is_short = len(selection.expression) <= CACHED_CHARS_MAX
    return _filter_of(selection) if is_short else _filter_of.__wrapped__(selection)


@lru_cache(maxsize=1024)
def _filter_of(selection: Selection) -> TagFilter | SqlFilter | None:
    """Raises BadRequest."""
    if not selection.kind:
        return parse_tags(selection.expression)
    if selection.kind != SQL92:
        raise errors.BadRequest(
            f"expressions of the type {selection.kind[:80]!a} are unknown", "use SQL92 or TAG"
        )
    return sql_filter(selection.expression)


@lru_cache(maxsize=1024)
def _pull_request(
    selection: Selection,
    count: int,
    size: int,
    limits: TransferLimits,
    filter_bytes_max: int,
    files_max: int,
) -> PullRequest:
    """Cached, as consumers repeat their pulls. The last two are those of PullRequest."""
    count = max(1, min(count, PULL_MESSAGES_MAX))
    size = max(1, min(size, PULL_BYTES_MAX))
    return PullRequest(
        max_messages=count,
        total_bytes_max=size,
        limits=limits._replace(
            count_max=count, cold_count_max=count, bytes_max=size, cold_bytes_max=size
        ),
        tags=_filter(selection),
        exact=True,
        filter_bytes_max=filter_bytes_max,
        files_max=files_max,
    )


@dataclass(slots=True, eq=False)
class LookUps:
    """One for each gateway. `_look_up` returns the record at a log offset, and `_readable` how far
    the log of the store at `_root` may be read. Readers look for keys, as an index file that is not
    in memory must not hold up heart-beats."""

    _core: ClientCore
    _root: Path
    _look_up: Callable[[int], Record]
    _readable: Callable[[], int]

    async def by_key(self, request: Request, wanted: hf.QueryMessageHeader) -> Reply:
        """12: the newest messages with a key, oldest first: up to 64 of them, or about 4 MiB.

        A broker compares hashes, and its client the keys; here only messages with the key count.
        Clients look for what they have just sent, so the index may catch up with the log before.
        Raises NotFound when there are none, StoreDamaged when all that may be it are damaged.
        """
        end, deadline = self._readable(), monotonic() + WAIT_S_MAX
        while self._indexed() < end and monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
        found = await self._newest(wanted)
        if not found:
            raise errors.NotFound("can not find message, maybe time range not correct")
        for message in found:
            guard.check_found(request, message.record)
        last = found[-1].record.head
        ext = {
            "indexLastUpdateTimestamp": str(last.store_timestamp),
            "indexLastUpdatePhyoffset": str(last.physical_offset),
        }
        return Reply(ext=ext, body=b"".join(message.raw for message in found))

    def _indexed(self) -> int:
        """Up to where the log is in the index; 0 where that is not known."""
        try:
            with closing(WorkerPage.open(self._root, _INDEX)) as page:
                return page.read().dispatched
        except FileNotFoundError:
            return 0

    async def _newest(self, wanted: hf.QueryMessageHeader) -> list[messages.Message]:
        limit = UNIQUE_MESSAGES_MAX if wanted.unique_key_query else wanted.max_num
        is_tag = wanted.index_type == _OF_TAGS
        fields = {
            "topic": wanted.topic,
            "key": TAGS_KEY_PREFIX + wanted.key if is_tag else wanted.key,
            "begin": max(wanted.begin_timestamp, 0),
            "end": max(wanted.end_timestamp, 0),
            "max_messages": max(1, min(limit, MAX_MESSAGES_BATCH)),
            "unique": wanted.unique_key_query,
        }
        deadline, cursor = self._core.deadline(None), None
        damaged: list[errors.StoreDamaged] = []
        while True:
            page = operations.find_page(fields, cursor, deadline)
            try:
                found, cursor, some = await run(self._core, page)
            except errors.UnknownTopic:
                return []
            damaged = damaged or some
            if found or cursor is None:
                break
        if damaged and not found:
            raise damaged[0]
        return sorted(found, key=lambda message: message.physical_offset)

    def by_offset(self, request: Request, wanted: hf.ViewMessageHeader) -> Reply:
        """33: the message at a log offset, which its id names."""
        try:
            record = self._look_up(wanted.offset)
        except errors.NotFound as error:
            return system_error(error.reason)
        guard.check_found(request, record)
        return Reply(body=record.raw)
