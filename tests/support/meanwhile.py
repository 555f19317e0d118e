"""A second thread of a test: it acts when something is so, not when some time has passed."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.support.node import wait_until


@contextmanager
def meanwhile(begun: Callable[[], bool], action: Callable[[], object]) -> Iterator[None]:
    """Runs `action` as soon as `begun()` is true, while the body waits for what comes of it.

    Leaving waits for its end, and raises what it raised.
    """

    def act() -> None:
        wait_until(begun, "the test has not come to where the other thread acts")
        action()

    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act)
        yield
        acted.result()
