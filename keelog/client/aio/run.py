"""How an operation is carried out in an event loop."""

import asyncio
from typing import TypeVar

from keelog.client.core import ClientCore
from keelog.client.operations import Operation
from protocol.errors import MqError

T = TypeVar("T")


async def run(core: ClientCore, operation: Operation[T]) -> T:
    """Carries an operation out, awaiting each of its calls."""
    try:
        call = next(operation)
        while True:
            try:
                answer = await asyncio.wrap_future(core.start(call))
            except MqError as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
