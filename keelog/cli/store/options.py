"""Shared by the commands on store directories: the directory, the form of bodies, opening."""

from collections.abc import Iterable
from pathlib import Path

import click

from keelog.cli.failures import doing
from keelog.cli.options import options
from node.runtime.settings import load_settings
from node.store.opening import StoppedStore, open_store

directory = click.argument("path", metavar="DIR", type=click.Path(readable=False, path_type=Path))
derived_options = options(
    click.option("--queues", is_flag=True, help="Only consumequeue/, unless --index is there too."),
    click.option("--index", is_flag=True, help="Only index/, unless --queues is there too."),
)
"""Which derived files: both when neither option is given."""


def opened(path: Path, pairs: Iterable[str]) -> StoppedStore:
    """The store, opened read-only; -X settings name sizes that cannot be found."""
    with doing(f"cannot open the store {path}"):
        return open_store(path, load_settings(pairs))
