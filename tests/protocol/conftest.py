"""Fixture for what runs compiled and by numpy: its tests run both ways."""

from collections.abc import Iterator

import pytest

from protocol import kernel


@pytest.fixture(scope="module", params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of the two the module's tests run with."""
    wanted: str = request.param
    found = kernel.active() if wanted == "compiled" else None
    if wanted == "compiled" and found is None:
        pytest.skip("this installation has no compiled kernel")
    with kernel.using(found):
        yield wanted
