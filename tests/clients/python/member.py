"""One member of a consumer group, until it is killed: prints the body of each message, a line each.

Arguments: name server, topic, group.
"""

import sys
import time

from rocketmq.client import PushConsumer, RecvMessage


def take(message: RecvMessage) -> None:
    """Prints it."""
    sys.stdout.write(message.body.decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Joins the group and stays."""
    address, topic, group = sys.argv[1:4]
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(address)
    consumer.subscribe(topic, take)
    consumer.start()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
