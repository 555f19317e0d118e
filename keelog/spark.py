"""Spark over store directories: sessions, jobs, and figures of a DataFrame.

    from keelog.spark import local_session

    spark = local_session("orders")
    spark.read.format("keelog").load("./store").groupBy("topic").count().show()

It needs the extra `spark`. `format("keelog")` itself needs no import.
"""

from keelog.pipeline.session import check_pyspark

# First: what is imported below takes pyspark as given.
check_pyspark()

from keelog.pipeline.jobs.audit import audit, findings_frame
from keelog.pipeline.jobs.export import export, export_here, read_export
from keelog.pipeline.jobs.publication import read_rebuild
from keelog.pipeline.jobs.rebuild import rebuild
from keelog.pipeline.jobs.stats import COLUMNS as STATS_COLUMNS
from keelog.pipeline.jobs.stats import rates, stats_by_topic, top_keys
from keelog.pipeline.micro_batch import lag, lag_by_queue
from keelog.pipeline.options import ExportOptions
from keelog.pipeline.session import local_session, open_session, register

__all__ = [
    "STATS_COLUMNS",
    "ExportOptions",
    "audit",
    "export",
    "export_here",
    "findings_frame",
    "lag",
    "lag_by_queue",
    "local_session",
    "open_session",
    "rates",
    "read_export",
    "read_rebuild",
    "rebuild",
    "register",
    "stats_by_topic",
    "top_keys",
]
