"""The pages of a look-up by key, for the plain client and the asyncio one."""

import logging
from collections.abc import Callable
from typing import Any

from keelog.client import operations
from keelog.client.messages import Message
from keelog.client.on_damage import OnFoundDamage
from keelog.client.operations import Operation
from protocol.errors import StoreDamaged

log = logging.getLogger("keelog.client")


class FindPages:
    """The pages of one `find`: ask `page` until `done`."""

    def __init__(
        self,
        fields: dict[str, Any],
        limit: int | None,
        deadline: Callable[[float | None], float],
        timeout: float | None,
        on_damage: OnFoundDamage,
    ) -> None:
        self._fields = fields
        self._left = limit
        self._deadline = deadline
        self._timeout = timeout
        self._cursor: str | None = None
        self._on_damage = on_damage
        self._damage: StoreDamaged | None = None
        self._is_last = False
        self.done = limit is not None and limit <= 0

    def page(self) -> Operation[list[Message]]:
        """The next messages, perhaps none; each page has a timeout of its own.

        Raises StoreDamaged after the last messages, where the program wants that.
        """
        if self._damage is not None and self._is_last:
            raise self._damage
        size = operations.FIND_PAGE if self._left is None else min(self._left, operations.FIND_PAGE)
        fields = {**self._fields, "max_messages": size}
        deadline = self._deadline(self._timeout)
        messages, self._cursor, damaged = yield from operations.find_page(
            fields, self._cursor, deadline
        )
        for error in damaged:
            self._meet(error)
        if self._left is not None:
            messages = messages[: self._left]
            self._left -= len(messages)
        self._is_last = self._cursor is None or self._left == 0
        self.done = self._is_last and self._damage is None
        return messages

    def _meet(self, error: StoreDamaged) -> None:
        if self._on_damage == "fail":
            self._damage = self._damage or error
        elif callable(self._on_damage):
            self._on_damage(error)
        else:
            log.warning("%s: passed over", error.reason)
