"""Many queues and few file descriptors: the files opened last stay open, nothing is damage."""

import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from node.store.file_cache import FILES_MIN, OpenFiles
from protocol.errors import ServiceNotAvailable
from tests.support.node import RunningNode

QUEUES = 300
FILES_MAX = 120
"""RLIMIT_NOFILE of every process of the node, soft and hard."""
SETTINGS = ("mapped_file_size_commit_log=4194304", "mapped_file_size_consume_queue=2000")
PYTHON = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES_MAX}, {FILES_MAX}))
sys.argv[0] = "keelog"
runpy.run_module("keelog", run_name="__main__")
"""


@pytest.mark.process
def test_a_node_with_more_queues_than_file_descriptors_serves_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def limited(command: list[str], **options: object) -> "subprocess.Popen[str]":
        if command[1:3] == ["-m", "keelog"]:
            command = [sys.executable, "-c", PYTHON, *command[3:]]
        return start(command, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "Popen", limited)
    with RunningNode(tmp_path / "s", SETTINGS, queue_workers=1, readers=1) as node:
        client = node.client
        client.create_topic("T", QUEUES)
        with client.producer() as producer:
            for number in range(2 * QUEUES):
                producer.send_nowait("T", str(number).encode(), queue_id=number % QUEUES)
        node.wait_dispatched()
        for _ in range(2):
            for queue in range(QUEUES):
                bodies = [message.body for message in client.pull("T", queue, 0).messages]
                assert bodies == [str(queue).encode(), str(queue + QUEUES).encode()]
        for row in client.status().processes:
            assert row.restarts == 0
            assert row.pid is not None
            process = psutil.Process(row.pid)
            assert process.rlimit(psutil.RLIMIT_NOFILE) == (FILES_MAX, FILES_MAX)
            assert process.num_fds() < FILES_MAX


@pytest.mark.process
def test_short_of_memory_the_kernel_ends_readers_first_and_the_supervisor_last(
    tmp_path: Path,
) -> None:
    with RunningNode(tmp_path / "s", SETTINGS, queue_workers=1, readers=1) as node:
        pids = {role: numbers[0] for role, numbers in node.pids().items()}

        def score(pid: int) -> int:
            return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

        own = score(node.pid)
        if own > 500:
            pytest.skip("this test runs with so high a score that all processes have the highest")
        assert own < score(pids["writer"]) < score(pids["queue"]) < score(pids["reader"])
        assert score(pids["queue"]) == score(pids["index"])


def test_no_descriptor_left_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # whatever is closed meanwhile
    try:
        with pytest.raises(ServiceNotAvailable, match="Too many open files"):
            OpenFiles().get(path, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors_below(folder: Path) -> int:
    """How many this process has; what others are opened and closed meanwhile does not count."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += link.readlink().is_relative_to(folder)
    return count


def test_the_files_opened_last_stay_open(tmp_path: Path) -> None:
    files = OpenFiles(FILES_MIN)
    paths = [tmp_path / str(number) for number in range(3 * FILES_MIN)]
    for path in paths:
        path.write_bytes(b"x")
    kept = [files.get(path, 1) for path in paths]
    assert descriptors_below(tmp_path) == FILES_MIN
    assert files.get(paths[-1], 1) is kept[-1]
    assert files.get(paths[-FILES_MIN], 1) is kept[-FILES_MIN]
    assert files.get(paths[0], 1) is not kept[0]
    files.close()
