"""`keelog serve`: a node in the foreground."""

from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

import keelog
from keelog.cli import settings
from keelog.cli.failures import doing
from keelog.cli.options import command, settings_given_options
from keelog.cli.options import options as several
from node.supervisor.options import BrokerSettings, NetworkSettings, Options, ServeSettings
from protocol.errors import BadRequest

_METAVARS = {
    "bind": "URL",
    "advertise": "HOST,PORTS",
    "http": "ADDRESS",
    "readers": "M",
    "remoting": "HOST:PORT",
    "namesrv": "'HOST:PORT;…'",
    "controller": "'HOST:PORT;…'",
    "ha": "HOST:PORT",
    "console": "ADDRESS",
    "console_read": "WHO",
    "console_hosts": "NAME,NAME",
    "console_path": "/PATH",
    "broker_name": "NAME",
    "cluster": "NAME",
}
_SHORT = {
    "namesrv_addr": "namesrv",
    "controller_addr": "controller",
    "broker_cluster_name": "cluster",
    "ha_listen": "ha",
}
"""Settings with RocketMQ's names, whose options are shorter."""


_OPTIONS: dict[str, tuple[str, "Field[Any]"]] = {
    _SHORT.get(field.name, field.name): (table, field)
    for table, kind in (
        (settings.SERVE, ServeSettings),
        (settings.NETWORK, NetworkSettings),
        (settings.BROKER, BrokerSettings),
    )
    for field in fields(kind)
}
"""Settings that are options too, and their tables; by their names as parameters."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


serve_options = several(
    *(
        click.option(
            _option(name),
            name,
            type=type(field.default),
            metavar=_METAVARS.get(name, "N"),
            help=f"{(text := settings.plain_meaning(field))[0].upper()}{text[1:]}."
            + (f"  [default: {field.default}]" if field.default != "" else ""),
        )
        for name, (_, field) in _OPTIONS.items()
    )
)
"""An option for each of _OPTIONS; None where it is not given."""


def _origins(given: Sequence[settings.Given]) -> list[dict[str, str]]:
    """The origin of each setting, for the node's status; the last of a name wins."""
    said = {f"{one.table}.{one.name}": one for one in given}
    return [
        {"setting": name, "origin": one.origin, "where": one.where} for name, one in said.items()
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
@click.option(
    "--follow",
    metavar="HOST:PORT",
    help="Copies the log of this master, whose replication is there, instead of taking appends; "
    "or namesrv:HOST:PORT/BROKERNAME.",
)
@settings_given_options
def serve(
    directory: Path,
    given: tuple[settings.Given, ...],
    while_pid: int | None,
    follow: str | None,
    **options: Any,
) -> int:
    """Runs a node on the store in DIR, which is made when absent.

    It stays in the foreground; SIGTERM or Ctrl-C stops it in order. One line `ready …` on stderr
    says that appends are accepted. What an option does not say, --config, a variable
    KEELOG_SERVE__NAME or -X serve.name may.

    Example: keelog serve ./store

    Example: keelog serve ./store --http 7855

    Example: keelog serve ./copy --follow 192.0.2.7:10912

    Example: keelog serve ./store --bind tcp://127.0.0.1:0 -X store.flush_disk_type=SYNC_FLUSH
    """
    from node.supervisor.plan import RestartLimits

    with doing(f"cannot serve {directory}"):
        if follow is not None:
            given = (*given, settings.Given(f"follow={follow}", "option", "--follow"))
        said = {name: value for name, value in options.items() if value is not None}
        for name, value in said.items():
            table, field = _OPTIONS[name]
            pair = f"{table}.{field.name}={value}"
            given = (*given, settings.Given(pair, "option", _option(name)))
        tables = {table: settings.settings_of(table, given) for table in settings.OF_NODE}
        asked: ServeSettings = tables[settings.SERVE]
        for name, value in said.items():
            if _OPTIONS[name][0] == settings.BROKER and value != "" and not asked.remoting:
                raise BadRequest(
                    f"{_option(name)} is for RocketMQ's clients, and none is served",
                    "add --remoting HOST:PORT, as --remoting 0.0.0.0:10911",
                )
        node = Options(
            root=directory.resolve(),
            serve=asked,
            network=tables[settings.NETWORK],
            broker=tables[settings.BROKER],
            # Files and variables may speak of more than a store.
            pairs=tuple(one.pair for one in given if one.table == settings.STORE),
            origins=_origins(given),
            limits=RestartLimits(
                crashes_max=asked.restart_limit, silence_s_max=tables[settings.NODE].silence_limit_s
            ),
            version=keelog.__version__,
            while_pid=while_pid,
        )
        if node.broker.controller_addr:  # below a keeper, where controllers elect the master
            from keelog.cli.node.elected import serve_elected

            return serve_elected(node)
        from node.supervisor.loop import serve as serve_node

        return serve_node(node)
