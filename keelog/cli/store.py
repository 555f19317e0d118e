"""`keelog store …`: reads, checks and repairs a store directory, without a node."""

import click

from keelog.cli.options import Group
from keelog.cli.store_check import info, rebuild, verify
from keelog.cli.store_dump import dump
from keelog.cli.store_export import export
from keelog.cli.store_look import find, get, seek
from keelog.cli.store_repair import repair


@click.group(cls=Group)
def store() -> None:
    """Reads, checks and repairs a store directory; needs no node.

    Works on a directory that a RocketMQ broker wrote, too. Nothing is changed, except by
    `repair --apply` and `rebuild`.

    Example: keelog store dump ./store --limit 10
    """


for command in (info, dump, get, find, seek, verify, repair, rebuild, export):
    store.add_command(command)
