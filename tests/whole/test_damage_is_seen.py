"""Damage that a process of a node meets is in its log, its status and its health, at once."""

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from keelog.cli.main import cli
from keelog.client.results import Receipt
from protocol.errors import CorruptError
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

EVENT = "damage was found"
SEEN_S = 5.0
"""Far more than it takes, half a second, on a machine with other work."""


def flip(node: RunningNode, receipt: Receipt) -> None:
    """Changes a bit of a record's body."""
    with (node.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(receipt.physical_offset + 90)
        byte = file.read(1)[0]
        file.seek(receipt.physical_offset + 90)
        file.write(bytes([byte ^ 1]))


def lines_about_damage(node: RunningNode) -> list[str]:
    return [line for line in node.stderr.splitlines() if EVENT in line]


def first_line_about_damage(node: RunningNode) -> list[str]:
    """The log is read beside the test: a line may come after the status that says the same."""
    wait_until(lambda: bool(lines_about_damage(node)), "the log does not say it", SEEN_S)
    return lines_about_damage(node)


def test_what_a_reader_meets_is_in_log_status_and_health_and_the_node_stays_ready(
    tmp_path: Path,
) -> None:
    env = {"KEELOG_HTTP": "127.0.0.1:0"}
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1, env=env) as node:
        client = node.client
        sent = [client.send("orders", b"%d" % n * 50, queue_id=0) for n in range(3)]
        node.wait_dispatched()
        assert client.status().damage == ()
        flip(node, sent[1])
        with pytest.raises(CorruptError) as met:
            client.pull("orders", 0, 1)
        wait_until(lambda: len(client.status().damage) == 1, "status does not show it", SEEN_S)
        (place,) = client.status().damage
        assert (place.file, place.offset) == (met.value.where, sent[1].physical_offset)
        assert (place.count, place.process, place.first_ms) == (1, "reader 0", place.last_ms)
        (line,) = first_line_about_damage(node)
        assert f"{place.offset}" in line
        assert "checksum" in line

        for look in (
            lambda: client.pull("orders", 0, 1),
            lambda: client.get(sent[1].msg_id),
        ):
            with pytest.raises(CorruptError):
                look()
        wait_until(lambda: client.status().damage[0].count == 3, "no meeting is counted", SEEN_S)
        assert client.status().damage[0].last_ms > place.first_ms
        assert len(lines_about_damage(node)) == 1, "a place is a line of the log once"

        health = client.health()
        assert health.ready
        check = next(one for one in health.checks if one.name == "damage")
        assert not check.ok
        assert not check.needed
        assert place.file in check.detail
        url = client.status().raw["http"]
        for path in ("/readyz?verbose=1", "/healthz", "/readyz"):
            with urllib.request.urlopen(url + path, timeout=30) as answer:
                assert answer.status == 200
                assert "[-] damage: damaged places: 1, met 3 times" in answer.read().decode()
        shown = CliRunner().invoke(cli, ["status", "--node", node.endpoint, "--format", "table"])
        assert f"damage: {place.file}, offset {place.offset}: " in shown.stdout
        assert f"keelog store verify {node.root} --deep" in shown.stdout
        ready = CliRunner().invoke(cli, ["health", "--node", node.endpoint, "--json"])
        assert ready.exit_code == 0
        assert {"damage"} == {c["name"] for c in json.loads(ready.stdout)["checks"] if not c["ok"]}

        node.kill("reader")
        node.wait_all_run()
        assert client.status().damage[0].count == 3, "the list outlives the reader"


def test_where_a_worker_stopped_is_in_log_status_and_health(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        client = node.client
        client.send("orders", b"a" * 50, queue_id=0)
        node.wait_dispatched()
        worker = node.kill("queue", number=signal.SIGSTOP)
        bad = client.send("orders", b"b" * 50, queue_id=0, acks="flushed")
        flip(node, bad)
        os.kill(worker, signal.SIGCONT)

        def is_listed() -> bool:
            return any(one.offset == bad.physical_offset for one in client.status().damage)

        wait_until(is_listed, "status does not show where the worker stopped")
        (place,) = client.status().damage  # that of the index worker is the same
        assert place.process in ("queue worker 0", "index worker")
        assert not next(one for one in client.health().checks if one.name == "damage").ok
        assert any(f"{bad.physical_offset}" in line for line in first_line_about_damage(node))
