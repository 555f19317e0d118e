"""The process that does what a broker does by itself: it delivers delayed messages and timer
messages, and looks at the lag of groups.

It is a client of its own node: it pulls from a reader, and appends at the writer. The lag of
consumer groups it looks at now and then, for status and metrics. Run it as
`python -m keelog.gateway.tasks.loop DIR --node URL`.
"""

import asyncio
import heapq
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.groups import GroupInfo, described, longest
from keelog.gateway.connection import Gathering
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.system_queue import WAIT_S_MAX, WaitingQueue
from keelog.gateway.tasks.delay_level import DelayOffsets, DelayQueue
from keelog.gateway.tasks.timers import TimerDeliverer
from node.runtime import disk, process, run_files, state_page, store_paths, stored_times
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.store.config.consumer_offsets import read_group_offsets
from protocol.addresses import DEFAULT_NODE
from protocol.errors import MqError
from protocol.record.waiting import TIMER_PLACE, schedule_place

log = logging.getLogger("keelog.tasks")

LAGS_EVERY_S = 5.0
LAGS_REST = 10
"""A look that takes long is followed by a rest of this many times its length."""
LOOK_S_MAX = 60.0
"""How long a look at the lags may take."""
GROUPS_LOOKED_MAX = 5_000
"""Groups whose lag is looked at; those with members come first, the rest has no lag."""
SLOT = "tasks-0"
REQUEST_S = 5.0
"""How long a request to a reader may take, beside a held pull."""
BEAT_S = 0.5


class Tasks:
    """All levels of a node, in one event loop."""

    def __init__(
        self,
        child: process.ChildProcess,
        core: ClientCore,
        settings: Settings,
        page: state_page.WorkerPage,
    ) -> None:
        self._page = page
        self._pages = state_page.StatePages(child.root, 0)
        self._root = child.root
        self._offsets = DelayOffsets(child.root, process.now_ms)
        ends = run_files.ends_to_heed(child.root)
        if ends is not None:
            self._offsets.lower(lambda level: ends.end_of(*schedule_place(level)))
        self._lowered = 0
        """The epoch that is noted."""
        self._link = WriterLink(core, state_page.run_dir(child.root), settings, Gathering())
        self._lags = GroupLags(child.root, core)
        wait_s = min(WAIT_S_MAX, settings.long_polling_ms_max / 1000)
        sets = stored_times.clock_sets(child.root, stored_times.moment())
        self._levels: list[DelayQueue] = []
        for number, delay_ms in enumerate(settings.delay_levels_ms, 1):
            queue = WaitingQueue(core, schedule_place(number), wait_s)
            level = DelayQueue(number, delay_ms, queue, self._link, self._offsets, sets)
            self._levels.append(level)
        queue = WaitingQueue(core, TIMER_PLACE, wait_s)
        self._timers = TimerDeliverer(child.root, self._link, settings, queue, ends, sets)

    async def run(self, stop: process.StopFlag) -> None:
        """Delivers until the flag is set. Raises StoreMoved, and what a level did not foresee."""
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(stop.fd, ended.set)
        working = [asyncio.ensure_future(level.run()) for level in self._levels]
        working += [asyncio.ensure_future(one) for one in (self._lags.run(), self._timers.run())]
        beating = asyncio.ensure_future(self._beat())
        stopping = asyncio.ensure_future(ended.wait())
        self._page.publish(state=state_page.RUNNING)
        all_of_them = [*working, beating, stopping]
        done, _ = await asyncio.wait(all_of_them, return_when=asyncio.FIRST_COMPLETED)
        asyncio.get_running_loop().remove_reader(stop.fd)
        self._page.publish(state=state_page.STOPPING)
        for task in all_of_them:
            task.cancel()
        self._offsets.close()
        await asyncio.wait(working)
        self._timers.close()
        for task in done:
            task.result()
        self._page.publish(state=state_page.STOPPED)

    def _note_epoch(self) -> None:
        """Whatever the writer recovers while this process runs, no progress is above it."""
        epoch = 0 if self._pages.log is None else self._pages.epoch()
        if epoch not in (0, self._lowered) and self._timers.is_lowered:
            with disk.if_room():
                run_files.note_lowered(self._root, epoch)
                self._lowered = epoch

    async def _beat(self) -> None:
        while True:
            store_paths.check_held()
            self._page.beat(process.now_ms())
            self._note_epoch()
            self._offsets.turn(monotonic())
            process.met_damage.turn(monotonic())
            await asyncio.sleep(BEAT_S)


def main(arguments: list[str] | None = None) -> int:
    """Delivers the delayed messages of a store until SIGTERM."""
    parser = process.child_parser("keelog.gateway.tasks.loop", __doc__)
    parser.add_argument("--node", default=DEFAULT_NODE, help="the node's control address")
    child = process.ChildProcess(
        slot="tasks",
        what="the tasks of {} ended",
        options=parser.parse_args(arguments),
        oom_points=process.OOM_READER,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    with process.take_place(child.root, SLOT) as page:

        async def serve() -> None:
            core = ClientCore(child.options.node, REQUEST_S, None)
            try:
                tasks = Tasks(child, core, settings, page)
                child.report_ready()
                await tasks.run(stop)
            finally:
                core.close()

        asyncio.run(serve())


@dataclass(slots=True, eq=False)
class GroupLags:
    """Writes `keelog/run/groups` in the loop of the tasks."""

    _root: Path
    _core: ClientCore

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            began = monotonic()
            try:
                await self._look(began + LOOK_S_MAX)
            except (MqError, OSError) as error:
                log.warning("the lag of groups is not known", extra=fields(why=error))
            await asyncio.sleep(max(LAGS_EVERY_S, LAGS_REST * (monotonic() - began)))

    async def _look(self, deadline: float) -> None:
        committed = await asyncio.to_thread(read_group_offsets, self._root)
        here = await asyncio.to_thread(run_files.read_members, self._root)
        names = sorted({*committed, *here}, key=lambda name: (name not in here, name))
        looked = names[:GROUPS_LOOKED_MAX]
        found = await run(self._core, described(looked, committed, here, deadline))
        with disk.if_room():
            said = summed_up(found, len(names))
            await asyncio.to_thread(run_files.write_group_lags, self._root, said)


def summed_up(found: Iterable[GroupInfo], groups: int) -> dict[str, Any]:
    """What the file says of these groups, of `groups` that there are."""
    infos = list(found)
    rows = [row for info in infos for row in _lag_rows(info)]
    shown = heapq.nsmallest(
        run_files.GROUP_ROWS_MAX, rows, key=lambda row: (-row["lag"], row["group"], row["topic"])
    )
    sums = {name: sum(row[name] for row in rows) for name in ("lag", "in_flight")}
    others = {name: total - sum(row[name] for row in shown) for name, total in sums.items()}
    members = sum(len(info.members) for info in infos)
    return {"groups": groups, "members": members, **sums, "rows": shown, "others": others}


def _lag_rows(info: GroupInfo) -> list[dict[str, Any]]:
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


if __name__ == "__main__":
    process.leave(main())
