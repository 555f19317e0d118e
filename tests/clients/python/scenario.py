"""RocketMQ's C++ client with PyPI's `rocketmq` around it, as its users write it.

Sends of all kinds, a group of two members, tags, retries, a restart. Prints what is the same at any
broker: name=value. Arguments: name server, topic.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage

PATIENCE_S = 60.0
LOOK_S = 0.05
SETTLE_S = 1.5
COUNT = 30
ROUND = 8
QUEUES = 4
LARGE = 100_000
TAGS = ("red", "green", "blue")
RED_OR_BLUE = COUNT * 2 // len(TAGS)


def subscribe(
    consumer: Any, topic: str, callback: Callable[[RecvMessage], bool], expression: str
) -> None:
    """Subscribes with a listener that returns True for a message that it wants again.

    For a listener that raises, the package raises as well instead of giving its reply.
    """
    consumer.subscribe(topic, callback, expression)
    consumer._unregister_callback()
    consumer._register_callback(lambda _, message: int(callback(RecvMessage(message))))


def log_in(client: Any) -> None:
    """The file that CREDENTIALS_FILE names has a user and a secret, a line each: their requests are
    signed with them."""
    if file := os.environ.get("CREDENTIALS_FILE"):
        user, secret = Path(file).read_text().splitlines()
        client.set_session_credentials(user, secret, "ALIYUN")


class Got(NamedTuple):
    """One message as a member of a group got it."""

    member: str
    queue: int
    topic: str
    times: int
    tags: str
    keys: str
    mine: str
    length: int


def fact(name: str, value: object) -> None:
    """One line of the transcript."""
    sys.stdout.write(f"{name}={value}\n")
    sys.stdout.flush()


def until(holds: Callable[[], bool]) -> bool:
    """Waits until the condition holds; False if it does not within PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_S)
    return True


class Group:
    """The members of one consumer group, and what each of them was given."""

    def __init__(self, run: "Scenario", name: str, expression: str, fails: bool = False) -> None:
        self._run = run
        self._name = f"{name}-{run.topic}"
        self._expression = expression
        self._fails = fails
        self._lock = threading.Lock()
        self.seen: dict[str, list[Got]] = {}
        """By the message's name: each time that it came."""

    def join(self, member: str) -> Any:
        """Starts a member."""
        consumer = PushConsumer(self._name)
        consumer.set_namesrv_addr(self._run.address)
        log_in(consumer)
        consumer.set_instance_name(member)
        subscribe(
            consumer,
            self._run.topic,
            lambda message: self._take(member, message),
            self._expression,
        )
        consumer.start()
        return consumer

    def _take(self, member: str, message: RecvMessage) -> bool:
        # The client sends a batch as one message, which nobody takes apart.
        name = (message["name"] or b"batch").decode()
        with self._lock:
            tries = self.seen.setdefault(name, [])
            tries.append(
                Got(
                    member, message.queue_id, message.topic, message.reconsume_times,
                    message.tags.decode(), message.keys.decode(), message["mine"].decode(),
                    len(message.body),
                )
            )  # fmt: skip
            return self._fails and message.reconsume_times == 0

    def names(self, prefix: str = "") -> list[str]:
        """The messages that came at least once whose names begin so."""
        with self._lock:
            return sorted(name for name in self.seen if name.startswith(prefix))

    def count(self, prefix: str = "") -> int:
        """How many they are."""
        return len(self.names(prefix))


class Scenario:
    """One run of it."""

    def __init__(self, address: str, topic: str) -> None:
        self.address = address
        self.topic = topic
        self._rounds = 0
        self._producer = Producer(f"producers-{topic}")
        self._producer.set_namesrv_addr(address)
        log_in(self._producer)
        self._producer.start()

    def _message(self, name: str, tag: str, body: str = "") -> Any:
        made = Message(self.topic)
        made.set_keys(f"key-{name}")
        made.set_tags(tag)
        made.set_property("name", name)
        made.set_property("mine", f"grün {name}")
        made.set_body(body or name)
        return made

    def _messages(self, kind: str) -> list[Any]:
        return [self._message(f"{kind}-{n}", TAGS[n % len(TAGS)]) for n in range(COUNT)]

    def _send_one_by_one(self, kind: str) -> None:
        results = [self._producer.send_sync(message) for message in self._messages(kind)]
        fact(f"send {kind}", sorted({one.status.name for one in results}))

    def send_all_ways(self) -> None:
        """Sends one by one, one-way, as a batch, large, delayed, and to a queue of choice."""
        self._send_one_by_one("sync")
        for message in self._messages("oneway"):
            self._producer.send_oneway(message)
        fact("send batch", self._producer.send_batch(self._messages("batch")).status.name)
        large = self._message("large", "red", "x" * LARGE)
        fact("send large", self._producer.send_sync(large).status.name)
        late = self._message("late", "red")
        late.set_delay_time_level(1)
        fact("send late", self._producer.send_sync(late).status.name)
        fact(
            "send chosen",
            self._producer.send_orderly(self._message("chosen", "red"), 2).status.name,
        )

    def _split(self, group: Group) -> dict[str, list[int]]:
        """Sends a round; which members got it, each with the queues that it came from."""
        kind = f"round{self._rounds}-"
        self._rounds += 1
        for number in range(ROUND):
            self._producer.send_sync(self._message(f"{kind}{number}", "round"))
        until(lambda: group.count(kind) == ROUND)
        found: dict[str, set[int]] = {}
        for name in group.names(kind):
            for got in group.seen[name]:
                found.setdefault(got.member, set()).add(got.queue)
        return {member: sorted(queues) for member, queues in sorted(found.items())}

    def _await_split(self, name: str, group: Group, members: int) -> None:
        last: dict[str, list[int]] = {}

        def is_even() -> bool:
            last.clear()
            last.update(self._split(group))
            shares = [len(one) for one in last.values()]
            return shares == [QUEUES // members] * members

        until(is_even)
        fact(name, last)

    def share(self) -> None:
        """Two members of a group; then one of them leaves."""
        group = Group(self, "share", "*")
        one = group.join("one")
        until(lambda: group.count() >= 2 * COUNT + 4)
        for kind in ("sync", "oneway", "batch", "large", "late", "chosen"):
            fact(f"got {kind}", group.count(kind))
        fact("got large bytes", [got.length for got in group.seen.get("large", [])][:1])
        fact("got chosen queue", [got.queue for got in group.seen.get("chosen", [])][:1])
        fact("got wrong", [name for name in group.names() if not self._is_right(group, name)])
        two = group.join("two")
        self._await_split("two members", group, 2)
        time.sleep(SETTLE_S)
        one.shutdown()
        self._await_split("one has gone", group, 1)
        fact("got rounds", group.count("round") == self._rounds * ROUND)
        two.shutdown()

    def _is_right(self, group: Group, name: str) -> bool:
        wanted = (f"key-{name}", f"grün {name}", self.topic, 0)
        return all((got.keys, got.mine, got.topic, got.times) == wanted for got in group.seen[name])

    def filter_and_go_on(self) -> None:
        """A group that wants two tags; it stops, and goes on where it was."""
        group = Group(self, "tags", "red || blue")
        first = group.join("tags")
        until(lambda: group.count() >= 2 * RED_OR_BLUE + 3)
        time.sleep(SETTLE_S)
        tags = {got.tags for tries in group.seen.values() for got in tries}
        fact("by tags", f"{sorted(tags)} {group.count()}")
        first.shutdown()
        self._send_one_by_one("away")
        again = Group(self, "tags", "red || blue")
        second = again.join("tags")
        until(lambda: again.count("away") == RED_OR_BLUE)
        time.sleep(SETTLE_S)
        fact("goes on with", again.count("away"))
        fact("repeats", again.count() - again.count("away"))
        second.shutdown()

    def retry(self) -> None:
        """A group that fails each message once.

        The client hands back all messages of a pull with the one that fails, also those that its
        listener never got: what each message came to in the end is the same in each run.
        """
        for number in range(COUNT):
            self._producer.send_sync(self._message(f"retry-{number}", "again"))
        group = Group(self, "retry", "again", fails=True)
        consumer = group.join("retry")
        until(lambda: sum(bool(tries[-1].times) for tries in list(group.seen.values())) == COUNT)
        time.sleep(SETTLE_S)
        failed = {self._kind(one) for tries in group.seen.values() for one in tries[:-1]}
        last = {self._kind(tries[-1]) for tries in group.seen.values()}
        fact("retried", f"{group.count()} failed as {sorted(failed)} came as {sorted(last)}")
        consumer.shutdown()

    def _kind(self, got: Got) -> str:
        return f"{'own' if got.topic == self.topic else got.topic}:{got.times}"

    def end(self) -> None:
        """Stops the producer."""
        self._producer.shutdown()


def main() -> None:
    """The whole scenario."""
    run = Scenario(*sys.argv[1:3])
    run.send_all_ways()
    run.share()
    run.filter_and_go_on()
    run.retry()
    run.end()


if __name__ == "__main__":
    main()
