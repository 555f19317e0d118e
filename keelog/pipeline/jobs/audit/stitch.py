"""Joins what the tasks of an audit found to what one walk over the whole log would have found."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from keelog.pipeline.jobs.audit.range_task import AuditReport
from keelog.pipeline.jobs.scan import ScanRange
from node.store.log.reader import Bounds, Damage, LogReader, next_record
from node.store.verify.log import LogCheck
from protocol.record.codec import Torn

Again = Callable[[ScanRange], AuditReport]


class AuditStitch:
    """Goes through ranges in log order; notes damage in `check`, keeps the reports that count.

    After damage the log goes on at the first record of a range that is not older than what is
    before the damage. `again` audits a range from another place: where a body imitates a record
    at its own place, the task has started at that.
    """

    def __init__(self, log: LogReader, check: LogCheck, again: Again) -> None:
        self._log = log
        self._check = check
        self._again = again
        self._torn: Torn | None = None
        self._last_time = 0
        self._expected = 0
        self.kept: list[AuditReport] = []
        self.repaired = False

    def run(
        self, start: int, end: int, spans: Iterable[ScanRange], reports: Sequence[AuditReport]
    ) -> None:
        """The log in [start, end), which has no gap. `reports` are in the order of all ranges."""
        self._torn, self._last_time, self._expected = None, 0, start
        for span in spans:
            self._range(span, reports[span.number])
        if self._torn is not None:
            reader = LogReader(self._log.segments, Bounds(start, min(end, self._log.end)))
            self._check.add_end(reader, self._torn)

    def _range(self, span: ScanRange, found: AuditReport) -> None:
        if self._torn is None:
            if self._expected >= span.stop:
                # A record, or the filler, reaches over all of it.
                self.repaired |= found.ends.first is not None
                return
            if self._starts_at(found) != self._expected:
                self.repaired |= found.ends.first is not None
                found = self._again(replace(span, start=self._expected, is_proven=True))
            self._keep(found)
            return
        if found.ends.first is None:
            return
        first: int | None = found.ends.first
        if found.first_time < self._last_time:
            start = max(self._torn.position + 1, span.start)
            first = next_record(self._log, start, self._last_time, span.stop)
            if first is None:
                return
            found = self._again(replace(span, start=first, is_proven=True))
        assert first is not None
        where = str(self._log.segment_at(self._torn.position).path)
        self._check.add_damage(Damage(where, self._torn, first))
        self._torn = None
        # The bytes before the first record are part of the same damage.
        found.damages = [one for one in found.damages if one.torn.position > first]
        self._keep(found)

    @staticmethod
    def _starts_at(found: AuditReport) -> int | None:
        """Where the task began to read, if anything stood there, a record or damage."""
        places = [damage.torn.position for damage in found.damages]
        places += [] if found.ends.first is None else [found.ends.first]
        places += [] if found.ends.torn is None else [found.ends.torn.position]
        return min(places, default=None)

    def _keep(self, found: AuditReport) -> None:
        for damage in found.damages:
            self._check.add_damage(damage)
        self.kept.append(found)
        self._last_time = found.last_time or self._last_time
        self._torn, self._expected = found.ends.torn, found.ends.end
