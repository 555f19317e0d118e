"""Errors that come back through Spark, as errors of ours again: only their text is left."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import KINDS, EngineFailed
from protocol.errors import MqError, RefusedError

_OURS = re.compile(r"\[(KEELOG_[A-Z_]+)\] ([^\n]*)")
_TRY = ". Try: "


@contextmanager
def naming_engine_failures(what: str) -> Iterator[None]:
    """Raises the error of ours that a task raised, else EngineFailed: `what`, and Spark's words."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise named(str(error), what) from None


def named(text: str, what: str) -> MqError:
    """Returns the error of ours in Spark's text, of its own kind; without one an EngineFailed."""
    found = _OURS.search(text)
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return EngineFailed(
            f"{what}: {' '.join(lines[:2])[:500]}", "the same with --debug, and Spark's own log"
        )
    reason, _, hint = found[2].partition(_TRY)
    return KINDS.get(found[1], RefusedError).worded(found[1], reason, hint)
