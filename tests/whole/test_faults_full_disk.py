"""A disk filled to the last byte: appends are refused, all else goes on, and so do they with room.

The log's segments get their blocks beforehand, queue and index files are sparse and written by
`pwrite`: a full disk is an answer of a call everywhere, and never a signal.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import keelog
from node.runtime.process import EXIT_DISK_FULL
from node.runtime.stats import stats_dir
from node.store.verify.verify import verify
from node.supervisor.bind import free_ports
from protocol.errors import MqError, ServiceNotAvailable
from tests.support.faults.small_disk import fill, fill_to, small_ext4, small_tmpfs
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

MIB = 1024 * 1024
SEGMENT_BYTES = 4 * MIB
DISK_MIB = 64
SMALL = (
    f"mapped_file_size_commit_log={SEGMENT_BYTES}",
    "mapped_file_size_consume_queue=40000",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
)
BODY = bytes(range(256)) * 8
SmallDisk = Callable[[Path, int], AbstractContextManager[Path]]


class Producers:
    """Threads that send until they are told to stop, and keep what was acknowledged."""

    def __init__(self, endpoint: str, count: int = 2) -> None:
        self.acknowledged: dict[str, bytes] = {}
        self.refusals: list[str] = []
        self.others: list[MqError] = []
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, thread: int) -> None:
        number = 0
        once = keelog.Retry(max_attempts=1)
        with keelog.connect(self._endpoint, timeout=30.0, retry=once) as client:
            while not self._stop.is_set():
                number += 1
                body = f"{thread}-{number} ".encode() + BODY
                topic = f"t{thread}"
                try:
                    receipt = client.send(topic, body, keys=f"k{number}", queue_id=number % 4)
                except ServiceNotAvailable as error:
                    self.refusals.append(error.reason)
                    self._stop.wait(0.01)
                except MqError as error:
                    self.others.append(error)
                else:
                    self.acknowledged[receipt.msg_id] = body

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def assert_acknowledged_is_stored(client: keelog.Client, acknowledged: dict[str, bytes]) -> None:
    """Each can be got by its id, and each queue holds as many as were sent to it at least."""
    assert acknowledged
    for msg_id, body in acknowledged.items():
        assert client.get(msg_id).body == body


def assert_no_log_segment_is_sparse(root: Path) -> None:
    """A store into a hole of a full disk would be a SIGBUS, or an error after the fact."""
    segments = sorted((root / "commitlog").iterdir())
    assert segments
    for segment in segments:
        status = segment.stat()
        assert status.st_size == SEGMENT_BYTES
        assert status.st_blocks * 512 >= status.st_size


def assert_nobody_stores_through_a_map(node: RunningNode) -> None:
    """But into the pages of state and counts, which have a block behind every byte."""
    counts = str(stats_dir(node.root))
    for role, pids in node.pids().items():
        for pid in pids:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                place = line.split(maxsplit=5)
                if len(place) == 6 and str(node.root) in place[5] and "w" in place[1]:
                    is_page = place[5].endswith(".page") or place[5].startswith(counts)
                    assert is_page, f"{role}: {line}"


@pytest.mark.parametrize(
    "small_disk", [small_tmpfs, pytest.param(small_ext4, marks=pytest.mark.faults)]
)
def test_a_disk_filled_to_the_last_byte_under_load_refuses_appends_until_there_is_room(
    tmp_path: Path, small_disk: SmallDisk
) -> None:
    with (
        small_disk(tmp_path, DISK_MIB) as place,
        RunningNode(place / "store", SMALL) as node,
    ):
        client = node.client
        client.create_topic("before", queues=1)
        node.wait_all_run()
        pids = node.pids()
        producers = Producers(node.endpoint)
        try:
            wait_until(lambda: len(producers.acknowledged) > 1000, "no load")
            ballast = fill(place)
            wait_until(lambda: len(producers.refusals) > 10, "nothing is refused")
            fill(place)
            assert all("disk_full: no room for" in reason for reason in producers.refusals)
            wait_until(lambda: client.status().mode == "disk_full", "the status is silent")
            check_a_full_node(node)
            assert_acknowledged_is_stored(client, dict(list(producers.acknowledged.items())[-200:]))
            refused, known = len(producers.refusals), len(producers.acknowledged)
            wait_until(lambda: len(producers.refusals) > refused + 10, "no more refusals")
            ballast.unlink()
            wait_until(lambda: len(producers.acknowledged) > known + 500, "appends stay refused")
            wait_until(lambda: client.status().mode == "normal", "the status still says full")
        finally:
            producers.stop()
        node.wait_dispatched()
        assert node.pids() == pids  # nobody ended, for whatever reason
        assert [str(error) for error in producers.others] == []
        assert client.health().ready
        assert_acknowledged_is_stored(client, producers.acknowledged)
        node.stop()
        assert verify(node.root, deep=True).findings == []


def check_a_full_node(node: RunningNode) -> None:
    """What goes on, and what is said, while there is no room."""
    client = node.client
    workers = ("queue", "index")
    wait_until(
        lambda: (
            {one.state for one in client.status().processes if one.role in workers} == {"disk_full"}
        ),
        "no worker waits for room",
    )
    status = client.status()
    assert all(one.lag_bytes for one in status.processes if one.role in workers)
    assert status.cause is not None
    assert "no room for the segment " in status.cause, "the writer's own reason"
    assert status.processes[0].state == "disk_full"
    assert not client.health().ready
    check = next(one for one in client.health().checks if one.name == "appends")
    assert check.detail.startswith("refused, disk_full: ")
    assert client.pull("t0", 1, 0).messages
    assert client.routes().writer is not None
    try:
        # The backup that it replaces may have given back the one block that it needs.
        made = client.create_topic("new", queues=1).created
    except ServiceNotAvailable as error:
        made = False
        assert "disk_full: no room for" in error.reason
        assert "topics.json" in error.reason
    assert ("new" in {topic.topic for topic in client.topics()}) == made
    assert_no_log_segment_is_sparse(node.root)
    assert_nobody_stores_through_a_map(node)
    assert not list((node.root / "keelog/run").glob("0*"))  # of a segment that had no room


@pytest.fixture
def address() -> str:
    """A control address that nobody uses, and room for the ports above it: none of which the
    kernel gives to a connection before the node takes it."""
    return f"tcp://127.0.0.1:{free_ports(8)}"


def messages_of(client: keelog.Client, topic: str) -> list[bytes]:
    """The bodies of queue 0, by pulls."""
    found: list[bytes] = []
    while messages := client.pull(topic, 0, len(found)).messages:
        found += [message.body for message in messages]
    return found


def make_store(place: Path, tail: str) -> tuple[Path, list[bytes]]:
    """A store that ended as `tail` says, and the bodies in queue 0 of its topic `orders`."""
    root = place / "store"
    bodies = [f"{number}".encode() for number in range(100)]
    with RunningNode(root, SMALL) as node:
        for body in bodies:
            node.client.send("orders", body, queue_id=0, acks="flushed")
        node.wait_dispatched()
        end = node.log_state().readable
        if tail != "clean":
            node.kill_all()
    for prepared in sorted((root / "commitlog").iterdir())[1:]:
        prepared.unlink()  # or recovery, which drops it, would have its room
    if tail == "torn":
        with (root / f"commitlog/{0:020d}").open("r+b") as file:
            file.seek(end)
            file.write(b"\xff" * 5000)
    return root, bodies


def assert_reads_and_waits_for_room(node: RunningNode, bodies: list[bytes]) -> None:
    """A node whose writer could not start for lack of room, and is tried again and again."""
    client = node.client
    wait_until(lambda: client.routes().readers != (), "no readers")
    wait_until(lambda: client.status().mode == "disk_full", "the status is silent")
    # More often than the limit of crashes allows.
    wait_until(lambda: (client.status().processes[0].restarts or 0) > 3, "it is not tried again")
    assert client.status().processes[0].exit_code == EXIT_DISK_FULL
    assert client.status().mode == "disk_full"
    assert not client.health().ready
    with pytest.raises(ServiceNotAvailable, match=r"^disk_full: "):
        client.send("orders", b"refused", queue_id=0)
    assert messages_of(client, "orders") == bodies
    assert node.stderr.count("process waits for room") == 1  # not at each try


def test_a_disk_that_fills_is_said_within_a_second_or_two_though_nobody_sends(
    tmp_path: Path,
) -> None:
    """By status, health and the log, in the same words, at both ratios of the settings."""
    ratios = ("disk_space_warning_level_ratio=90", "clean_file_forcibly_enable=true")
    with (
        small_tmpfs(tmp_path, DISK_MIB) as place,
        RunningNode(place / "store", [*SMALL, *ratios], queue_workers=1, readers=1) as node,
    ):
        client = node.client

        def checks() -> dict[str, keelog.HealthCheck]:
            return {one.name: one for one in client.health().checks}

        assert checks()["disk"].ok
        fill_to(place, 87)
        wait_until(lambda: not checks()["disk"].ok, "nobody says what 87 % cost", 10)
        said = "above disk_space_clean_forcibly_ratio, 85 %: segments are deleted before their time"
        assert said in checks()["disk"].detail
        assert said in client.status().raw["disk"]["shortage"]
        assert client.health().ready
        fill_to(place, 92)
        wait_until(lambda: not client.health().ready, "a full node is ready", 10)
        status, found = client.status(), checks()
        why = "above disk_space_warning_level_ratio, 90 %"
        assert status.cause is not None
        assert why in status.cause
        assert status.mode == "disk_full"
        assert not status.ready
        assert found["appends"].detail == f"refused, disk_full: {status.cause}"
        assert not found["disk"].ok
        assert why in found["disk"].detail
        assert why in node.stderr, "of the line `no more appends`"
        (place / "ballast").unlink()
        wait_until(lambda: client.health().ready, "not ready with room", 10)
        assert checks()["disk"].ok


@pytest.mark.faults
@pytest.mark.parametrize("tail", ["killed", "torn", "clean"])
def test_a_node_that_starts_on_a_full_disk_reads_and_waits_for_room(
    tmp_path: Path, tail: str, address: str
) -> None:
    with small_ext4(tmp_path, DISK_MIB) as place:
        root, bodies = make_store(place, tail)
        ballast = fill(place)
        node = RunningNode(root, SMALL, restart_limit=2)
        node.begin(address)
        try:
            wait_until(lambda: "waits for room on the disk" in node.stderr, "it does not say why")
            assert_reads_and_waits_for_room(node, bodies)
            ballast.unlink()
            wait_until(lambda: node.client.health().ready, "it does not come up")
            assert node.client.send("orders", b"new", queue_id=0).queue_offset == len(bodies)
            node.wait_all_run()
            node.wait_dispatched()
            assert messages_of(node.client, "orders") == [*bodies, b"new"]
            node.stop()
        finally:
            if node.is_running:
                node.kill_all()
        assert verify(root, deep=True).findings == []
        kept = root / "keelog/quarantine"
        assert len(list(kept.iterdir()) if kept.is_dir() else []) == (tail == "torn")


@pytest.mark.faults
def test_a_new_store_on_a_full_disk_is_refused_in_three_lines(tmp_path: Path) -> None:
    with small_ext4(tmp_path, DISK_MIB) as place:
        (place / "store").mkdir()
        fill(place)
        node = RunningNode(place / "store", SMALL)
        node.begin()
        assert node.wait() == 1
        error, cause, hint = node.stderr.splitlines()
        assert error == f"error: cannot serve {place / 'store'}"
        assert "No space left on device" in cause
        assert hint == "try: df -h  and free some space"


@pytest.mark.faults
def test_a_clean_stop_on_a_full_disk_ends_in_order_and_loses_nothing(tmp_path: Path) -> None:
    with small_ext4(tmp_path, DISK_MIB) as place:
        with RunningNode(place / "store", SMALL) as node:
            sent = {node.client.send("t0", b"%d" % n, queue_id=0).msg_id: n for n in range(100)}
            ballast = fill(place)
            node.stop()
        ballast.unlink()
        with RunningNode(place / "store", SMALL) as node:
            assert {msg_id: int(node.client.get(msg_id).body) for msg_id in sent} == sent
            node.wait_dispatched()
        assert verify(place / "store", deep=True).findings == []
