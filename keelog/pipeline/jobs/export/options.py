"""The options of an export. Light: this module imports no Arrow."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from keelog.pipeline.options import OnCorrupt


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export. Without topics, tags and times: every record of the log.

    Texts are as the source's options have them. `from_ms` and `to_ms` are store times, ms since
    1970; `to_ms` is exclusive, and may be later in the next run. `source` holds further options of
    the source (`store.…`, `maxPartitionBytes`, `minPartitions`, `failOnDataLoss`). A file is closed
    when it has `file_bytes_max`. Without `by_topic` there are folders by day alone.
    """

    topics: str | None = None
    tags: str | None = None
    columns: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    on_corrupt: OnCorrupt = "fail"
    file_bytes_max: int = 512 << 20
    by_topic: bool = True
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_queues(self) -> bool:
        """Whether queues lead to the messages; else the log is read from end to end."""
        return any(
            asked is not None for asked in (self.topics, self.tags, self.from_ms, self.to_ms)
        )
