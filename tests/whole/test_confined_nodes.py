"""A node that may do less than others: as process 1 of a container, or as the unit lets it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pytest

from keelog.client.client import Client, connect
from tests.support import unit_filter
from tests.support.node import ANY_DISK, SEGMENT_BYTES, SEGMENT_SETTING, START_S, STOP_S, wait_until

pytestmark = pytest.mark.process

SETTINGS = [*ANY_DISK, f"{SEGMENT_SETTING}={SEGMENT_BYTES}"]
IN_A_CONTAINER = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]


class Confined:
    """A node below another command. `process` is its supervisor."""

    def __init__(self, folder: Path, *below: str, options: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        command = [*below, sys.executable, "-m", "keelog", "serve", str(folder / "store")]
        command += ["--bind", "tcp://127.0.0.1:0", "--restart-limit", "0", *options]
        for pair in SETTINGS:
            command += ["-X", pair]
        with self.log.open("wb") as log:
            self._started = subprocess.Popen(command, stderr=log)
        wait_until(self._is_ready, "it is not ready", START_S)
        top = psutil.Process(self._started.pid)
        self.process = top if top.name() == "keelog-serve" else top.children()[0]
        found = re.search(r"^ready (tcp://\S+)", self.log.read_text(), re.MULTILINE)
        assert found is not None
        self.endpoint = found[1]

    def _is_ready(self) -> bool:
        assert self._started.poll() is None, self.log.read_text()
        return b"\nready " in self.log.read_bytes()

    def stop(self) -> None:
        """SIGTERM, and a clean end."""
        self.process.send_signal(signal.SIGTERM)
        assert self._started.wait(STOP_S) == 0, self.log.read_text()
        assert '"stopped"' in self.log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.kill()
        self._started.wait()


def children(node: Confined) -> dict[str, psutil.Process]:
    """The processes below the supervisor, by name."""
    found = {}
    for one in node.process.children():
        with suppress(psutil.NoSuchProcess):
            found[one.name()] = one
    return found


def all_run(client: Client) -> bool:
    return all(one.state == "running" for one in client.status().processes)


def test_process_1_serves_heals_reaps_and_stops_in_order(tmp_path: Path) -> None:
    able = subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, text=True, check=False)
    if able.returncode:
        pytest.skip(f"no pid namespaces: {able.stderr.strip()}")
    with (
        Confined(tmp_path, *IN_A_CONTAINER) as node,
        connect(node.endpoint, timeout=30.0) as client,
    ):
        client.send("orders", b"one")

        reader = children(node)["keelog-reader-0"]
        reader.kill()
        reader.wait(STOP_S)
        wait_until(lambda: all_run(client), "not healed")
        client.send("orders", b"two")

        # Whose parent has ended is adopted by process 1.
        enter = ["nsenter", "--pid", "--target", str(node.process.pid)]
        subprocess.run([*enter, "sh", "-c", "sleep 0.1 & sleep 0.1 &"], check=True)
        wait_until(lambda: "sleep" not in children(node), "what has ended stays a zombie")
        client.send("orders", b"three")
        client.close()
        node.stop()
        assert node.log.read_text().count("process ended") == 1, node.log.read_text()


def test_a_node_needs_no_system_call_that_the_unit_forbids(tmp_path: Path) -> None:
    if unit_filter.missing():
        pytest.skip(unit_filter.missing())
    assert not {"reboot", "mount", "sched_setaffinity"} & unit_filter.allowed_calls()
    below = (sys.executable, "-m", "tests.support.unit_filter")
    options = ("--remoting", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with (
        Confined(tmp_path, *below, options=options) as node,
        connect(node.endpoint, timeout=30.0) as client,
    ):
        client.send("orders", b"one")
        with client.consumer("billing", "orders", start="earliest") as consumer:
            message = consumer.get(30.0)
            assert message is not None
            assert message.body == b"one"
            message.ack()
        assert all_run(client)
        client.close()
        node.stop()
        assert "process ended" not in node.log.read_text()


ORPHAN = """
import sys
from node.runtime.process import die_with_parent
die_with_parent(int(sys.argv[1]))
"""


@pytest.mark.parametrize("parent", ["lives", "has ended"])
def test_a_child_ends_whose_parent_has_ended_before_it_asked(parent: str) -> None:
    reader, writer = os.pipe()
    if parent == "has ended":
        os.close(reader)
    command = [sys.executable, "-c", ORPHAN, str(writer)]
    done = subprocess.run(command, pass_fds=[writer], check=False)
    assert done.returncode == (0 if parent == "lives" else -signal.SIGTERM)
    os.close(writer)
    if parent == "lives":
        os.close(reader)
