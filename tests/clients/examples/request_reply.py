"""RocketMQ's example of requests and replies at one side; prints what it saw."""

import re
import sys
from pathlib import Path

from tests.clients.examples.running import LINE_S, Example, run_one, running_side, tell


def facts(side: str, folder: Path) -> None:
    """Runs the example: without a consumer, then with one, then asynchronously."""
    with running_side(side, folder):
        _facts(folder)


def _facts(folder: Path) -> None:
    alone = Example("rpc.RequestProducer", folder / "alone")
    alone.wait(LINE_S)
    timed_out = re.search(r"(\w+Exception): CODE: 10006 .*wait reply message", alone.output())
    tell(f"nobody replies: {timed_out[1] if timed_out else alone.output()[-500:]}")

    consumer = Example("rpc.ResponseConsumer", folder / "consumer")
    try:
        consumer.await_line("Consumer Started")
        # The first request waits there still; its producer is gone.
        consumer.await_line("handle message: ")
        refused = consumer.await_line(r"MQBrokerException: CODE: \d+|reply to \S+ , SendResult")
        tell(f"reply to one that is gone: {refused}")

        asker = Example("rpc.RequestProducer", folder / "asker")
        asker.wait(LINE_S)
        tell(f"request: {replied(asker.output())}")
        sent = consumer.await_line(r"reply to \S+ , SendResult \[sendStatus=\w+")
        tell(f"reply: {sent.partition('SendResult')[2]}")

        late = Example("rpc.AsyncRequestProducer", folder / "async")
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


if __name__ == "__main__":
    sys.exit(run_one(facts))
