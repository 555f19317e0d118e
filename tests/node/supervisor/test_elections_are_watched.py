"""A node with controllers tells the board, the alerts and its health what they have decided."""

import re
from pathlib import Path

import pytest

from node.runtime.process import now_ms
from node.runtime.run_files import LEADS, ElectedState, write_elected
from node.runtime.settings import load_settings
from node.runtime.state_page import run_dir
from node.supervisor.monitoring.metrics import role_families
from node.supervisor.status import CONTROLLERS_HEARD_S, elected_check
from tests.test_deploy import watched_exprs

ELECTED = re.compile(r"\bkeelog_elected[a-z_]*\b")
STATE = ElectedState(LEADS, 1, 7, 1, "127.0.0.1:10911", "a:9878", 3, 3, (1, 2, 3))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    return tmp_path


def samples(root: Path, *pairs: str) -> dict[str, float]:
    found = role_families(root, load_settings(pairs))
    return {family.name: sample.value for family in found for sample in family.samples}


def test_every_metric_of_elections_on_the_board_and_in_the_alerts_is_there(root: Path) -> None:
    write_elected(root, STATE._replace(heard_ms=now_ms()))
    found = samples(root, "controller_id=1")
    named = {name for expr in watched_exprs() for name in ELECTED.findall(expr)}
    assert named
    assert named <= set(found)
    assert found["keelog_elected_epoch"] == 7
    assert found["keelog_elected_leads"] == 1
    assert found["keelog_elected_in_sync"] == found["keelog_elected_controllers"] == 3
    assert samples(root) == {}


@pytest.mark.parametrize(
    ("silent_s", "why", "is_good", "text"),
    [
        (0.0, "", True, "node 1 leads, epoch 7"),
        (0.0, "no other node is in sync", False, "no other node is in sync"),
        (CONTROLLERS_HEARD_S + 5, "refused", False, "no controller has answered for 15 s: refused"),
    ],
)
def test_the_check_is_bad_while_controllers_are_silent_or_the_keeper_waits(
    root: Path, silent_s: float, why: str, is_good: bool, text: str
) -> None:
    write_elected(root, STATE._replace(heard_ms=now_ms() - int(silent_s * 1000), why=why))
    found = elected_check(root)
    assert found[0] == is_good
    assert text in found[1]
