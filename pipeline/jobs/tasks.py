"""Runs a function over items as Spark tasks: each does its own reading and writing, and returns
a small summary."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from pipeline.errors import naming_engine_failures

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def run_tasks(
    spark: SparkSession, what: str, function: Callable[[Item], Answer], items: Sequence[Item]
) -> list[Answer]:
    """`function` of each item, one task each, in their order.

    A task may run twice, also at the same time, so `function` must be harmless then. It and the
    items are pickled. Raises the MqError that a task raised, else EngineFailed.
    """
    if not items:
        return []
    context = spark.sparkContext
    context.setJobDescription(what)
    with naming_engine_failures(f"{what} failed"):
        return context.parallelize(items, len(items)).map(function).collect()
