"""`keelog spark …`: the Spark jobs."""

import click

from keelog.cli.options import Group
from keelog.cli.spark_audit import audit
from keelog.cli.spark_export import export
from keelog.cli.spark_rebuild import rebuild
from keelog.cli.spark_stats import stats


@click.group(cls=Group)
def spark() -> None:
    """Runs a Spark job on a store directory, here or on a cluster; needs no node.

    Each takes --master, and --conf for Spark's own settings. Under spark-submit both are those
    of spark-submit.

    Example: keelog spark audit ./store
    """


for command in (rebuild, audit, export, stats):
    spark.add_command(command)
