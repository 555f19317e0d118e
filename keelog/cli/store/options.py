"""What the commands on store directories share: the directory, how bodies are shown, opening."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from keelog.cli.failures import doing
from node.runtime.settings import load_settings
from node.store.opening import StoppedStore, open_store

Function = TypeVar("Function", bound=Callable[..., Any])


def directory(function: Function) -> Function:
    """Adds the argument DIR as `path`."""
    return click.argument("path", metavar="DIR", type=click.Path(readable=False, path_type=Path))(
        function
    )


def body_options(function: Function) -> Function:
    """Adds --raw-body and --no-body."""
    for name, text in (
        ("--no-body", "Leaves bodies out."),
        ("--raw-body", "Bodies as base64, text or not."),
    ):
        function = click.option(name, is_flag=True, help=text)(function)
    return function


def opened(path: Path, pairs: Iterable[str]) -> StoppedStore:
    """The store, opened read-only; -X settings name sizes that cannot be found."""
    with doing(f"cannot open the store {path}"):
        return open_store(path, load_settings(pairs))
