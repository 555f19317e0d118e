"""Messages of all kinds in a running node, for the pages that show them."""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgpack

import keelog
from keelog.client.client import Client
from tests.support.console import CONSOLE, console_port
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING

ORDERS = 130
LONGEST = "T" * 127
NASTY = "<script>alert(1)</script></pre><img src=x onerror=alert(2)>'\"javascript:alert(3)"
FORMULA = "=1+1"


class Shown(NamedTuple):
    """A node with a console."""

    node: RunningNode
    port: int
    client: Client


@contextmanager
def shown_node(root: Path, *settings: str) -> Iterator[Shown]:
    """A node whose console shows messages, groups and dead letters."""
    node = RunningNode(root, [CONSOLE, REMOTING, *settings], queue_workers=1, readers=1)
    with node:
        port = console_port(node.stderr)
        with keelog.connect(node.endpoint) as client:
            fill(client)
            yield Shown(node, port, client)


def fill(client: Client) -> None:
    """Sends what the tests look for."""
    client.create_topic("orders", queues=4)
    client.create_topic("quiet", queues=2)
    for number in range(ORDERS):
        body = json.dumps({"order": number, "customer": f"c-{number % 7}"}).encode()
        client.send(
            "orders", body, tags="paid" if number % 2 else "new",
            keys=[f"order-{number}", f"c-{number % 7}"], properties={"trace": f"t{number}"},
        )  # fmt: skip
    for body, keys in (
        (json.dumps([{"id": n, "text": "x" * 60} for n in range(9_000)]).encode(), "large"),
        (b"y" * (1 << 20), "one-line"),
        (os.urandom(512), "random"),
        (msgpack.packb({"a": [1, 2, b"\x00"]}), "msgpack"),
        ("turn \u202eed\u202c and \x1b[31mESC".encode(), "bidi"),
        (NASTY.encode(), "nasty"),
    ):
        client.send("bodies", body, keys=keys, queue_id=0)
    packed = zlib.compress(json.dumps({"packed": True}).encode())
    client.send("bodies", packed, keys="packed", queue_id=0, sys_flag=1)
    client.send("bodies", zlib.compress(b"\0" * (48 << 20)), keys="bomb", queue_id=0, sys_flag=1)
    client.send("nasty", b"x", keys=NASTY.replace(" ", "/"), tags="<i>", properties={NASTY: NASTY})
    client.send("formulas", FORMULA.encode(), tags="@x", keys="+1")
    client.send(LONGEST, b"long")
    client.send("%DLQ%billing", b"dead", keys="order-3", queue_id=0, reconsume_times=16)
    client.send("orders", b"later", delay=3600.0, keys="later")
    client.commit_cursor("orders", "billing", {0: 1, 1: 1, 2: 1, 3: 1})
    wait_until(lambda: bool(list(client.find("orders", "order-129", limit=1))), "no index")


def place(client: Client, topic: str, key: str) -> str:
    """The address of the newest message with a key."""
    found = next(iter(client.find(topic, key, limit=1)))
    name = topic.replace("%", "~")
    return f"/topics/{name}/{found.queue_id}/{found.queue_offset}"
