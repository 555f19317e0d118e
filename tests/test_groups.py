"""The groups of tests: those that share a node or a Spark session must share a process."""

import os

import pytest


@pytest.mark.xdist_group("groups")
def test_tests_of_a_group_are_sent_to_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist says so by a suffix; with a pytest that it does not know it says nothing."""
    is_spread = "PYTEST_XDIST_WORKER" in os.environ
    assert request.node.nodeid.endswith("@groups") == is_spread
