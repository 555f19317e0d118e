"""What sources and jobs tell their users: what they raise, and their log without credentials.

Of an error only the text survives the way through Spark. So the text begins with a condition in
brackets that never changes, `[KEELOG_…]`, says what is wrong and where, and ends with what to try.
Errors of the store and of the client keep their kinds, and get a condition where they leave for
Spark; the kinds below are of Spark's sources and jobs alone.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from protocol import addresses, errors

log = logging.getLogger("keelog.pipeline")
_OF_STORES: Mapping[str, type[errors.MqError]] = {
    "KEELOG_NOT_A_STORE": errors.NotAStore,
    "KEELOG_UNKNOWN_TOPIC": errors.UnknownTopic,
    "KEELOG_OFFSET_OUT_OF_RANGE": errors.OffsetOutOfRange,
    "KEELOG_STORE_DAMAGED": errors.StoreDamaged,
    "KEELOG_BAD_OPTION": errors.BadRequest,
}
_CONDITION = re.compile(r"\[(KEELOG_[A-Z_]+)\] ([^\n]*)")
_TRY = ". Try: "


class UnknownOption(errors.BadRequest):
    """There is no option of that name, or the table does not take it."""

    condition = "KEELOG_UNKNOWN_OPTION"


class BadOption(errors.BadRequest):
    """An option has a value that it does not take, or two contradict each other."""

    condition = "KEELOG_BAD_OPTION"


class UnknownColumn(errors.BadRequest):
    """The table has no column of that name, or one of another type."""

    condition = "KEELOG_UNKNOWN_COLUMN"


class _Refused(errors.RefusedError):
    def __init_subclass__(cls, condition: str) -> None:
        cls.condition = condition


class DataLoss(_Refused, condition="KEELOG_DATA_LOSS"):
    """Messages that were asked for are not there any more."""


class BadCheckpoint(_Refused, condition="KEELOG_BAD_CHECKPOINT"):
    """A stream's checkpoint holds offsets of another source."""


class TargetMoved(_Refused, condition="KEELOG_TARGET_MOVED"):
    """What an availableNow query set out to read is not what is there any more."""


class CorruptRecord(_Refused, condition="KEELOG_CORRUPT_RECORD"):
    """Bytes within the log form no record, or a queue unit leads to none."""


class StoreUnreadable(_Refused, condition="KEELOG_STORE_UNREADABLE"):
    """The operating system refuses the files, or they are not on a file system."""


class BadMode(_Refused, condition="KEELOG_BAD_MODE"):
    """The save mode or output mode is none that a log can have."""


class BadRow(_Refused, condition="KEELOG_BAD_ROW"):
    """A row cannot be stored as a message."""


class BadKeyFile(_Refused, condition="KEELOG_BAD_KEY"):
    """A file of keys is missing on a machine, holds none, or others may read it."""


class JavaMissing(_Refused, condition="KEELOG_JAVA_MISSING"):
    """No Java that Spark runs on was found."""


class IncompatiblePyspark(_Refused, condition="KEELOG_INCOMPATIBLE_PYSPARK"):
    """pyspark is missing, or of a release that these sources do not run on."""


class ExportMismatch(_Refused, condition="KEELOG_EXPORT_MISMATCH"):
    """The folder holds something else than an earlier part of this very export."""


class ExportUnwritable(_Refused, condition="KEELOG_EXPORT_UNWRITABLE"):
    """The operating system, or the object store, refuses what an export writes."""


class EngineFailed(_Refused, condition="KEELOG_ENGINE_FAILED"):
    """Spark itself failed: it did not start, or lost its executors."""


class JobFailed(_Refused, condition="KEELOG_JOB_FAILED"):
    """A job of ours found what it cannot go on with; nothing was switched in."""


KINDS: Mapping[str, type[errors.MqError]] = {
    **_OF_STORES,
    "KEELOG_CODEC_MISSING": errors.CodecMissing,
    "KEELOG_STORE_LOCKED": errors.StoreLocked,
    "KEELOG_EXPORT_BUSY": errors.StoreLocked,
    "KEELOG_NODE_UNREACHABLE": errors.NotConnected,
    "KEELOG_NODE_BUSY": errors.BusyError,
    "KEELOG_NODE_REFUSED": errors.RefusedError,
    **{
        kind.condition: kind
        for kind in tuple(vars().values())
        if isinstance(kind, type) and issubclass(kind, errors.MqError) and kind.condition
    },
}
"""Every condition that users may see, and the kind of error that has it."""


def few(texts: Iterable[object], most: int = 10) -> str:
    """Returns the first ones with commas between, and how many more there are."""
    listed = [str(text) for text in texts]
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest


@contextmanager
def naming_conditions() -> Iterator[None]:
    """Gives errors of the store, raised inside, the condition that users see."""
    try:
        yield
    except errors.MqError as error:
        if error.condition:
            raise
        if isinstance(error, errors.NotConnected | errors.RequestTimeout):
            hint = (
                "start the node, or a larger fetch.timeoutMs; see keelog health; a node with keys"
                " needs key and serverKey"
            )
            raise errors.NotConnected.worded(
                "KEELOG_NODE_UNREACHABLE", error.reason, hint
            ) from None
        if isinstance(error, errors.NotAllowed):
            raise errors.RefusedError.worded(
                "KEELOG_NODE_REFUSED", error.reason, error.hint
            ) from None
        for condition, kind in _OF_STORES.items():
            if isinstance(error, kind):
                error.condition = condition
                raise error from None
        raise StoreUnreadable(error.reason, error.hint) from None


@contextmanager
def naming_node(node: str) -> Iterator[None]:
    """Gives errors of the client, raised inside, a condition and the node's address."""
    try:
        yield
    except errors.MqError as error:
        if error.condition:
            raise
        what = f"node {node}: {error.reason}"
        if isinstance(error, errors.NotConnected | errors.RequestTimeout):
            raise errors.NotConnected.worded("KEELOG_NODE_UNREACHABLE", what, error.hint) from None
        if isinstance(error, errors.BusyError):
            raise errors.BusyError.worded("KEELOG_NODE_BUSY", what, error.hint) from None
        what = f"node {node}: {type(error).__name__}: {error.reason}"
        raise errors.RefusedError.worded("KEELOG_NODE_REFUSED", what, error.hint) from None


@contextmanager
def naming_engine_failures(what: str) -> Iterator[None]:
    """Raises the error of ours that a task raised, else EngineFailed: `what`, and Spark's words."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise named(str(error), what) from None


def named(text: str, what: str) -> errors.MqError:
    """Returns the error of ours in Spark's text, of its own kind; without one an EngineFailed."""
    found = _CONDITION.search(text)
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return EngineFailed(
            f"{what}: {' '.join(lines[:2])[:500]}", "the same with --debug, and Spark's own log"
        )
    reason, _, hint = found[2].partition(_TRY)
    return KINDS.get(found[1], errors.RefusedError).worded(found[1], reason, hint)


def _clean(record: logging.LogRecord) -> bool:
    record.msg, record.args = addresses.without_credentials(record.getMessage()), ()
    return True


log.addFilter(_clean)
