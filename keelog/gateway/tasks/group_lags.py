"""The lag of consumer groups, looked at now and then, for status and metrics."""

import asyncio
import heapq
import logging
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Any

from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.groups import GroupInfo, described, longest
from node.runtime import disk
from node.runtime.event_log import fields
from node.store.config.consumer_offsets import read_group_offsets
from node.store.run_files import GROUP_ROWS_MAX, read_members, write_group_lags
from protocol.errors import MqError

log = logging.getLogger("keelog.tasks")

LOOK_S = 5.0
REST = 10
"""A look that takes long is followed by a rest of this many times its length."""
LOOK_S_MAX = 60.0
GROUPS_LOOKED_MAX = 5_000
"""Groups whose lag is looked at; those with members come first, the rest has no lag."""


class GroupLags:
    """Writes `keelog/run/groups` in the loop of the tasks."""

    def __init__(self, root: Path, core: ClientCore) -> None:
        self._root = root
        self._core = core

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            began = monotonic()
            try:
                await self._look(began + LOOK_S_MAX)
            except (MqError, OSError) as error:
                log.warning("the lag of groups is not known", extra=fields(why=error))
            await asyncio.sleep(max(LOOK_S, REST * (monotonic() - began)))

    async def _look(self, deadline: float) -> None:
        committed = await asyncio.to_thread(read_group_offsets, self._root)
        here = await asyncio.to_thread(read_members, self._root)
        names = sorted({*committed, *here}, key=lambda name: (name not in here, name))
        looked = names[:GROUPS_LOOKED_MAX]
        found = await run(self._core, described(looked, committed, here, deadline))
        with disk.if_room():
            await asyncio.to_thread(write_group_lags, self._root, summed_up(found, len(names)))


def summed_up(found: Iterable[GroupInfo], groups: int) -> dict[str, Any]:
    """What the file says of these groups, of `groups` that there are."""
    infos = list(found)
    rows = [row for info in infos for row in _rows(info)]
    shown = heapq.nsmallest(
        GROUP_ROWS_MAX, rows, key=lambda row: (-row["lag"], row["group"], row["topic"])
    )
    sums = {name: sum(row[name] for row in rows) for name in ("lag", "in_flight")}
    others = {name: total - sum(row[name] for row in shown) for name, total in sums.items()}
    members = sum(len(info.members) for info in infos)
    return {"groups": groups, "members": members, **sums, "rows": shown, "others": others}


def _rows(info: GroupInfo) -> list[dict[str, Any]]:
    """A row for each topic of a group."""
    found: dict[str, dict[str, Any]] = {}
    for queue in info.queues:
        row = found.setdefault(
            queue.topic,
            {
                "group": info.group, "topic": queue.topic, "queues": 0,
                "members": len(info.members), "lag": 0, "in_flight": 0,
                "lag_ms": longest(one for one in info.queues if one.topic == queue.topic),
            },
        )  # fmt: skip
        row["queues"] += 1
        row["lag"] += queue.lag
        row["in_flight"] += queue.in_flight
    return list(found.values())
