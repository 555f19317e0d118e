"""A node on a system that lacks or forbids some calls: an old kernel, a sandbox, a filter."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from node.store.verify.verify import verify
from tests.support.faults.disk_faults import REFUSE, build_library
from tests.support.node import RunningNode
from tests.support.seldom import seldom

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("refused_calls")]

START_S = 60.0
SEGMENT = ("mapped_file_size_commit_log=268435456",)
"""Large enough to show who writes all of it."""
OPTIONAL = [
    f"pidfd_open={errno.ENOSYS},pidfd_send_signal={errno.ENOSYS}",
    f"/proc/io={errno.ENOENT}",
    f"fallocate={errno.EOPNOTSUPP}",
    *seldom(f"pidfd_open={errno.EPERM},pidfd_send_signal={errno.EPERM}"),
    *seldom(f"/proc/io={errno.EACCES}"),
    *seldom(*(f"fallocate={n}" for n in (errno.ENOSYS, errno.EINVAL, errno.EBADF, errno.EPERM))),
    *seldom(*(f"{call}={errno.ENOSYS}" for call in ("prctl", "sched_setattr"))),
    *seldom(f"SO_ATTACH_FILTER={errno.ENOPROTOOPT}", f"posix_fadvise={errno.ENOSYS}"),
    *seldom(f"nice={errno.EPERM}", f"copy_file_range={errno.ENOSYS}"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("refuse"), REFUSE)


def refusing(library: Path, calls: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(library), "REFUSED_CALLS": calls}


@pytest.mark.parametrize("calls", OPTIONAL)
def test_a_node_serves_heals_and_stops_without(library: Path, tmp_path: Path, calls: str) -> None:
    node = RunningNode(
        tmp_path / "store", SEGMENT, queue_workers=1, readers=1, env=refusing(library, calls)
    )
    with node:
        node.client.send("orders", b"a", keys="k", queue_id=0)
        node.kill("reader")
        node.wait_all_run()
        node.wait_dispatched()
        assert [m.body for m in node.client.pull("orders", 0, 0, wait=10.0).messages] == [b"a"]
        segment = node.root / "commitlog" / "00000000000000000000"
        is_reserved = segment.stat().st_blocks * 512 >= segment.stat().st_size
        assert is_reserved == ("fallocate" not in calls)
    assert "Traceback" not in node.stderr
    warnings = node.stderr.count("this file system cannot reserve space")
    assert warnings == (1 if "fallocate" in calls else 0)
    assert verify(tmp_path / "store", deep=True).findings == []


@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        (f"F_OFD_SETLK={errno.EINVAL}", "has no open-file-description locks (Linux 3.15)"),
        (f"eventfd={errno.ENOSYS}", "the system refuses the call eventfd (Linux 2.6.27)"),
        (f"pthread_create={errno.EPERM}", "this node needs 26 tasks (processes and threads)"),
    ],
)
def test_a_start_that_cannot_do_without_names_the_call(
    library: Path, tmp_path: Path, calls: str, cause: str
) -> None:
    command = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "store")]
    done = subprocess.run(
        [*command, "--bind", "tcp://127.0.0.1:0", "-X", SEGMENT[0]],
        env=refusing(library, calls), capture_output=True, text=True, timeout=START_S, check=False,
    )  # fmt: skip
    assert done.returncode not in (0, 70)
    assert cause in done.stderr
    assert "Traceback" not in done.stderr
    hints = [line for line in done.stderr.splitlines() if line.startswith("try: ")]
    assert len(hints) == 1
    assert "memory" not in hints[0]
    assert "ls -ld" not in hints[0]
