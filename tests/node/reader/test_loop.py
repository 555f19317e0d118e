"""When a reader looks for the next request before it sleeps."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import zmq

from node.reader.follower import ReaderSite
from node.reader.loop import Reader
from node.runtime.state_page import WorkerPage, run_dir
from node.serving.request_server import Server
from protocol.wire.frames import pack
from tests.node.reader.test_service import spot
from tests.support.golden import GetStore, facts
from tests.support.living_store import LivingStore
from tests.support.own_host import ANY_PORT

NAME = "small-clean"
WAIT_S = 20.0


class Asking:
    """A reader whose turns a test makes, and a client of its socket."""

    def __init__(self, reader: Reader, client: "zmq.Socket[bytes]") -> None:
        self.reader = reader
        self._client = client

    def turn_after(self, *requests: dict[str, Any]) -> bool:
        """Whether the reader looks after a turn that takes these requests."""
        deadline = time.monotonic() + WAIT_S
        for number, fields in enumerate(requests):
            self._client.send(pack({"v": 1, "id": number, **fields}))
        time.sleep(0.05)  # all of them are there
        answers = 0
        while True:
            self.reader.step(time.monotonic(), is_rung=False)
            looks = self.reader.was_lone
            while answers < len(requests) and self._client.poll(50):
                self._client.recv_multipart()
                answers += 1
            if answers == len(requests):
                return looks
            assert time.monotonic() < deadline


@pytest.fixture
def asking(golden_copy: GetStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    root = golden_copy(NAME)
    living = LivingStore(root, facts(NAME))
    living.begin_epoch(spot(NAME).before)
    monkeypatch.chdir(run_dir(root))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    site = ReaderSite(root, "reader-0", living.shards, living.settings)
    with closing(living), WorkerPage.create(root, "reader-0") as page:
        server = Server(context, ANY_PORT)
        client = context.socket(zmq.DEALER)
        client.connect(server.endpoint)
        with closing(Reader(site, server, page)) as reader:
            yield Asking(reader, client)
        client.close(0)
    context.term()


def test_a_reader_looks_after_one_look_up_and_after_nothing_else(asking: Asking) -> None:
    topic, queue_id = spot(NAME).queue
    look_up = {"op": "offsets", "topic": topic}
    pull = {"op": "pull", "topic": topic, "queue": queue_id, "offset": 0}
    assert asking.turn_after(look_up)
    assert not asking.turn_after()
    assert not asking.turn_after(look_up, look_up)
    assert not asking.turn_after(pull)
    assert not asking.turn_after({"op": "offsets", "topic": "no-such-topic"})
    assert asking.turn_after(look_up)
