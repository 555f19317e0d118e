"""RocketMQ's Dashboard shows the same at a node as at a broker with the same store."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import RivalMissing
from tests.clients.dashboard.cases import CASES
from tests.clients.dashboard.server import dashboard_jar
from tests.clients.dashboard.table import (
    DIFFERENCES,
    PageSide,
    not_asked,
    run_cases,
    start_dashboards,
)
from tests.clients.mqadmin.side_by_side import EQUAL, REFUSED, unexpected

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def jar() -> Path:
    try:
        return dashboard_jar()
    except RivalMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def sides(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[PageSide]]:
    with ExitStack() as ends:
        yield start_dashboards(ends, jar, tmp_path_factory.mktemp("dashboard"))


def test_every_address_of_the_dashboard_replies_as_at_a_broker(
    sides: Sequence[PageSide],
) -> None:
    assert not not_asked(sides)
    runs = run_cases(sides, CASES)
    assert not (said := unexpected(runs, DIFFERENCES, (EQUAL, REFUSED))), said
    refused = {run.case.path for run in runs if run.verdict.kind == REFUSED}
    assert all(path.startswith("/acl/") for path in refused), "a node has no access lists"
    shown = " ".join(line for run in runs for line in run.ours)
    assert "topic = Orders" in shown, "pages have shown something"
