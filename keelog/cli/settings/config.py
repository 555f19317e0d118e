"""`keelog config`: shows, checks, writes and imports settings."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from keelog.cli import contexts
from keelog.cli.failures import OK, doing
from keelog.cli.options import (
    CliGroup,
    node_option,
    output_options,
    settings_given_options,
)
from keelog.cli.output import Output
from keelog.cli.settings.broker_conf import import_conf
from keelog.cli.settings.config_file import some_lines, whole_file
from keelog.cli.settings.given import (
    BROKER,
    STORE,
    TABLES,
    Given,
    kind_of,
    read_file,
    settings_of,
)
from protocol.addresses import without_credentials
from protocol.errors import MqError


class BadSettingsFile(MqError):
    """A settings file that no node would start with."""


@click.group("config", cls=CliGroup)
def config() -> None:
    """Shows settings and where they come from; checks, writes and imports settings files.

    Example: keelog config show --origin

    Example: keelog config init > keelog.toml
    """


@config.command("show")
@click.option("--origin", is_flag=True, help="Adds the default, and where the value comes from.")
@node_option
@settings_given_options
@output_options
def show(origin: bool, node: str, given: tuple[Given, ...], output: Output) -> int:
    """Shows each setting as `keelog serve` with the same options would have it.

    The last of --config, variables KEELOG_STORE__NAME and KEELOG_SERVE__NAME, and -X wins; options
    of `keelog serve` go before all of them. The first row is the node that other commands would
    talk to: --node, a context named with -c, KEELOG_NODE, KEELOG_CONTEXT,
    the context in use, or the default.

    Example: keelog config show

    Example: keelog config show --origin -X store.flush_disk_type=SYNC_FLUSH -X serve.http=7855
    """
    with doing("cannot show the settings"):
        settings = {table: settings_of(table, given) for table in TABLES}
    by_name = {(one.table, one.name): one for one in given}
    place = contexts.chosen(click.get_current_context(), node)
    rows = [
        _row(
            "node", without_credentials(place.url), contexts.DEFAULT_NODE, place.origin, place.where
        )
    ]
    for table in TABLES:
        for field in dataclasses.fields(kind_of(table)):
            one = by_name.get((table, field.name), Given("", "default", ""))
            value = getattr(settings[table], field.name)
            rows.append(_row(f"{table}.{field.name}", value, field.default, one.origin, one.where))
    names = ("setting", "value", "default", "origin", "where") if origin else ("setting", "value")
    output.rows([{name: row[name] for name in names} for row in rows])
    return OK


def _row(*values: Any) -> dict[str, Any]:
    return dict(zip(("setting", "value", "default", "origin", "where"), values, strict=True))


@config.command("check")
@click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@output_options
def check(file: Path, output: Output) -> int:
    """Says all that is wrong with a settings file: unknown names, wrong kinds, wrong values.

    Ends with 0 when `keelog serve DIR --config FILE` would take it, with 1 when not.

    Example: keelog config check keelog.toml
    """
    with doing(f"cannot check {file}"):
        _, problems = read_file(file)
    output.rows((problem._asdict() for problem in problems), ("line", "setting", "problem", "hint"))
    if not problems:
        return OK
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    where = f"line {first.line}: " if first.line else ""
    with doing(f"{file} is not as it should be"):
        raise BadSettingsFile(f"{where}{first.problem}{more}", first.hint)


@config.command("init")
@click.option("--commented", is_flag=True, help="None in force: take the # away where needed.")
def init(commented: bool) -> int:
    """Prints a settings file with all settings, their defaults, and what each does.

    Example: keelog config init > keelog.toml

    Example: keelog config init --commented
    """
    click.echo(whole_file(commented), nl=False)
    return OK


@config.command("import")
@click.argument(
    "file", metavar="BROKER_CONF", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def import_(file: Path) -> int:
    """Prints the settings of a RocketMQ broker's properties file as a settings file.

    What has no counterpart here is listed on stderr, each with the reason.

    Example: keelog config import broker.conf > keelog.toml
    """
    with doing(f"cannot import {file}"):
        # Properties are latin-1 with \\uXXXX; comments in other encodings do no harm.
        imported = import_conf(file.read_text(encoding="latin-1"))
    head = f"{len(imported.settings) + len(imported.broker)} settings of {file.name!a}"
    tables = {BROKER: imported.broker, STORE: imported.settings}
    click.echo(some_lines(tables, head), nl=False)
    for name, why in imported.left_out.items():
        click.echo(f"left out {name!a}: {why}", err=True)
    return OK
