"""The options of a client's calls, and their checks before anything is sent.

Options are `TypedDict`s: the two clients share them, and a type checker knows each name. The checks
find what a type checker would have found too, and raise BadRequest: unknown names, and values that
are not times, seconds or addresses. A program that reads also chooses what damage on its way does.
"""

import difflib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from numbers import Real
from typing import Any, Literal, TypedDict

from keelog.client.messages import Body, MessageOptions, bad_body, check_type, wrong_type
from protocol.addresses import DEFAULT_NODE, with_scheme
from protocol.errors import BadRequest, CorruptError, MessageDamaged, StoreDamaged
from protocol.record.encode import Keys

OnDamage = Literal["fail", "skip"] | Callable[[MessageDamaged], object]
OnFoundDamage = Literal["fail", "skip"] | Callable[[StoreDamaged], object]
"""Of reads that follow no queue."""
DEFAULT_TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 1_000_000.0
"""Eleven days. Longer ones do not fit everywhere where the system counts a time."""
PORT_MAX = 65_535
_TCP = re.compile(r"tcp://.+:(\d+)")

Acks = Literal["appended", "flushed", "replicated"]
Time = datetime | int
"""A datetime (without a zone: local time) or ms since 1970."""
MESSAGE_OPTIONS = MessageOptions.__annotations__.keys()


class SendOptions(MessageOptions, total=False):
    """The options of `send` beside topic and body.

    `acks`: "replicated" returns when the message is on the disks of the node and of those who
    follow it, as many as `in_sync_replicas` says and one at least; "flushed" when it is on the
    node's disk; "appended" as the node's settings say.
    `wait`: False returns after the append even where the node flushes synchronously.
    `timeout`: seconds for the whole call, all attempts together.
    """

    acks: Acks
    wait: bool
    timeout: float | None


SendOptions.__doc__ = f"{SendOptions.__doc__}\n{MessageOptions.__doc__}"


class PullOptions(TypedDict, total=False):
    """The options of `pull` beside topic, queue and offset.

    `max_messages`: 1 to 10,000, 32 unless given.
    `max_bytes`: 1 to 16 MiB, 256 KiB unless given; one message always comes, however large.
    `tags`: `"A || B"`, messages with one of these tags; None for all.
    `wait`: seconds that the node may hold a pull that finds nothing, at most 30.
    `generation`: of the topic when you came to know the offset (`QueueOffsets.generation`), or any
        later log offset, as `physical_offset` of a message that you have read. TopicRemoved if the
        topic was removed later; without it the offset is taken as it is.
    `timeout`: seconds beyond that.
    """

    max_messages: int
    max_bytes: int
    tags: str | None
    wait: float
    generation: int | None
    timeout: float | None


class FindOptions(TypedDict, total=False):
    """The options of `find` beside topic and key.

    `since`: the first store time, a datetime or ms since 1970.
    `until`: the last store time, included.
    `limit`: the most messages to return; None for all.
    `unique`: True looks at unique keys only.
    `on_damage`: "fail" (unless given) raises StoreDamaged for a damaged record that may have the
        key, after all messages that could be read; "skip" logs a warning instead; a function gets
        the error.
    `timeout`: seconds, for each page of 64 messages.
    """

    since: Time | None
    until: Time | None
    limit: int | None
    unique: bool
    on_damage: OnFoundDamage
    timeout: float | None


class GetOptions(TypedDict, total=False):
    """Ways to name one message, beside its id.

    `physical_offset`: its place in the log, alone.
    `topic`: with `unique_key`, or with `queue_id` and `queue_offset`.
    `unique_key`: the id that the client gave to it, with `topic`.
    `queue_id`: its queue, with `topic` and `queue_offset`.
    `queue_offset`: its number in the queue.
    `generation`: with `queue_offset`, as of `pull`: that of a receipt is its `physical_offset`.
    `timeout`: seconds for the whole call.
    """

    physical_offset: int | None
    topic: str | None
    unique_key: str | None
    queue_id: int | None
    queue_offset: int | None
    generation: int | None
    timeout: float | None


class SeekOptions(TypedDict, total=False):
    """The options of `seek` beside topic, queue and time.

    `boundary`: which of several messages of one time, the first ("lower") or the last ("upper").
    `timeout`: seconds for the whole call.
    """

    boundary: Literal["lower", "upper"]
    timeout: float | None


class CreateTopicOptions(TypedDict, total=False):
    """The options of `create_topic` beside topic and queues.

    `exist_ok`: False makes a topic that is there an error, else it gets what is given.
    `perm`: 2 write, 4 read, 6 both, which a new topic has; as it was unless given.
    `retention_hours`: how long its messages are kept; 0: as the node's `file_reserved_time` says;
    as it was unless given.
    `timeout`: seconds for the whole call.
    """

    exist_ok: bool
    perm: int | None
    retention_hours: int | None
    timeout: float | None


class PurgeOptions(TypedDict, total=False):
    """The options of `purge_topic`: one of the first two says which messages go.

    `before_offset`: messages before this queue offset, in each queue.
    `before_time`: messages stored before this time, a datetime or ms since 1970.
    `queue_id`: those of this queue alone; of all queues unless given.
    `timeout`: seconds that it may take.
    """

    before_offset: int | None
    before_time: Time | None
    queue_id: int | None
    timeout: float | None


class ProducerOptions(TypedDict, total=False):
    """The options of `producer`.

    `linger`: seconds that a message waits for others, 0.005 unless given.
    `batch_bytes`: a batch of this size goes at once, 256,000 unless given.
    `max_in_flight`: messages without an answer, 1024 unless given; beyond it the producer is full.
    `max_batches`: batches of `send_batch` without an answer, 64 unless given.
    `acks`: "replicated" returns when they are on the disks of the node and of those who follow it,
    "flushed" on that of the node, "appended" as the node's settings say.
    `when_full`: "block" makes `send_nowait` wait for room, "raise" raises NodeBusy.
    `timeout`: seconds that a batch may take.
    """

    linger: float
    batch_bytes: int
    max_in_flight: int
    max_batches: int
    acks: Acks
    when_full: Literal["block", "raise"]
    timeout: float


class BatchOptions(TypedDict, total=False):
    """The options of `send_batch` beside topic and bodies.

    `tags`: the tag of all messages.
    `keys`: one item a message, a key or several.
    `queue_id`: the queue of all messages; without it, and `order_by`, the next one in turn.
    `order_by`: puts them into the queue of this ordering key.
    """

    tags: str | None
    keys: Keys | None
    queue_id: int | None
    order_by: str | None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer gathers and waits: see ProducerOptions.

    `max_in_flight` does not count the messages of `send_batch`. `timeout` lasts from the sending of
    a batch to the end of its last attempt; a full producer waits as long for room.
    """

    linger: float = 0.005
    batch_bytes: int = 256_000
    max_in_flight: int = 1024
    max_batches: int = 64
    acks: Acks = "appended"
    when_full: Literal["block", "raise"] = "block"
    timeout: float = DEFAULT_TIMEOUT_S

    def check(self) -> None:
        check_acks(self.acks)
        if self.when_full not in ("block", "raise"):
            raise BadRequest(f"when_full is {self.when_full!r}", "use 'block' or 'raise'")
        check_seconds("linger", self.linger)
        check_seconds("timeout", self.timeout)
        for name in ("batch_bytes", "max_in_flight", "max_batches"):
            number = getattr(self, name)
            if not isinstance(number, int) or number < 1:
                raise BadRequest(f"{name} is {number!r}", "use a whole number, at least 1")


def check_on_damage(wanted: object) -> None:
    if wanted not in ("fail", "skip") and not callable(wanted):
        raise BadRequest(f"on_damage is {wanted!r}", "use 'fail', 'skip' or a function")


def pass_over(error: CorruptError, on_damage: Any, log: logging.Logger) -> None:
    """Goes on after damage as a program wants it. Raises it where that says "fail"."""
    if on_damage == "fail":
        raise error
    if callable(on_damage):
        on_damage(error)
    else:
        log.warning("%s: passed over", error.reason)


def check_acks(acks: object) -> None:
    if acks not in ("appended", "flushed", "replicated"):
        raise BadRequest(f"acks is {acks!r}", "use 'appended', 'flushed' or 'replicated'")


def settings_of(url: str | None, timeout: float | None) -> tuple[str, float]:
    """Address and timeout as given, else from KEELOG_NODE and KEELOG_TIMEOUT, else the defaults."""
    endpoint = node_endpoint(url or os.environ.get("KEELOG_NODE") or DEFAULT_NODE)
    if timeout is None:
        text = os.environ.get("KEELOG_TIMEOUT") or str(DEFAULT_TIMEOUT_S)
        try:
            timeout = float(text)
        except ValueError:
            raise BadRequest(
                f"KEELOG_TIMEOUT is {text!r}, not a number of seconds", "set it to 5"
            ) from None
    check_seconds("timeout", timeout)
    return endpoint, timeout


def node_endpoint(address: object) -> str:
    """The address of a node; `HOST:PORT` gets `tcp://`.

    Raises BadRequest for one that ZeroMQ would accept silently, and never reach.
    """
    if not isinstance(address, str):
        raise BadRequest(
            f"the address is {type(address).__name__}, not text", f"write {DEFAULT_NODE}"
        )
    endpoint = with_scheme(address)
    found = _TCP.fullmatch(endpoint)
    if found is not None and not 1 <= int(found[1]) <= PORT_MAX:
        raise BadRequest(f"{endpoint!r} has no port from 1 to {PORT_MAX}", f"write {DEFAULT_NODE}")
    return endpoint


def check_seconds(name: str, value: object) -> None:
    """Raises BadRequest unless the value is a number of seconds to wait."""
    if not isinstance(value, Real) or not 0 <= float(value) <= TIMEOUT_S_MAX:
        raise BadRequest(
            f"{name} is {value!r}, not a number of seconds from 0 to {TIMEOUT_S_MAX:.0f}",
            "0 does not wait; leave it out for the default",
        )


def check_names(what: str, options: Mapping[str, Any], known: type) -> None:
    """Raises BadRequest for an option that `known`, a TypedDict, does not have."""
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        names = list(known.__annotations__)
        near = difflib.get_close_matches(unknown[0], names, 1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
        raise BadRequest(f"{what} has no option {', '.join(unknown)}", hint)


def check_limit(limit: object) -> None:
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise BadRequest(f"limit is {limit!r}", "use a number of messages, or None for all")


def check_batch(topic: str, options: BatchOptions) -> None:
    """Raises BadRequest for options that the encoder would fail on with a TypeError."""
    check_type("topic", topic, str)
    if not options:
        return
    check_names("a batch", options, BatchOptions)
    keys, queue_id, order_by = map(options.get, ("keys", "queue_id", "order_by"))
    check_type("tags", options.get("tags"), str)
    check_type("queue_id", queue_id, int)
    check_type("order_by", order_by, str)
    if keys is not None and (not isinstance(keys, Sequence) or isinstance(keys, str | bytes)):
        raise wrong_type("keys", keys, "a list with one item a message", "keys=['k-1', 'k-2']")
    if queue_id is not None and order_by is not None:
        raise BadRequest("queue_id and order_by exclude each other", "leave one of them out")


def plain_bodies(bodies: Sequence[Body]) -> Sequence[bytes]:
    """Returns the bodies as bytes objects. Raises BadRequest."""
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not hasattr(bodies, "__len__"):
        raise BadRequest(
            f"the bodies are one {type(bodies).__name__}", "give a list or a tuple of bodies"
        )
    if set(map(type, bodies)) <= {bytes}:
        return bodies  # type: ignore[return-value]  # as has been seen just now
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise bad_body(body)
    return list(map(bytes, bodies))
