"""RocketMQ's example of requests and replies, unmodified, at one side; prints what it saw.

The classes of `org.apache.rocketmq.example.rpc` name 127.0.0.1:9876, so this runs in a network
namespace of its own:

    python -m tests.clients.request_reply broker|node FOLDER
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.rivals.rocketmq import Addresses, Jvm
from tests.clients.sides import running_broker, running_node
from tests.interop import probe
from tests.soak.clients.programs import java_classes
from tests.support.node import wait_until

NAME_SERVER, BROKER = "127.0.0.1:9876", "127.0.0.1:10911"
EXAMPLES = "org.apache.rocketmq.example.rpc"
RUN_S = 60.0


class Example(Jvm):
    """One class of the example. Its own output is its log."""

    def __init__(self, name: str, home: Path) -> None:
        # AsyncRequestProducer names no name server, and takes the property.
        options = ["-Xmx128m", f"-Drocketmq.namesrv.addr={NAME_SERVER}"]
        command = [*options, "-cp", java_classes(), f"{EXAMPLES}.{name}"]
        super().__init__(name, home, command, talks=False)
        self._path = home / f"{name}.log"

    def output(self) -> str:
        """All that it has printed."""
        return self._path.read_text(errors="replace")

    def await_line(self, pattern: str) -> str:
        """The first match in its output. Fails the run when there is none in time."""
        wait_until(lambda: re.search(pattern, self.output()) is not None, pattern, RUN_S)
        found = re.search(pattern, self.output())
        assert found is not None
        return found[0]


@contextmanager
def side(name: str, folder: Path) -> Iterator[None]:
    """The broker with its name server, or the node, at the address that the example names."""
    with ExitStack() as ends:
        if name == "broker":
            addresses = Addresses(NAME_SERVER, BROKER)
            ends.enter_context(running_broker(folder / "rocketmq", addresses))
        else:
            ends.enter_context(running_node(folder / "store", f"serve.remoting={NAME_SERVER}"))
        yield


def facts(folder: Path, tell: Callable[[str], None]) -> None:
    """Runs the example: without a consumer, then with one, then asynchronously."""
    probe.build()
    alone = Example("RequestProducer", folder / "alone")
    alone.wait(RUN_S)
    timed_out = re.search(r"(\w+Exception): CODE: 10006 .*wait reply message", alone.output())
    tell(f"nobody replies: {timed_out[1] if timed_out else alone.output()[-500:]}")

    consumer = Example("ResponseConsumer", folder / "consumer")
    try:
        consumer.await_line("Consumer Started")
        # The first request waits there still; its producer is gone.
        consumer.await_line("handle message: ")
        refused = consumer.await_line(r"MQBrokerException: CODE: \d+|reply to \S+ , SendResult")
        tell(f"reply to one that is gone: {refused}")

        asker = Example("RequestProducer", folder / "asker")
        asker.wait(RUN_S)
        tell(f"request: {replied(asker.output())}")
        sent = consumer.await_line(r"reply to \S+ , SendResult \[sendStatus=\w+")
        tell(f"reply: {sent.partition('SendResult')[2]}")

        late = Example("AsyncRequestProducer", folder / "async")
        try:
            # The client calls back when the send has its reply or the request has, with null then.
            called = late.await_line(r"request to <\w+> (?=cost: \d+ replyMessage: (null|Message))")
            tell(f"asynchronous: {called}")
            consumer.await_line(r"(?s)(reply to \S+ , SendResult.*){2}")
            tell("asynchronous: replied")
        finally:
            late.kill()
    finally:
        consumer.kill()


def replied(output: str) -> str:
    """What a reply is, without what differs from run to run."""
    found = re.search(r"request to <(\w+)> cost: \d+ replyMessage: .*?topic='(\w+)'", output)
    properties = re.search(r"properties=\{(.*?)\}", output)
    body = re.search(r"body=\[([\d, ]+)\]", output)
    if found is None or properties is None or body is None:
        return output[-1_500:]
    names = sorted(part.partition("=")[0] for part in properties[1].split(", "))
    text = bytes(int(number) for number in body[1].split(", ")).decode()
    return f"{found[1]} replied by {found[2]}: {text!r} with {' '.join(names)}"


def tell(fact: str) -> None:
    """One line on the standard output."""
    sys.stdout.write(f"{fact}\n")
    sys.stdout.flush()


def main() -> int:
    """Prints facts of one side, a line each."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    with side(name, folder):
        facts(folder, tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
