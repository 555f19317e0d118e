"""Another kernel, or none, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.kernel import loader


@contextmanager
def using(other: loader.Kernel | None) -> Iterator[None]:
    """Has this process use that kernel, None: the plain way, for as long as it lasts."""
    before, loader.kernel = loader.kernel, other
    try:
        yield
    finally:
        loader.kernel = before
