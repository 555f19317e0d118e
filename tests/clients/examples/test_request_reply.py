"""RocketMQ's example of requests and replies, unmodified, sees the same at node and broker."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import missing
from tests.interop import probe

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
ROOT = Path(__file__).resolve().parents[2]
RUN_S = 300
SIDES = ("broker", "node")


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with nothing but a loopback device: 9876 is free there."""
    full = f"klgrr{os.getpid() % 100_000}{name[0]}"
    for words in (("netns", "add", full), ("-n", full, "link", "set", "lo", "up")):
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=RUN_S)
    try:
        yield full
    finally:
        subprocess.run(["ip", "netns", "del", full], check=False, capture_output=True)


def transcript(where: str, side: str, folder: Path) -> list[str]:
    """What the example saw at one side."""
    module = [sys.executable, "-m", "tests.clients.request_reply", side, str(folder)]
    done = subprocess.run(
        ["ip", "netns", "exec", where, *module], cwd=ROOT, capture_output=True, text=True,
        timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="a network namespace needs root, and the program ip",
)
def test_the_example_of_requests_and_replies_sees_at_a_node_what_it_sees_at_a_broker(
    tmp_path: Path,
) -> None:
    probe.build()
    with ExitStack() as ends:
        places = {side: ends.enter_context(namespace(side)) for side in SIDES}
        with ThreadPoolExecutor(len(SIDES)) as pool:
            runs = {
                side: pool.submit(transcript, where, side, tmp_path / side)
                for side, where in places.items()
            }
        found = {side: run.result() for side, run in runs.items()}

    assert found["node"] == found["broker"]
    timed_out, refused, request, reply, called, _ = found["node"]
    assert timed_out == "nobody replies: RequestTimeoutException"
    assert "'reply message contents.'" in request
    assert "SEND_OK" in reply
    assert refused == "reply to one that is gone: MQBrokerException: CODE: 1"
    assert called == "asynchronous: request to <RequestTopic> "
