"""`keelog spark …`: the Spark jobs."""

import click

from keelog.cli.options import CliGroup
from keelog.cli.spark.audit import audit
from keelog.cli.spark.export import export
from keelog.cli.spark.rebuild import rebuild
from keelog.cli.spark.stats import stats


@click.group(cls=CliGroup)
def spark() -> None:
    """Runs a Spark job on a store directory, here or on a cluster; needs no node.

    Each takes --master, and --conf for Spark's own settings. Under spark-submit both are those
    of spark-submit.

    Example: keelog spark audit ./store
    """


for command in (rebuild, audit, export, stats):
    spark.add_command(command)
