"""RocketMQ's admin tools print the same at a node as at a broker with the same store."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from scripts.rivals.rocketmq import missing
from tests.clients.mqadmin.cases import CASES, MOST_USED
from tests.clients.mqadmin.side_by_side import DIFFERENCES, unexpected
from tests.clients.mqadmin.sides import AdminSide, start_sides
from tests.clients.mqadmin.table import run_cases

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[AdminSide]]:
    with ExitStack() as ends:
        yield start_sides(ends, tmp_path_factory.mktemp("mqadmin"))


def test_the_commands_that_operators_use_most_print_what_they_print_at_a_broker(
    sides: Sequence[AdminSide],
) -> None:
    cases = [case for case in CASES if case.command in MOST_USED]
    runs = run_cases(sides, cases)
    assert not (said := unexpected(runs, DIFFERENCES)), said
    assert {run.case.command for run in runs} == MOST_USED
    said = " ".join(line for run in runs for line in run.ours)
    assert "Orders broker-a 0" in said, "tools have printed something"
