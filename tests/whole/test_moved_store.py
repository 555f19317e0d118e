"""The store's directory goes away under a running node: nothing is made or written in its place."""

import ctypes
import hashlib
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keelog.client.client import Client, connect
from keelog.client.results import Receipt
from protocol.errors import MqError, OutcomeUnknownError
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

REFUSED_S_MAX = 5.0
"""After the move; the writer looks ten times a second, but the machine may be busy."""
SMALL = ("mapped_file_size_commit_log=262144", "mapped_file_size_consume_queue=4000")
TOPIC = "moved"
AT_FDCWD = -100
RENAME_EXCHANGE = 2


class Load:
    """Sends from a thread until it is told to stop; remembers what was acknowledged."""

    def __init__(self, endpoint: str) -> None:
        self.acknowledged: dict[bytes, Receipt] = {}
        self.errors: list[tuple[float, MqError]] = []
        self._endpoint = endpoint
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        with connect(self._endpoint, timeout=20.0) as client:
            while not self._is_over.is_set():
                body = f"{number} ".encode() * 100
                number += 1
                try:
                    self.acknowledged[body] = client.send(TOPIC, body, queue_id=number % 4)
                except MqError as error:
                    self.errors.append((time.monotonic(), error))

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def picture(root: Path) -> dict[str, tuple[int, str]]:
    """Each file below a folder: its inode and the digest of its bytes."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_ino,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in root.rglob("*")
    }


def node_on(root: Path) -> RunningNode:
    return RunningNode(root, [*SMALL, "flush_disk_type=ASYNC_FLUSH"], readers=1)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keelog", *arguments], capture_output=True, text=True, timeout=60
    )


def check_refusals(load: Load, since: float, cause: str) -> None:
    """Every send after the move has failed; soon all of them with the cause."""
    wait_until(lambda: len(load.errors) >= 3, "no send is refused")
    first_at = load.errors[0][0]
    assert first_at - since < REFUSED_S_MAX
    told = [error for _, error in load.errors if not isinstance(error, OutcomeUnknownError)]
    assert told, load.errors
    assert all(cause in error.reason for error in told), [error.reason for error in told]


def check_reports(node: RunningNode, client: Client, cause: str) -> None:
    """Status, health and its exit code name the cause; everybody but the readers has ended."""

    def is_shown() -> bool:
        return bool(client.status().raw["mode"] == "read_only")

    wait_until(is_shown, "status does not show it", 5.0)
    status = client.status().raw
    assert cause in status["cause"]
    rows = {row["role"]: row for row in status["processes"]}
    assert (rows["writer"]["state"], rows["writer"]["pid"]) == ("moved", None)
    health = client.health().raw
    assert not health["ready"]
    appends = next(check for check in health["checks"] if check["name"] == "appends")
    assert cause in appends["detail"]
    ended = command("health", "--node", node.endpoint)
    assert ended.returncode == 4
    assert cause in ended.stderr


def check_all_there(root: Path, acknowledged: dict[bytes, Receipt]) -> None:
    """Everything that was acknowledged is in the store where it is now."""
    with node_on(root) as node:
        for body, receipt in acknowledged.items():
            assert node.client.get(receipt.msg_id).body == body
    verified = command("store", "verify", str(root), "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def move_away(root: Path) -> Path:
    away = root.with_name("moved-away")
    root.rename(away)
    return away


def exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step (renameat2): no look of the writer falls between two moves."""
    names = os.fsencode(one), os.fsencode(other)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


def wait_followed(node: RunningNode) -> None:
    """Returns when all workers hold what the log has now: more comes all the time."""
    end = node.log_state().readable
    workers = node.worker_states
    wait_until(lambda: all(one.dispatched >= end for one in workers().values()), "a worker lags")


def under_load(root: Path, go: Callable[[], None], cause: str) -> tuple[RunningNode, Load]:
    """A node that has lost its directory under load, and was stopped in order after that."""
    node = node_on(root)
    with node:
        with Load(node.endpoint) as load:
            wait_until(lambda: len(load.acknowledged) > 300, "no load")
            wait_followed(node)
            go()
            moved_at = time.monotonic()
            check_refusals(load, moved_at, cause)
            check_reports(node, node.client, cause)
        count = len(load.acknowledged)
        time.sleep(1.5)  # of the supervisor's turns: what it started would be there
        assert len(load.acknowledged) == count
        assert sum(row.pid is not None for row in node.client.status().processes) == 1
    assert "Traceback" not in node.stderr
    return node, load


@pytest.mark.faults
def test_a_store_that_is_moved_away_is_not_made_anew_and_keeps_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    _, load = under_load(root, lambda: void(move_away(root)), "was moved to")
    assert [path.name for path in tmp_path.iterdir()] == ["moved-away"]
    assert not (tmp_path / "moved-away/keelog/clean").exists()
    check_all_there(tmp_path / "moved-away", load.acknowledged)


@pytest.mark.faults
def test_a_store_put_in_the_place_of_a_running_one_stays_as_it_is(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "moved-away"
    with node_on(other) as node:
        for number in range(200):
            node.client.send(TOPIC, b"of another store " * 20, queue_id=number % 4)
        node.wait_dispatched()
    before = picture(other)
    _, load = under_load(root, lambda: exchange(root, other), "; another directory is there now")
    assert picture(root) == before
    check_all_there(tmp_path / "moved-away", load.acknowledged)


@pytest.mark.faults
def test_an_empty_directory_in_the_place_of_a_running_store_stays_empty(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "moved-away"
    other.mkdir()
    _, load = under_load(root, lambda: exchange(root, other), "; another directory is there now")
    assert list(root.iterdir()) == []
    check_all_there(tmp_path / "moved-away", load.acknowledged)


@pytest.mark.faults
def test_a_store_that_is_removed_is_not_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "store"

    def go() -> None:
        # The workers may make a file in a folder that is just being removed: rm says so then.
        wait_until(lambda: not subprocess.run(["rm", "-rf", str(root)]).returncode, "rm")

    # The first look may fall into the middle of the removal.
    under_load(root, go, "removed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.faults
def test_a_renamed_folder_above_a_store_is_not_made_anew(tmp_path: Path) -> None:
    above, root = tmp_path / "above", tmp_path / "above/deeper/store"
    _, load = under_load(root, lambda: void(above.rename(tmp_path / "aside")), "was moved to")
    assert [path.name for path in tmp_path.iterdir()] == ["aside"]
    check_all_there(tmp_path / "aside/deeper/store", load.acknowledged)


@contextmanager
def tmpfs(place: Path) -> Iterator[None]:
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200m", "none", str(place)], capture_output=True
    )
    if done.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and unmount")
@pytest.mark.faults
@pytest.mark.parametrize("below", [".", "store"])
def test_nothing_is_written_below_the_mount_point_of_a_volume_that_went(
    tmp_path: Path, below: str
) -> None:
    volume = tmp_path / "volume"
    with tmpfs(volume):
        under_load(
            volume / below,
            lambda: void(subprocess.run(["umount", "-l", str(volume)], check=True)),
            "its file system was unmounted",
        )
        assert list(volume.iterdir()) == []


@pytest.mark.faults
def test_processes_killed_after_the_move_are_not_started_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with node_on(root) as node:
        sent = {body: node.client.send(TOPIC, body) for body in (b"one", b"two")}
        node.wait_dispatched()
        pids = [pid for row in node.pids().values() for pid in row]
        # Between the move and their end nobody of them looks at the store.
        move_away(root)
        for pid in pids:
            os.kill(pid, 9)
        wait_until(lambda: node.client.status().raw["mode"] == "read_only", "not shown", 5.0)
        time.sleep(1.5)
        states = {row.role: (row.state, row.pid) for row in node.client.status().processes}
        assert set(states.values()) == {("moved", None)}
        assert "was moved to" in node.client.status().raw["cause"]
    assert not root.exists()
    check_all_there(tmp_path / "moved-away", sent)


@pytest.mark.faults
def test_the_pages_of_a_node_whose_store_has_moved_say_so_and_speak_of_no_other_store(
    tmp_path: Path,
) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    with node_on(other) as node:
        node.client.send(TOPIC, b"x" * 100)
    node = RunningNode(root, SMALL, readers=1)
    node._command += ["--http", "127.0.0.1:0"]
    with node:
        for _ in range(20):
            node.client.send(TOPIC, b"y" * 300)
        node.wait_dispatched()
        url, appended = node.client.status().raw["http"], node.log_state().appended
        move_away(root)
        other.rename(root)
        wait_until(lambda: node.client.status().raw["mode"] == "read_only", "not shown", 5.0)
        assert node.client.status().raw["log"]["appended"] == appended
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{url}/readyz", timeout=20)
        assert caught.value.code == 503
        assert b"was moved to" in caught.value.read()
        with urllib.request.urlopen(f"{url}/metrics", timeout=20) as page:
            assert f" {float(appended)}\n" in page.read().decode()


@pytest.mark.faults
def test_a_reader_goes_on_with_open_files_and_gives_nothing_of_another_store(
    tmp_path: Path,
) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    for place, body in ((other, b"of another store"), (root, b"of this store")):
        with node_on(place) as node:
            for number in range(2_000):
                node.client.send(TOPIC, body.ljust(200), queue_id=number % 4)
            node.wait_dispatched()
    with node_on(root) as node:
        opened = node.client.pull(TOPIC, 0, 0).messages
        assert opened[0].body.strip() == b"of this store"
        move_away(root)
        other.rename(root)
        time.sleep(2.5)  # of the reader's looks at its store
        assert node.client.pull(TOPIC, 0, 0).messages[0].body == opened[0].body
        outcomes = []
        for queue in range(4):
            for offset in range(0, 500, 50):
                try:
                    found = node.client.pull(TOPIC, queue, offset).messages
                    outcomes += [one.body.strip() for one in found]
                except MqError as error:
                    outcomes.append(type(error).__name__.encode())
        assert set(outcomes) == {b"of this store", b"StoreMoved"}


def void(_: object) -> None:
    """For a lambda that returns nothing."""
