"""How far messages are delivered is never believed beyond their queues."""

import json
from pathlib import Path

import pytest

from node.runtime.run_files import RecoveredEnds, ends_to_heed, note_lowered, write_ends
from protocol.derived.file_layouts import TimerCheck
from protocol.names import DELAY_OFFSETS_FILE, TIMER_CHECK_FILE
from tests.gateway.test_delayed import stored
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING

SETTINGS = (REMOTING, "message_delay_level=1s 2s")


def bodies(node: RunningNode, topic: str) -> set[bytes]:
    return {record.body for record in stored(node, topic)}


@pytest.mark.process
def test_what_is_beyond_its_queue_is_lowered_before_new_messages_come(tmp_path: Path) -> None:
    root = tmp_path / "store"
    check, offsets = root / TIMER_CHECK_FILE, root / DELAY_OFFSETS_FILE
    old = {b"old %d" % number for number in range(3)}

    def is_saved() -> bool:
        if not (check.exists() and offsets.exists()):
            return False
        saved = json.loads(offsets.read_text())["offsetTable"].get("1")
        return [saved, TimerCheck.parse(check.read_bytes()).queue_offset] == [len(old)] * 2

    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as node:
        for body in old:
            node.client.send("levels", body, delay_level=1)
            node.client.send("timers", body, delay=1.0)
        wait_until(lambda: bodies(node, "levels") == bodies(node, "timers") == old, "not delivered")
        wait_until(is_saved, "the progress is not saved")
    check.write_bytes(TimerCheck.parse(check.read_bytes())._replace(queue_offset=9).file())
    table = json.loads(offsets.read_text())
    assert table["offsetTable"]["1"] == 3
    table["offsetTable"]["1"] = 5
    offsets.write_text(json.dumps(table))
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as node:
        new = {b"new %d" % number for number in range(4)}
        node.kill("tasks", number=19)
        for body in new:
            node.client.send("levels", body, delay_level=1)
            node.client.send("timers", body, delay=1.0)
        node.kill("tasks")
        wait_until(
            lambda: bodies(node, "levels") == bodies(node, "timers") == old | new,
            f"not delivered: {bodies(node, 'levels')}, {bodies(node, 'timers')}",
        )
        assert "delayOffset.json" in node.stderr
        assert "timercheck" in node.stderr
        assert len(stored(node, "timers")) == 7, "what had been delivered came again"
        # A process that was stopped between its line and its write has lowered nothing.
        lowered = node.stderr.count("is lowered")
        assert lowered >= 2
        node.kill("tasks")
        node.wait_all_run()
        assert node.stderr.count("is lowered") == lowered, "its own progress was lowered"


def test_ends_that_nobody_heeded_hold_over_further_starts(tmp_path: Path) -> None:
    (tmp_path / "keelog/run").mkdir(parents=True)
    write_ends(tmp_path, RecoveredEnds(1, 500, {"t": {"0": 5}}))
    write_ends(tmp_path, RecoveredEnds(2, 900, {"t": {"0": 9}}))
    heeded = ends_to_heed(tmp_path)
    assert heeded == RecoveredEnds(2, 500, {"t": {"0": 5}})
    assert (heeded.end_of("t", 0), heeded.end_of("t", 1), heeded.end_of("u", 0)) == (5, 0, 0)
    note_lowered(tmp_path, 2)
    assert ends_to_heed(tmp_path) is None
    write_ends(tmp_path, RecoveredEnds(3, 900, {"t": {"0": 9}}))
    assert ends_to_heed(tmp_path) == RecoveredEnds(3, 900, {"t": {"0": 9}})
