"""Connections and the store share the descriptors: the doors close before the store starves."""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from node.runtime import disk
from node.runtime.shortage import (
    DESCRIPTORS_FREE_MIN,
    Spares,
    backlog,
    check_file_limit,
    files_needed,
    is_shortage,
)
from node.serving import doors as doors_module
from node.serving.request_server import Server
from node.store.config.topics_file import Topic, TopicsFile
from node.store.file_cache import OpenFiles
from node.supervisor.child_process import Process
from node.writer.log.commit_log import make_segment
from protocol.errors import ServiceNotAvailable
from protocol.ids import Queue
from tests.support.own_host import ANY_PORT, OWN_HOST
from workers.queue_files import QueueWriter

SPARES = 8
WAIT_S = 20.0


@contextmanager
def soft_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """So many, and no more, can be opened meanwhile."""
    # Tests before this one may have left high numbers open.
    first = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    taken = []
    with soft_limit(first + 100 + count):
        while True:
            try:
                taken.append(os.dup(2))
            except OSError:
                break
        for _ in range(count):
            os.close(taken.pop())
        try:
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)


def count_free() -> int:
    opened = []
    try:
        while True:
            opened.append(os.dup(2))
    except OSError:
        return len(opened)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def wait_for(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_spares_are_all_taken_with_room_beside_them_or_none_are() -> None:
    spares = Spares(SPARES)
    with free_descriptors(SPARES + DESCRIPTORS_FREE_MIN):
        assert spares.take()
        assert count_free() == DESCRIPTORS_FREE_MIN
        spares.give_back()
    with free_descriptors(SPARES + DESCRIPTORS_FREE_MIN - 1):
        assert not spares.take()
        spares.give_back()
        assert count_free() == SPARES + DESCRIPTORS_FREE_MIN - 1


def test_fewer_connections_wait_where_descriptors_are_few() -> None:
    with soft_limit(256):
        assert backlog(1024) == 16
    with soft_limit(20):
        assert backlog(1024) == DESCRIPTORS_FREE_MIN


def test_a_limit_below_what_a_process_needs_is_refused_by_name() -> None:
    with soft_limit(files_needed(3)):
        check_file_limit(3)
        with pytest.raises(ServiceNotAvailable, match=r"^no_resources: RLIMIT_NOFILE is 68, .* 72"):
            check_file_limit(4)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(doors_module, "LOOK_AGAIN_S", 0.0)
    context = zmq.Context()
    local = f"ipc://@keelog-test-{os.getpid()}-doors"
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with soft_limit(opened + 100):  # few spares
        server = Server(context, ANY_PORT, local=local)
    server.turn()
    yield server
    server.close(0)
    context.destroy(linger=0)


def test_connections_leave_descriptors_to_the_store_and_come_in_again_later(
    server: Server, tmp_path: Path
) -> None:
    context = zmq.Context()
    known = context.socket(zmq.DEALER)
    known.connect(server.endpoint)
    known.send(b"known")
    wait_for(lambda: server.receive() is not None, "no request")
    address = (OWN_HOST, int(server.endpoint.rpartition(":")[2]))
    with free_descriptors(DESCRIPTORS_FREE_MIN - 1):
        server.turn()
        free = count_free()
        assert free > DESCRIPTORS_FREE_MIN  # the spares were given back
        late = socket.socket()
        late.setblocking(False)
        with pytest.raises(BlockingIOError):
            late.connect(address)
        time.sleep(0.2)
        assert count_free() == free - 1  # nobody takes it in
        (tmp_path / "a").touch()
        known.send(b"known")
        wait_for(lambda: server.receive() is not None, "a known client is not heard")
    server.turn()
    late.close()
    new = context.socket(zmq.DEALER)
    new.connect(server.endpoint)
    new.send(b"new")
    wait_for(lambda: server.receive() is not None, "a new client is not heard")
    for one in (known, new):
        one.close(0)
    context.term()


def test_a_segment_that_lacks_a_descriptor_leaves_nothing_and_is_made_later(tmp_path: Path) -> None:
    for folder in ("commitlog", "keelog/run"):
        (tmp_path / folder).mkdir(parents=True)
    for free in (0, 1):
        with free_descriptors(free), pytest.raises(ServiceNotAvailable, match=r"^no_resources: "):
            make_segment(tmp_path, 0, 4096)
        assert not list(tmp_path.rglob("0*"))
    made = make_segment(tmp_path, 0, 4096)
    os.close(made.descriptor)


def test_a_topic_that_lacks_a_descriptor_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    file = TopicsFile(tmp_path)
    file.put([Topic("old", 1, 1)], 1)
    before = file.path.read_bytes()
    for free in (0, 1):
        with free_descriptors(free), pytest.raises(ServiceNotAvailable, match=r"^no_resources: "):
            file.put([Topic("new", 1, 1)], 2)
        assert set(file.topics) == {"old"}
        assert file.path.read_bytes() == before
    file.put([Topic("new", 1, 1)], 3)
    assert set(TopicsFile(tmp_path).topics) == {"old", "new"}


def test_open_files_give_way_to_one_that_is_needed_now(tmp_path: Path) -> None:
    files = OpenFiles(8)
    for name in "abc":
        (tmp_path / name).write_bytes(b"x")
    files.get(tmp_path / "a", 1)
    files.get(tmp_path / "b", 1)
    with free_descriptors(0):
        assert files.get(tmp_path / "c", 1).read(0, 1) == b"x"
        assert count_free() == 0
    files.close()


def test_what_could_not_be_synced_for_want_of_a_descriptor_is_synced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = QueueWriter(tmp_path, 600, tmp_path / "new", open_max=8)
    path = tmp_path / "consumequeue/t/0" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(600))
    files.write_unit(Queue("t", 0), 0, bytes(20))
    with free_descriptors(0), pytest.raises(OSError, match="Too many open files") as caught:
        files.sync()
    assert is_shortage(caught.value)
    synced: list[Path] = []
    monkeypatch.setattr("workers.sparse_file.sync_file", synced.append)
    files.sync()
    assert synced == [path]
    files.close()


@pytest.mark.parametrize("free", range(5))
def test_a_process_that_cannot_be_started_keeps_no_descriptor(free: int) -> None:
    with free_descriptors(free):
        with pytest.raises(OSError, match="Too many open files"):
            Process(["/bin/sleep", "0"])
        assert count_free() == free


def test_what_may_be_left_undone_is_left_without_a_descriptor(tmp_path: Path) -> None:
    with free_descriptors(0), disk.if_room():
        disk.write_atomically(tmp_path / "a", b"")
        raise AssertionError("there was a descriptor")
    assert list(tmp_path.iterdir()) == []
