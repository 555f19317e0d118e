"""Spark on the files of a store: batch sources over directories, ours or a broker's."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Makes the formats `keelog`, `keelog_queues` and `keelog_index` known to a session.

    Raises IncompatiblePyspark.
    """
    from pipeline.session import check_pyspark
    from pipeline.source import SOURCES

    check_pyspark()
    for source in SOURCES:
        spark.dataSource.register(source)
