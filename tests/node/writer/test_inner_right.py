"""The right of a node's own processes to write what is the system's: over local sockets alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import zmq

from node.serving.request_server import Received
from node.writer.requests import answer_other, pending_append
from node.writer.store import WriterStore
from protocol.errors import NotAllowed
from protocol.names import TRANSACTIONS_GROUP
from protocol.record.encode import NewMessage, encode_batch
from tests.support.owned_store import Owner


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WriterStore]:
    owner = Owner(tmp_path / "store")
    owner.append([NewMessage("orders", b"x", queue_id=0)])
    yield owner.store
    owner.stop()


def append(received: Received, store: WriterStore, **right: str) -> bool:
    """Appends a record; returns whether it counts as the node's own."""
    records = encode_batch([NewMessage("orders", b"x")], crc=True).records
    header: dict[str, Any] = {"v": 1, "op": "append", "id": 1}
    header |= {"count": 1, "bytes": len(records), "crc": crc32(records)}
    received = received._replace(payload=bytes(records))
    return pending_append(received, header | right, store).append.is_inner


def commit(received: Received, store: WriterStore, **right: str) -> bool:
    """Moves a cursor of the system."""
    header: dict[str, Any] = {"v": 1, "op": "cursor_commit", "id": 1, "group": TRANSACTIONS_GROUP}
    header |= {"topic": "orders", "offsets": [[0, 1]]}
    return bool(answer_other(store, "cursor_commit", header | right, received)["ok"])


OWN = Received(b"1", b"", None)
FAR = Received(b"1", b"", None, zmq.Frame(b""), "alice")


@pytest.mark.parametrize("act", [append, commit])
def test_the_right_of_the_node_that_a_far_client_sends_gets_nothing(
    store: WriterStore, act: Callable[..., bool]
) -> None:
    right = store.inner_right
    assert act(OWN, store, right=right)
    for received, sent in ((FAR, right), (OWN, right[::-1]), (FAR, ""), (OWN, "")):
        with pytest.raises(NotAllowed, match="the right is not this node's"):
            act(received, store, right=sent)
