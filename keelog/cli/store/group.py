"""`keelog store …`: reads, checks, copies and repairs a store directory, without a node."""

import click

from keelog.cli.options import CliGroup
from keelog.cli.store.check import info, rebuild, repair, verify
from keelog.cli.store.copies import backup, export, restore
from keelog.cli.store.look import dump, find, get, seek


@click.group(cls=CliGroup)
def store() -> None:
    """Reads, checks, copies and repairs a store directory; needs no node.

    Works on a directory that a RocketMQ broker wrote, too. A store is changed by `repair --apply`
    and `rebuild` alone.

    Example: keelog store dump ./store --limit 10
    """


for command in (
    *(info, dump, get, find, seek, verify),
    *(backup, restore, repair, rebuild, export),
):
    store.add_command(command)
