"""RocketMQ's examples of OpenMessaging at one side; prints what they saw."""

import re
import sys
from pathlib import Path

from tests.clients.examples.running import LINE_S, Example, run_one, running_side, tell

RECEIVED = re.compile(r"Received one message: (\w+)")
SENT = re.compile(r"Send (\w+) message OK, msgId: (\w+)")


def facts(side: str, folder: Path) -> None:
    """A producer and a push consumer, then a pull consumer that gets what it has sent itself."""
    with running_side(side, folder):
        producer = Example("openmessaging.SimpleProducer", folder / "producer")
        producer.wait(LINE_S)
        sent = [found[1] for found in SENT.findall(producer.output())]
        tell(f"sent {len(sent)} with ids, one-way {'Send oneway message OK' in producer.output()}")

        consumer = Example("openmessaging.SimplePushConsumer", folder / "push")
        try:
            consumer.await_line(r"(?s)(Received one message: .*){3}")
            received = RECEIVED.findall(consumer.output())
            tell(f"pushed {len(received)}, of the ids {len(set(sent) & set(received))}")
        finally:
            consumer.kill()

        # It ends when it has received what it sent.
        puller = Example("openmessaging.SimplePullConsumer", folder / "pull")
        puller.wait(LINE_S)
        one = re.search(r"Send Message OK. MsgId: (\w+)", puller.output())
        assert one is not None, puller.output()
        pulled = RECEIVED.findall(puller.output())
        tell(f"pulled {len(pulled)}, its own {one[1] in pulled}")


if __name__ == "__main__":
    sys.exit(run_one(facts))
