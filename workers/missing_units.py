"""Which queues lack units that the log calls for, at their end or before their first file.

Progress vouches for files as they were synced. A deletion by hand leaves no trace in the
files that stay: where the files of a queue begin and end is held against the log.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

from node.store.checkpoints import Tails, load_tails
from node.store.config.topics_file import TopicsFile
from node.store.log.reader import Damage
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.queue_build import QueueEnd
from protocol.ids import Queue
from protocol.names import is_folder_name
from workers.feed import Feed
from workers.unit_groups import Own, UnitGroup, unit_groups


class MissingUnits:
    """Looks for them in one worker's queues: those that `own` returns."""

    def __init__(
        self, root: Path, feed: Feed, own: Own, note: Callable[[Damage], None] = lambda _: None
    ) -> None:
        """`note` gets the damage that is met."""
        self._root = root
        self._feed = feed
        self._own = own
        self._note = note

    def at_ends(self, place: int, ends: Mapping[Queue, QueueEnd]) -> dict[Queue, str]:
        """Queues with fewer units than the log had records for them when it ended at `place`,
        and a text that says so.

        A queue without any file counts only while its topic exists: `topic rm` leaves the others.
        """
        tails = load_tails(self._root)
        if tails is None:
            return {}
        next_offset = self._feed.removed.next_offsets(tails.at, tails.next_offset)
        tails = tails._replace(next_offset=next_offset)
        topics = TopicsFile(self._root).topics
        short: dict[Queue, str] = {}
        for queue, known in self._known_ends(tails, place, ends).items():
            end = _end(queue, ends)
            if end < known and (queue in ends or queue.topic in topics):
                short[queue] = f"ends at {end}, {known} is known"
        hidden = self._hidden(short.keys(), place, ends)
        return {queue: why for queue, why in short.items() if queue not in hidden}

    def _hidden(self, short: Set[Queue], place: int, ends: Mapping[Queue, QueueEnd]) -> set[Queue]:
        """Those of some queues whose last messages are damaged: the log has none of their records
        after their last unit that can be read, but damage. Made anew they would end there, too."""
        begin = self._feed.limits().min_offset
        after = {queue: max(begin, ends.get(queue, QueueEnd()).physical_end) for queue in short}
        hidden: set[Queue] = set()
        if not after:
            return hidden
        for part in self._feed.past_damage(min(after.values()), place):
            if isinstance(part, Damage):
                self._note(part)
                hidden |= {queue for queue, end in after.items() if end <= part.torn.position}
                continue
            for group in unit_groups(DispatchRequests(part), self._own, self._feed.removed):
                end = after.get(group.queue, place)
                if int(group.batch.units["physical_offset"][-1]) >= end:
                    del after[group.queue]
                    hidden.discard(group.queue)
            if not after:
                break
        return hidden

    def before_first(self, first_units: Mapping[Queue, int]) -> dict[Queue, str]:
        """Those of some queues that have older records in the log than that of their first unit.

        `first_units`: the log offset that the first unit of each names, 0 in a filler, which only
        a queue that was made so begins with. Retention takes a queue's first files when all their
        records are gone: most first units then name a record that is gone too, and for the others
        the log is read up to the first record of each.
        """
        begin = self._feed.limits().min_offset
        suspects = {queue: first for queue, first in first_units.items() if first >= max(begin, 1)}
        lacking: dict[Queue, str] = {}
        if not suspects:
            return lacking
        for group in self._groups(begin, max(suspects.values())):
            first = suspects.pop(group.queue, None)
            if first is not None and int(group.batch.units["physical_offset"][0]) < first:
                lacking[group.queue] = f"begins with the record at {first}, the log has older ones"
            if not suspects:
                break
        return lacking

    def _known_ends(
        self, tails: Tails, place: int, ends: Mapping[Queue, QueueEnd]
    ) -> dict[Queue, int]:
        """The writer's snapshot as it would be at `place`: the log between the two has the rest.

        Where the snapshot is the later one, that is read as far as queues need it which have
        fewer units.
        """
        known = {
            queue: following
            for queue, following in tails.next_offset.items()
            if is_folder_name(queue.topic) and self._own(queue.topic.encode(), queue.queue_id)
        }
        if tails.at <= place:
            start = max(tails.at, self._feed.limits().min_offset)
            for group in self._groups(start, place):
                known[group.queue] = int(group.batch.queue_offset[-1]) + 1
            return known
        short = {queue for queue, following in known.items() if _end(queue, ends) < following}
        for group in self._groups(place, tails.at) if short else ():
            if group.queue in short:
                short.remove(group.queue)
                known[group.queue] = int(group.batch.queue_offset[0])
                if not short:
                    return known
        if short and self._feed.damage is not None:
            # What the damage hides may be what the snapshot counts.
            return {queue: following for queue, following in known.items() if queue not in short}
        return known

    def _groups(self, start: int, stop: int) -> Iterator[UnitGroup]:
        for columns in self._feed.columns(start, stop):
            yield from unit_groups(DispatchRequests(columns), self._own, self._feed.removed)


def _end(queue: Queue, ends: Mapping[Queue, QueueEnd]) -> int:
    return ends.get(queue, QueueEnd()).end or 0
