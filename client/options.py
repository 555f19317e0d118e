"""The options of a client's calls, and their checks before anything is sent.

Options are `TypedDict`s: the two clients share them, and a type checker knows each name. The checks
find what a type checker would have found too, and raise BadRequest: unknown names, and values that
are not times, seconds or addresses.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from numbers import Real
from typing import Any, Literal, TypedDict

from client.messages import Body, MessageOptions, bad_body
from protocol.errors import BadRequest
from protocol.record.encode_batch import Keys

DEFAULT_NODE = "tcp://127.0.0.1:9870"
DEFAULT_TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 1_000_000.0
"""Eleven days. Longer ones do not fit everywhere where the system counts a time."""
PORT_MAX = 65_535
_TCP = re.compile(r"tcp://.+:(\d+)")

Acks = Literal["appended", "flushed"]
Time = datetime | int
"""A datetime (without a zone: local time) or ms since 1970."""


class SendOptions(MessageOptions, total=False):
    """The options of `send` beside topic and body.

    `acks="flushed"` answers when the message is on disk; `wait=False` answers after the append
    even where the node flushes synchronously. `timeout` is for the whole call, in seconds.
    """

    acks: Acks
    wait: bool
    timeout: float | None


MESSAGE_OPTIONS = MessageOptions.__annotations__.keys()


class PullOptions(TypedDict, total=False):
    """`max_messages`: 1 to 10,000, 32 unless given. `max_bytes`: 1 to 16 MiB, 256 KiB unless given;
    one message always comes, however large. `tags`: `"A || B"`, or None for all. `wait`: seconds
    that the node may hold a pull that finds nothing, at most 30. `timeout`: seconds beyond that."""

    max_messages: int
    max_bytes: int
    tags: str | None
    wait: float
    timeout: float | None


class FindOptions(TypedDict, total=False):
    """Bounds are inclusive store times. `limit`: the most messages to return. `unique` looks at
    UNIQ_KEY only. `timeout`: seconds, for each page of 64 messages."""

    since: Time | None
    until: Time | None
    limit: int | None
    unique: bool
    timeout: float | None


class GetOptions(TypedDict, total=False):
    """Ways to name one message."""

    physical_offset: int | None
    topic: str | None
    unique_key: str | None
    queue_id: int | None
    queue_offset: int | None
    timeout: float | None


class SeekOptions(TypedDict, total=False):
    """Which of several messages of one time: the first ("lower") or the last ("upper")."""

    boundary: Literal["lower", "upper"]
    timeout: float | None


class CreateTopicOptions(TypedDict, total=False):
    """With `exist_ok=False` a topic that is there is an error, else it gets the queues asked for.
    `perm`: 2 write, 4 read, 6 both, which is the default."""

    exist_ok: bool
    perm: int
    timeout: float | None


class ProducerOptions(TypedDict, total=False):
    """See `Client.producer`."""

    linger: float
    batch_bytes: int
    max_in_flight: int
    max_batches: int
    acks: Acks
    when_full: Literal["block", "raise"]
    timeout: float


class BatchOptions(TypedDict, total=False):
    """The options of `send_batch` beside topic and bodies.

    `tags` hold for all messages; `keys` has one item a message, a key or several. All go to one
    queue: `queue_id`, that of `order_by`, or else the next in turn.
    """

    tags: str | None
    keys: Keys | None
    queue_id: int | None
    order_by: str | None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer gathers and waits.

    `linger`: seconds that a message waits for others. `batch_bytes`: a batch of this size goes at
    once. `max_in_flight`: messages without an answer; beyond it `when_full` says whether
    `send_nowait` waits ("block") or raises NodeBusy ("raise"). `max_batches`: the same for batches
    of `send_batch`, which `max_in_flight` does not count. `acks`: "appended" answers as the
    node's flush mode says, "flushed" only when the message is on disk. `timeout`: seconds from
    the sending of a batch to the end of its last attempt; a full producer waits as long for room.
    """

    linger: float = 0.005
    batch_bytes: int = 256_000
    max_in_flight: int = 1024
    max_batches: int = 64
    acks: Acks = "appended"
    when_full: Literal["block", "raise"] = "block"
    timeout: float = DEFAULT_TIMEOUT_S

    def check(self) -> None:
        """Raises BadRequest for values that make no sense."""
        if self.acks not in ("appended", "flushed"):
            raise BadRequest(f"acks is {self.acks!r}", "use 'appended' or 'flushed'")
        if self.when_full not in ("block", "raise"):
            raise BadRequest(f"when_full is {self.when_full!r}", "use 'block' or 'raise'")
        check_seconds("linger", self.linger)
        check_seconds("timeout", self.timeout)
        for name in ("batch_bytes", "max_in_flight", "max_batches"):
            number = getattr(self, name)
            if not isinstance(number, int) or number < 1:
                raise BadRequest(f"{name} is {number!r}", "use a whole number, at least 1")


def settings_of(url: str | None, timeout: float | None) -> tuple[str, float]:
    """Address and timeout as given, else from KEELOG_NODE and KEELOG_TIMEOUT, else the defaults."""
    endpoint = url or os.environ.get("KEELOG_NODE") or DEFAULT_NODE
    check_endpoint(endpoint)
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


def check_endpoint(endpoint: object) -> None:
    """Raises BadRequest for an address that ZeroMQ would accept silently, and never reach."""
    if not isinstance(endpoint, str):
        raise BadRequest(
            f"the address is {type(endpoint).__name__}, not text", f"write {DEFAULT_NODE}"
        )
    found = _TCP.fullmatch(endpoint)
    if found is not None and not 1 <= int(found[1]) <= PORT_MAX:
        raise BadRequest(f"{endpoint!r} has no port from 1 to {PORT_MAX}", f"write {DEFAULT_NODE}")


def check_seconds(name: str, value: object) -> None:
    """Raises BadRequest unless the value is a number of seconds to wait."""
    if not isinstance(value, Real) or not 0 <= float(value) <= TIMEOUT_S_MAX:
        raise BadRequest(
            f"{name} is {value!r}, not a number of seconds from 0 to {TIMEOUT_S_MAX:.0f}",
            "0 does not wait; leave it out for the default",
        )


def check_names(what: str, options: Mapping[str, Any], known: type) -> None:
    """Raises BadRequest for an option that `known`, a TypedDict, does not have."""
    if unknown := options.keys() - known.__annotations__.keys():
        raise BadRequest(
            f"{what} has no option {', '.join(sorted(unknown))}",
            f"it has {', '.join(known.__annotations__)}",
        )


def check_limit(limit: object) -> None:
    """Raises BadRequest unless it is None or a number of messages."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise BadRequest(f"limit is {limit!r}", "use a number of messages, or None for all")


def check_batch(topic: str, options: BatchOptions) -> None:
    """Raises BadRequest for options that the encoder would fail on with a TypeError."""
    check_names("a batch", options, BatchOptions)
    tags, keys = options.get("tags"), options.get("keys")
    queue_id, order_by = options.get("queue_id"), options.get("order_by")
    fine = (
        isinstance(topic, str)
        and (tags is None or isinstance(tags, str))
        and (keys is None or (isinstance(keys, Sequence) and not isinstance(keys, str | bytes)))
        and (queue_id is None or isinstance(queue_id, int))
        and (order_by is None or isinstance(order_by, str))
    )
    if not fine:
        raise BadRequest(
            "an option of the batch has another type than it should",
            "topic, tags and order_by are text, keys a list, queue_id an integer",
        )
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
