"""A console without a node, for what it decides by itself."""

from collections.abc import Iterator

import pytest

from tests.support.console import Site, served


@pytest.fixture
def site() -> Iterator[Site]:
    with served() as found:
        yield found
