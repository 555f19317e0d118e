"""A store that is read from its running node, over ZeroMQ: no file of it is needed here."""

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache, partial
from pathlib import Path

import numpy as np

from keelog.client.fetch import FetchClient, FetchSettings, NodeLayout, QueueAtNode
from keelog.client.transport.exchange import NodeAnswer
from keelog.pipeline.node_keys import NodeKeys
from keelog.pipeline.stores import planned_store, remote_files
from keelog.pipeline.stores.access import StoreAt
from keelog.pipeline.task_spec import IndexSlice, LogAt, planned_queue_files
from node.runtime.store_paths import RemotePath, remote_path
from node.store.file_cache import FileVanished
from node.store.queues import QueueFiles, QueueReader, queue_folder
from protocol import errors, ids
from protocol.derived.file_layouts import UNIT_BYTES, IndexGeometry
from protocol.names import COMMIT_LOG_DIR, INDEX_DIR, parse_offset_file_name
from protocol.wire.frames import LIST_ITEMS_MAX

GAP_BYTES = 32 << 10
"""About what a node sends in the time that a request of its own costs."""

ASKED_BYTES_MAX = 24 << 20
"""Under way at a time: a node refuses a client that would have more than 32 MiB on the way."""


@cache
def _client(_pid: int, root: str, settings: FetchSettings, keys: NodeKeys | None) -> FetchClient:
    """Spark keeps a process for many tasks. A forked child makes its own."""
    return FetchClient(root, settings, None if keys is None else keys.read())


def client_of(at: StoreAt) -> FetchClient:
    """The process's connection to a node. Raises BadKeyFile."""
    access = at.access
    settings = FetchSettings(
        access.timeout_ms / 1000, access.num_retries, access.retry_interval_ms / 1000
    )
    return _client(os.getpid(), at.root, settings, access.keys)


def node_source(at: StoreAt) -> remote_files.RangeSource:
    """The node's files, named as `fetch` does."""
    client, window_bytes, turns = client_of(at), at.access.window_bytes, itertools.count(1)

    def request(path: Path, position: int, count: int) -> remote_files.Pending:
        fields = {**_fields(path, position), "max_bytes": count}
        # Several readers share the work: each request goes to the next one.
        return partial(_result, path, client.start("fetch", fields, affinity=next(turns)))

    in_flight = min(at.access.in_flight, max(ASKED_BYTES_MAX // window_bytes, 1))
    return remote_files.RangeSource(window_bytes, in_flight, GAP_BYTES, request)


def _result(path: Path, answer: "Future[NodeAnswer]") -> bytes:
    """Raises FileVanished for what the node has deleted."""
    try:
        return bytes(answer.result().payload)
    except errors.NotFound as error:
        raise FileVanished(str(path), 0, error.reason, error.hint) from None


def _fields(path: Path, position: int) -> dict[str, object]:
    assert isinstance(path, RemotePath)
    top, *middle, name = path.below.split("/")
    if top == INDEX_DIR:
        return {"kind": "index", "file": name, "offset": position}
    start = parse_offset_file_name(name)
    assert start is not None
    if top == COMMIT_LOG_DIR:
        return {"kind": "log", "offset": start + position}
    topic, queue_id = middle
    number = (start + position) // UNIT_BYTES
    return {"kind": "queue", "topic": topic, "queue": int(queue_id), "offset": number}


class _NodeQueue(QueueReader):
    """A queue whose bounds the node has reported."""

    def __init__(self, files: QueueFiles, found: QueueAtNode) -> None:
        super().__init__(files, found.max_offset, lambda: 0)
        self._node_min = found.min_offset

    @property
    def min_offset(self) -> int:
        return self._node_min


class NodeStore(planned_store.PlannedStore):
    """What a node says of its store, as of the last `refresh`."""

    def __init__(self, at: StoreAt, topics: Sequence[str] | None) -> None:
        self.at = at
        self._root = remote_path(at.root)
        self._client = client_of(at)
        self._files = remote_files.RemoteFiles(node_source(at))
        self._topics = topics if topics is None or len(topics) <= LIST_ITEMS_MAX else None
        found = self._client.layout(topics=self._topics)
        assert found is not None
        self._take(found)

    def _take(self, found: NodeLayout) -> None:
        self._known = found
        starts = tuple(np.frombuffer(found.segments, "<i8").tolist())
        bounds = found.min_offset, found.readable
        self.log = LogAt(self.at, found.segment_bytes, starts, *bounds).open(self._files)
        self.epoch, self.removed, self.all_followed = found.epoch, found.removed, found.followed
        self._queues = {queue.queue: queue for queue in found.queues}

    def refresh(self) -> None:
        """One request. Raises NotConnected, RequestTimeout when the node stays away."""
        found, known = self._client.layout(self._known.token, self._topics), self._known
        # Another reader may be a moment after the one that was asked before.
        if found and (found.epoch != known.epoch or found.readable >= known.readable):
            self._take(found)

    def is_resuming(self, queue: ids.Queue) -> bool:
        found = self._queues.get(queue)
        return self.followed(queue) < self.log.end if found is None else found.is_resuming

    def topics(self) -> list[str]:
        return self._client.topics()

    def queues(self) -> list[ids.Queue]:
        return sorted(self._queues)

    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        found = self._queues.get(ids.Queue(topic, queue_id))
        if found is None:
            return None
        folder = queue_folder(self._root, found.queue)
        size, first = self._known.queue_file_bytes, found.first * UNIT_BYTES
        end = max(found.max_offset * UNIT_BYTES, first + 1)
        return _NodeQueue(planned_queue_files(folder, size, first, end, self._files), found)

    def offset_by_time(self, reader: QueueReader, time_ms: int) -> int:
        """The node searches: each step of it here would be a request."""
        found = self._client.seek(reader.queue, time_ms)
        return min(max(found, reader.min_offset), reader.max_offset)

    def index_slices(self) -> list[IndexSlice]:
        found = self._client.layout(topics=(), with_index=True)
        assert found is not None
        return [
            IndexSlice(
                path=str(self._root / INDEX_DIR / row.name),
                name=row.name,
                geometry=IndexGeometry(row.slot_count, row.index_num),
                begin_timestamp=row.begin_timestamp,
                start=1,
                end=row.end,
                data=None,
            )
            for row in found.index
        ]

    def close(self) -> None:
        """The connection stays, for the next plan of this process."""
        self._files.close()
