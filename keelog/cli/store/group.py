"""`keelog store …`: reads, checks and repairs a store directory, without a node."""

import click

from keelog.cli.options import CliGroup
from keelog.cli.store.check import info, rebuild, verify
from keelog.cli.store.dump import dump
from keelog.cli.store.export import export
from keelog.cli.store.look import find, get, seek
from keelog.cli.store.repair import repair


@click.group(cls=CliGroup)
def store() -> None:
    """Reads, checks and repairs a store directory; needs no node.

    Works on a directory that a RocketMQ broker wrote, too. Nothing is changed, except by
    `repair --apply` and `rebuild`.

    Example: keelog store dump ./store --limit 10
    """


for command in (info, dump, get, find, seek, verify, repair, rebuild, export):
    store.add_command(command)
