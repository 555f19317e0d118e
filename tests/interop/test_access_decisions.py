"""The golden file of decisions about access against RocketMQ's class, run anew."""

import pytest

from scripts.rivals.rocketmq import missing
from tests.interop.access_cases import ask_java, golden

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_rocketmqs_class_decides_the_golden_cases_as_the_file_says() -> None:
    rows = golden()
    assert ask_java(rows) == [row["outcome"] for row in rows]
