"""The checks of `tests/soak/campaign/run.py` find what they are there for: each fault, planted."""

from pathlib import Path

import numpy as np
import pytest

from keelog.bench.queue_checks import Ints
from keelog.client.client import connect
from tests.soak.campaign.check import Checker, Place, Pulled, judge
from tests.soak.campaign.node import tracebacks
from tests.soak.campaign.results import Results, Round, table
from tests.soak.campaign.watch import READY_BUT_FAILING_S_MAX, WatchedNotes, Witness
from tests.soak.check import acknowledged
from tests.soak.load import ACKNOWLEDGED, REFUSED, TRAFFIC, UNKNOWN, keys_of
from tests.support.node import RunningNode

PRODUCER, COUNT = 1, 8


def rows() -> Ints:
    """What the sender of eight messages was told: all acknowledged, in queue 2 of their topics."""
    told = []
    ends = [0] * len(TRAFFIC.topics)
    for number in range(COUNT):
        topic = TRAFFIC.message(PRODUCER, number).topic
        told.append((number, ACKNOWLEDGED, topic, 2, ends[topic], 100 * number, 0, number))
        ends[topic] += 1
    return np.array(told, np.int64)


def handed_out(wanted: Ints) -> Pulled:
    """All of it, as it was sent."""
    return {tuple(row[1:4]): tuple(row) for row in wanted.tolist()}


def test_only_acknowledged_messages_are_asked_for() -> None:
    told = rows()
    told[1, 1], told[2, 1] = REFUSED, UNKNOWN
    wanted = acknowledged({PRODUCER: told})
    assert wanted[:, 5].tolist() == [0, 3, 4, 5, 6, 7]


def test_a_node_that_hands_out_everything_passes() -> None:
    wanted = acknowledged({PRODUCER: rows()})
    found = judge(TRAFFIC, wanted, handed_out(wanted), {})
    assert (found.checked, found.lost, found.wrong, found.refused, found.faults) == (8, 0, 0, 0, [])


def test_a_lost_message_is_found() -> None:
    wanted = acknowledged({PRODUCER: rows()})
    stored = handed_out(wanted)
    del stored[tuple(wanted[5, 1:4].tolist())]
    found = judge(TRAFFIC, wanted, stored, {})
    assert (found.lost, found.wrong) == (1, 0)
    assert "message 5" in found.faults[0]


def test_a_missing_message_is_refused_where_its_queue_says_why() -> None:
    wanted = acknowledged({PRODUCER: rows()})
    stored = handed_out(wanted)
    topic, queue, offset = wanted[5, 1:4].tolist()
    del stored[topic, queue, offset]
    found = judge(TRAFFIC, wanted, stored, {(topic, queue): "StoreDamaged: so and so"})
    assert (found.lost, found.refused) == (0, 1)
    other = judge(TRAFFIC, wanted, stored, {(topic, queue + 1): "StoreDamaged: so and so"})
    assert (other.lost, other.refused) == (1, 0)


@pytest.mark.parametrize("column", [0, 4, 5], ids=["place", "producer or body", "number"])
def test_another_message_in_its_place_is_found(column: int) -> None:
    wanted = acknowledged({PRODUCER: rows()})
    stored = handed_out(wanted)
    first: Place = tuple(wanted[0, 1:4].tolist())
    row = list(stored[first])
    row[column] += 4
    stored[first] = tuple(row)
    found = judge(TRAFFIC, wanted, stored, {})
    assert (found.lost, found.wrong) == (0, 1)
    assert "not what was sent" in found.faults[0]


def test_a_node_that_is_ready_while_sends_fail_is_found() -> None:
    witness = Witness(0.0)
    for second in range(40):
        witness.said(float(second), ready=True)
        if second < 20:
            witness.sent(second + 0.5)
    assert witness.take_longest() == pytest.approx(39 - 19.5)
    assert READY_BUT_FAILING_S_MAX < 39 - 19.5
    witness.sent(40.0)
    witness.said(41.0, ready=True)
    assert witness.take_longest() == 1.0


def test_a_node_that_is_not_ready_may_refuse_for_as_long_as_it_likes() -> None:
    witness = Witness(0.0)
    for second in range(100):
        witness.said(float(second), ready=False)
    assert witness.take_longest() == 0.0
    witness.said(100.0, ready=True)
    witness.said(103.0, ready=True)
    assert witness.take_longest() == 3.0


def test_only_acknowledgements_count_as_sent(tmp_path: Path) -> None:
    witness = Witness(0.0)
    notes = WatchedNotes(tmp_path / "rows", witness)
    notes.add(0, REFUSED, 0, -1, -1, -1, 0, 0)
    notes.add(1, UNKNOWN, 0, -1, -1, -1, 0, 0)
    assert witness.last_success == 0.0
    notes.add(2, ACKNOWLEDGED, 0, 0, 0, 0, 0, 0)
    assert witness.last_success > 0.0
    notes.close()


def test_exceptions_that_nobody_caught_are_counted_once_each() -> None:
    head = "Traceback (most recent call last):\n  File x\n"
    between = "During handling of the above exception, another exception occurred:"
    chain = f"{head}KeyError\n\n{between}\n\n{head}ValueError\n"
    ignored = f"Exception ignored in: <function f>\n{head}KeyError: 1\n"
    assert tracebacks("") == 0
    assert tracebacks(f"{head}KeyError: 1\n") == 1
    assert tracebacks(f"Exception in thread flush:\n{head}KeyError: 1\n{head}ValueError\n") == 2
    assert tracebacks(chain) == 1
    assert tracebacks(ignored) == 0


def test_results_of_several_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = Results.load(path)
    first.add(Round(0, 1, "kill", restarts=2, recovery_s=3.0))
    first.add(Round(0, 2, "kill", done=False))
    first.save(path)
    second = Results.load(path)
    second.add(Round(0, 1, "kill", restarts=1, recovery_s=1.0, lost=4, faults=["lost"]))
    assert second.rounds == 2
    assert second.sums["kill"].lost == 4
    assert [one["faults"] for one in second.failed] == [["lost"]]
    row = next(line for line in table(second).splitlines() if line.startswith("kill"))
    assert row.split() == ["kill", "2", "1", "3", "0", "4", "0.0", "s", "3.0", "s", "1"]


@pytest.mark.process
def test_a_running_node_is_asked_and_what_it_never_got_is_lost_or_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.soak.campaign.check.WAIT_S", 1.0)
    told = []
    with RunningNode(tmp_path / "store") as node, connect(node.endpoint) as client:
        for topic in TRAFFIC.topics:
            client.create_topic(topic, TRAFFIC.queues)
        for number in range(COUNT):
            sent = TRAFFIC.message(PRODUCER, number)
            receipt = client.send(
                TRAFFIC.topics[sent.topic], sent.body, keys=keys_of(PRODUCER, number)
            )
            place = (receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
            told.append((number, ACKNOWLEDGED, sent.topic, *place, 0, 0))
        checker = Checker(1, TRAFFIC)
        good = checker.check(client, {PRODUCER: np.array(told, np.int64)}, whole=False)
        assert (good.checked, good.lost, good.faults) == (COUNT, 0, [])
        _, _, first, queue, offset, *_ = told[0]
        told.append((COUNT, ACKNOWLEDGED, first, queue, offset + 50, 9, 0, 0))
        sent = TRAFFIC.message(PRODUCER, COUNT + 1)
        changed = sent.body[:-1] + bytes([sent.body[-1] ^ 1])
        receipt = client.send(TRAFFIC.topics[sent.topic], changed)
        place = (receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
        told.append((COUNT + 1, ACKNOWLEDGED, sent.topic, *place, 0, 0))
        again = checker.check(client, {PRODUCER: np.array(told, np.int64)}, whole=False)
    assert (again.lost, again.wrong, again.refused) == (1, 1, 0)
    assert again.checked == COUNT + 2
