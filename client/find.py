"""The pages of a look-up by key, for the plain client and the asyncio one."""

from collections.abc import Callable
from typing import Any

from client import operations as operations
from client.messages import Message
from client.operations import Operation


class FindPages:
    """The pages of one `find`: ask `page` until `done`."""

    def __init__(
        self,
        fields: dict[str, Any],
        limit: int | None,
        deadline: Callable[[float | None], float],
        timeout: float | None,
    ) -> None:
        self._fields = fields
        self._left = limit
        self._deadline = deadline
        self._timeout = timeout
        self._cursor: str | None = None
        self.done = limit is not None and limit <= 0

    def page(self) -> Operation[list[Message]]:
        """The next messages, perhaps none; each page has a timeout of its own."""
        size = operations.FIND_PAGE if self._left is None else min(self._left, operations.FIND_PAGE)
        fields = {**self._fields, "max_messages": size}
        deadline = self._deadline(self._timeout)
        messages, self._cursor = yield from operations.find_page(fields, self._cursor, deadline)
        if self._left is not None:
            messages = messages[: self._left]
            self._left -= len(messages)
        self.done = self._cursor is None or self._left == 0
        return messages
