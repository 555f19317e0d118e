"""Spark on the files of a store: batch sources over directories, ours or a broker's."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Makes the formats `keelog`, `keelog_queues` and `keelog_index` known to a session.

    Raises IncompatiblePyspark.
    """
    from keelog.pipeline.session import check_pyspark
    from keelog.pipeline.source import SOURCES

    check_pyspark()
    for source in SOURCES:
        # Spark finds `keelog` by itself where it is installed, and warns of a second one.
        if not _is_known(spark, source.name()):
            spark.dataSource.register(source)


def _is_known(spark: "SparkSession", name: str) -> bool:
    """True if the session has a format of this name. A session of Spark Connect cannot say."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))
