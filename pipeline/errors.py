"""What the Spark sources raise: of an error only the text survives the way through Spark.

So each begins with a condition in brackets that never changes, `[KEELOG_…]`, says what is wrong and
where, and ends with what to try.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from protocol.errors import (
    BadRequest,
    CorruptError,
    MqError,
    NotAStore,
    NotConnected,
    RefusedError,
    RequestTimeout,
)


class SourceError(RefusedError):
    """The base of all of them. `condition` is what stands in the brackets."""

    condition: ClassVar[str] = "KEELOG_FAILED"

    def __str__(self) -> str:
        tail = f". Try: {self.hint}" if self.hint else ""
        return f"[{self.condition}] {self.reason}{tail}"


class NotAStoreError(SourceError):
    """The path does not exist, is a file, or holds no `commitlog/`."""

    condition = "KEELOG_NOT_A_STORE"


class UnknownOption(SourceError):
    """There is no option of that name, or the table does not take it."""

    condition = "KEELOG_UNKNOWN_OPTION"


class BadOption(SourceError):
    """An option has a value that it does not take, or two contradict each other."""

    condition = "KEELOG_BAD_OPTION"


class UnknownColumn(SourceError):
    """The table has no column of that name, or one of another type."""

    condition = "KEELOG_UNKNOWN_COLUMN"


class UnknownTopic(SourceError):
    """No store that is read has the topic, or the queue."""

    condition = "KEELOG_UNKNOWN_TOPIC"


class OffsetOutOfRange(SourceError):
    """A starting or ending offset lies beyond the end of its queue, or they are in wrong order."""

    condition = "KEELOG_OFFSET_OUT_OF_RANGE"


class DataLoss(SourceError):
    """Messages that were asked for are not there any more."""

    condition = "KEELOG_DATA_LOSS"


class BadCheckpoint(SourceError):
    """The offsets of a stream's checkpoint are none of this source."""

    condition = "KEELOG_BAD_CHECKPOINT"


class TargetMoved(SourceError):
    """What an availableNow query set out to read is not what is there any more."""

    condition = "KEELOG_TARGET_MOVED"


class CorruptRecord(SourceError):
    """Bytes within the log are no record, or a queue unit leads to none."""

    condition = "KEELOG_CORRUPT_RECORD"


class StoreDamagedError(SourceError):
    """Files of the store are missing, short or unreadable."""

    condition = "KEELOG_STORE_DAMAGED"


class StoreUnreadable(SourceError):
    """The operating system refuses the files, or they are not on a file system."""

    condition = "KEELOG_STORE_UNREADABLE"


class NodeUnreachable(SourceError):
    """A node did not answer for as long as it was given."""

    condition = "KEELOG_NODE_UNREACHABLE"


class NodeBusyError(SourceError):
    """A node cannot take what is written now: it is full, stopping or starting."""

    condition = "KEELOG_NODE_BUSY"


class NodeRefused(SourceError):
    """A node does not take what is written."""

    condition = "KEELOG_NODE_REFUSED"


class BadMode(SourceError):
    """The save mode or output mode is none that a log can have."""

    condition = "KEELOG_BAD_MODE"


class BadRow(SourceError):
    """A row is no message that can be stored."""

    condition = "KEELOG_BAD_ROW"


class JavaMissing(SourceError):
    """No Java that Spark runs on was found."""

    condition = "KEELOG_JAVA_MISSING"


class IncompatiblePyspark(SourceError):
    """pyspark is missing, or of a release that these sources do not run on."""

    condition = "KEELOG_INCOMPATIBLE_PYSPARK"


class ExportMismatch(SourceError):
    """The folder holds something else than an earlier part of this very export."""

    condition = "KEELOG_EXPORT_MISMATCH"


class ExportBusy(SourceError):
    """Another export writes to the folder."""

    condition = "KEELOG_EXPORT_BUSY"


class ExportUnwritable(SourceError):
    """The operating system, or the object store, refuses what an export writes."""

    condition = "KEELOG_EXPORT_UNWRITABLE"


class EngineFailed(SourceError):
    """Spark itself failed: it did not start, or lost its executors."""

    condition = "KEELOG_ENGINE_FAILED"


class StoreLockedError(SourceError):
    """A node, a broker or another job owns the store, or the folder that a job writes."""

    condition = "KEELOG_STORE_LOCKED"


class JobFailed(SourceError):
    """A job of ours found what it cannot go on with; nothing was switched in."""

    condition = "KEELOG_JOB_FAILED"


@contextmanager
def naming_conditions() -> Iterator[None]:
    """Gives errors of the store, raised inside, the condition that users see."""
    try:
        yield
    except SourceError:
        raise
    except NotAStore as error:
        raise NotAStoreError(error.reason, error.hint) from None
    except BadRequest as error:
        raise BadOption(error.reason, error.hint) from None
    except CorruptError as error:
        raise StoreDamagedError(error.reason, error.hint) from None
    except (NotConnected, RequestTimeout) as error:
        raise NodeUnreachable(
            error.reason, "start the node, or a larger fetch.timeoutMs; see keelog health"
        ) from None
    except MqError as error:
        raise StoreUnreadable(error.reason, error.hint) from None
