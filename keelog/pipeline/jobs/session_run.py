"""How a job runs on Spark: in a session of its own that reports how far it is, and as tasks."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pyspark.sql import SparkSession

from keelog.pipeline.errors import naming_engine_failures
from keelog.pipeline.session import open_session

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_CONF = {"spark.ui.showConsoleProgress": "false"}
"""Spark's own bar, which `say` replaces."""
_QUIET_S = 2.0
"""What takes no longer than this says nothing of how far it is."""
_REPORT_EVERY_S = 1.0


def run_job(
    job: Callable[[SparkSession], Answer],
    master: str,
    conf: Mapping[str, str],
    say: Callable[[str], None],
) -> Answer:
    """Returns what `job` returns. `say` gets a line a second on how far the running stages are.

    Raises JavaMissing, IncompatiblePyspark, EngineFailed, and what the job or its tasks raise.
    """
    spark = open_session("keelog", master, {**_CONF, **conf})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        with _reporting(spark, say), naming_engine_failures("the job failed"):
            return job(spark)
    finally:
        spark.stop()


@contextmanager
def _reporting(spark: SparkSession, say: Callable[[str], None]) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(spark, say, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(spark: SparkSession, say: Callable[[str], None], ended: threading.Event) -> None:
    tracker, began = spark.sparkContext.statusTracker(), time.monotonic()
    while not ended.wait(_REPORT_EVERY_S):
        if time.monotonic() - began < _QUIET_S:
            continue
        for number in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                say(f"stage {number}: {stage.numCompletedTasks} of {stage.numTasks} tasks")


def run_tasks(
    spark: SparkSession, what: str, function: Callable[[Item], Answer], items: Sequence[Item]
) -> list[Answer]:
    """Returns `function` of each item, one task each, in their order.

    A task may run twice, also at the same time, so `function` must be harmless then. It and the
    items are pickled. Raises the MqError that a task raised, else EngineFailed.
    """
    if not items:
        return []
    context = spark.sparkContext
    context.setJobDescription(what)
    with naming_engine_failures(f"{what} failed"):
        return context.parallelize(items, len(items)).map(function).collect()
