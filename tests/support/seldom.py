"""Cases of a parametrized test that run with `make faults` alone: `make test` has ten minutes."""

import pytest
from _pytest.mark import ParameterSet


def seldom(*values: object) -> list[ParameterSet]:
    """For `parametrize`, after the cases that always run."""
    return [pytest.param(value, marks=pytest.mark.faults) for value in values]
