"""A turn of the gateway's loop that fails: it is made again, or ends the process."""

import asyncio
import errno

import pytest

from keelog.gateway.loop import Gateway
from protocol.errors import MqError, ServiceNotAvailable, StoreDamaged

PASSING = (
    OSError(errno.ENOSPC, "No space left on device", "reader-0.page"),
    OSError(errno.EMFILE, "Too many open files"),
    ServiceNotAvailable("no_resources: too many open files"),
)


class Turning(Gateway):
    """A gateway of which each turn meets the next of some errors; it has nothing else."""

    def __init__(self, errors: list[Exception]) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        self._timer = None
        self._errors = errors
        self.over = asyncio.Event()

    def _step(self, is_rung: bool) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.over.set()

    def begin(self) -> None:
        """As the timer does."""
        self._turn()

    @property
    def end(self) -> BaseException | None:
        """Why the process ends, if it does."""
        return self._failed.exception() if self._failed.done() else None


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_a_turn_that_lacks_room_is_made_again(error: Exception) -> None:
    async def run() -> None:
        gateway = Turning([error, error])
        gateway.begin()
        await asyncio.wait_for(gateway.over.wait(), 5)
        assert gateway.end is None

    asyncio.run(run())


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), StoreDamaged("a segment", 0, "no record")]
)
def test_a_turn_that_meets_anything_else_ends_the_process(error: MqError | OSError) -> None:
    async def run() -> None:
        gateway = Turning([error])
        gateway.begin()
        await asyncio.sleep(0)
        assert gateway.end is error
        assert not gateway.over.is_set()

    asyncio.run(run())
