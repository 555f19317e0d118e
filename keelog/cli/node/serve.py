"""`keelog serve`: a node in the foreground."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from keelog.cli.failures import doing
from keelog.cli.options import command, settings_given_options, version
from keelog.cli.settings.config_file import plain_meaning
from keelog.cli.settings.given import (
    BROKER,
    NETWORK,
    NODE,
    SERVE,
    Given,
    settings_of,
    store_pairs,
)
from node.supervisor.options import NetworkSettings, ServeSettings

_METAVARS = {
    "bind": "URL",
    "advertise": "HOST",
    "http": "ADDRESS",
    "readers": "M",
    "remoting": "HOST:PORT",
}
_TABLES = {
    field.name: table
    for table, kind in ((SERVE, ServeSettings), (NETWORK, NetworkSettings))
    for field in fields(kind)
}
"""The table of each setting that is an option too."""


def serve_options(function: Callable[..., int]) -> Callable[..., int]:
    """Adds an option for each of ServeSettings and NetworkSettings; None where it is not given."""
    for field in reversed((*fields(ServeSettings), *fields(NetworkSettings))):
        text = plain_meaning(field)
        shown = f"  [default: {field.default}]" if field.default != "" else ""
        function = click.option(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            metavar=_METAVARS.get(field.name, "N"),
            help=f"{text[0].upper()}{text[1:]}.{shown}",
        )(function)
    return function


def origins(given: Sequence[Given], options: Iterable[str]) -> list[dict[str, str]]:
    """The origin of each setting, for the node's status; options win, then the last of a name."""
    said = {f"{one.table}.{one.name}": (one.origin, one.where) for one in given}
    for name in options:
        said[f"{_TABLES[name]}.{name}"] = ("option", f"--{name.replace('_', '-')}")
    return [
        {"setting": name, "origin": origin, "where": where}
        for name, (origin, where) in said.items()
    ]


@command("serve")
@click.argument("directory", metavar="DIR", type=click.Path(readable=False, path_type=Path))
@serve_options
@click.option(
    "--while-pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Stops in order when this process ends, however it does.",
)
@settings_given_options
def serve(directory: Path, given: tuple[Given, ...], while_pid: int | None, **options: Any) -> int:
    """Runs a node on the store in DIR, which is made when absent.

    It stays in the foreground; SIGTERM or Ctrl-C stops it in order. One line `ready …` on stderr
    says that appends are accepted. What an option does not say, --config, a variable
    KEELOG_SERVE__NAME or -X serve.name may.

    Example: keelog serve ./store

    Example: keelog serve ./store --http 7855

    Example: keelog serve ./store --bind tcp://127.0.0.1:0 -X store.flush_disk_type=SYNC_FLUSH
    """
    from node.supervisor.loop import serve
    from node.supervisor.options import Options
    from node.supervisor.plan import RestartLimits

    with doing(f"cannot serve {directory}"):
        said = {name: value for name, value in options.items() if value is not None}
        tables = {
            table: replace(
                settings_of(table, given),
                **{name: value for name, value in said.items() if _TABLES[name] == table},
            )
            for table in (SERVE, NETWORK)
        }
        asked: ServeSettings = tables[SERVE]
        return serve(
            Options(
                root=directory.resolve(),
                serve=asked,
                network=tables[NETWORK],
                broker=settings_of(BROKER, given),
                pairs=store_pairs(given),
                origins=origins(given, said),
                limits=RestartLimits(
                    crashes_max=asked.restart_limit,
                    silence_s_max=settings_of(NODE, given).silence_limit_s,
                ),
                version=version(),
                while_pid=while_pid,
            )
        )
