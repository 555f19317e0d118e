"""One short row of the comparison with the real broker."""

from pathlib import Path

import pytest

from scripts.rivals import compare_rocketmq
from scripts.rivals.plan import OURS, THEIRS
from scripts.rivals.results import TurnResults
from scripts.rivals.rocketmq import missing

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.timeout(600)]


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_both_sides_take_their_turn_and_leave_nothing_behind(tmp_path: Path) -> None:
    turns, stores = tmp_path / "turns.jsonl", tmp_path / "stores"
    stores.mkdir()
    arguments = ["--rows", "send_1", "--rounds", "1", "--seconds", "1", "--dir", str(stores)]
    assert compare_rocketmq.main([*arguments, "--resume", str(turns)]) == 0
    found = TurnResults.load(turns)
    assert [(turn.side, turn.round) for turn in found.turns] == [(THEIRS, 1), (OURS, 1)]
    for turn in found.turns:
        assert turn.figures["messages"] > 0
        assert turn.figures["failed"] == 0
        assert turn.figures["cpu_s_per_million"] > 0
    assert list(stores.iterdir()) == []
