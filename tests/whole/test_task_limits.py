"""Fewer tasks, processes and threads, than a node needs: while it runs, and when that is over."""

import errno
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.support.faults.disk_faults import REFUSE, build_library
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

NO_TASK = f"pthread_create={errno.EAGAIN}"


def test_what_lacks_tasks_is_tried_again_until_the_limit_is_raised(tmp_path: Path) -> None:
    """As pids.max does, lowered while a node runs: its processes end, one after the other."""
    library, refused = build_library(tmp_path, REFUSE), tmp_path / "refused"
    refused.write_text("")
    node = RunningNode(
        tmp_path / "store",
        ("serve.remoting=127.0.0.1:0",),
        queue_workers=1,
        readers=1,
        restart_limit=3,
        env={"LD_PRELOAD": str(library), "REFUSED_CALLS": f"@{refused}"},
    )
    with node:
        client = node.client
        client.create_topic("orders", queues=1)
        client.send("orders", b"0", queue_id=0)
        pids = {one.role: one.pid for one in client.status().processes}
        refused.write_text(NO_TASK)
        for role in ("tasks", "index", "gateway"):
            pid = pids[role]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        def rows() -> dict[str, tuple[str | None, int]]:
            found = client.status().processes
            return {one.role: (one.state, one.restarts or 0) for one in found}

        def waits(role: str) -> bool:
            state, restarts = rows()[role]
            return state == "no_resources" and restarts > 3

        for role in ("tasks", "index", "gateway"):
            wait_until(partial(waits, role), f"{role} is not tried again")
        health = client.health()
        assert not health.ready
        failing = {one["name"] for one in health.raw["checks"] if not one["ok"]}
        assert failing >= {"tasks", "gateway", "index_worker"}
        client.send("orders", b"1", queue_id=0)  # the writer goes on
        refused.write_text("")
        node.wait_all_run()
        assert client.health().ready
        with client.consumer("readers", "orders", start="earliest") as consumer:
            for body in (b"0", b"1"):
                message = consumer.get(timeout=30.0)
                assert message is not None
                assert message.body == body
    assert "Traceback" not in node.stderr
    assert "tasks (processes and threads)" in node.stderr
