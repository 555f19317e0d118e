"""What many commands share: --node, -X and --config, --format, --debug."""

import importlib.metadata
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from keelog.cli.output import FORMATS, Output
from protocol.errors import BadRequest

DEFAULT_NODE = "tcp://127.0.0.1:9870"
_ENVIRONMENT_PREFIX = "KEELOG_STORE__"

Function = TypeVar("Function", bound=Callable[..., Any])


def version() -> str:
    """The installed version, or 0+unknown in a bare source tree."""
    try:
        return importlib.metadata.version("keelog")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """The callback of --version."""
    if wanted and not ctx.resilient_parsing:
        click.echo(f"keelog {version()}")
        ctx.exit()


def debug_wanted() -> bool:
    """Whether tracebacks are to be shown: --debug anywhere before `--`, or KEELOG_DEBUG."""
    words = sys.argv[1:]
    if "--" in words:
        words = words[: words.index("--")]
    return "--debug" in words or bool(os.environ.get("KEELOG_DEBUG"))


class Command(click.Command):
    """A command with --debug, so that it may stand at the end of the line too."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, help="Shows tracebacks.")
        )

    @staticmethod
    def adopt(group: click.Group) -> None:
        """Makes `@group.command()` use this class."""
        group.command_class = Command


def command(name: str | None = None, **keywords: Any) -> Callable[[Callable[..., Any]], Command]:
    """As `click.command`, with --debug."""
    return click.command(name, cls=Command, **keywords)


def node_option(function: Function) -> Function:
    """Adds `node: str`: where the node is."""
    return click.option(
        "--node",
        envvar="KEELOG_NODE",
        default=DEFAULT_NODE,
        show_default=True,
        metavar="URL",
        help="Where the node is; KEELOG_NODE says it too.",
    )(function)


def output_options(function: Function) -> Function:
    """Adds --format, --json and --jsonl; the command gets `output: Output`."""

    def convert(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Output:
        short = ctx.params.pop("_format", None)
        return Output(value or short)

    def remember(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
        def note(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
            if wanted:
                ctx.params["_format"] = name

        return note

    for name, text in (("jsonl", "one object a line"), ("json", "one document")):
        function = click.option(
            f"--{name}",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=remember(name),
            help=f"As --format {name}: {text}.",
        )(function)
    return click.option(
        "--format",
        "output",
        type=click.Choice(FORMATS),
        callback=convert,
        help="Default: table on a terminal, jsonl otherwise.",
    )(function)


def settings_options(function: Function) -> Function:
    """Adds -X and --config; the command gets `pairs`: `name=value` texts for `load_settings`.

    The TOML file comes first, then KEELOG_STORE__… variables, then -X: the last one wins.
    """

    def convert(
        ctx: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
    ) -> tuple[str, ...]:
        config = ctx.params.pop("_config", None)
        from_file = config_pairs(Path(config)) if config else []
        return (*from_file, *environment_pairs(os.environ), *value)

    def remember(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        ctx.params["_config"] = value

    function = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="A TOML file with a table [store].",
    )(function)
    return click.option(
        "-X",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        callback=convert,
        help="Changes a setting, as -X store.flush_disk_type=SYNC_FLUSH.",
    )(function)


def environment_pairs(environment: Mapping[str, str]) -> list[str]:
    """`KEELOG_STORE__FLUSH_DISK_TYPE=x` as `store.flush_disk_type=x`."""
    return [
        f"store.{name.removeprefix(_ENVIRONMENT_PREFIX).lower()}={value}"
        for name, value in sorted(environment.items())
        if name.startswith(_ENVIRONMENT_PREFIX)
    ]


def config_pairs(path: Path) -> list[str]:
    """The table [store] of a TOML file as `store.name=value` texts. Raises BadRequest."""
    try:
        data = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is no TOML: {error}", "see docs for an example") from None
    unknown = sorted(set(data) - {"store"})
    if unknown:
        raise BadRequest(f"{path} has {unknown[0]!r}", "put settings into the table [store]")
    table = data.get("store", {})
    if not isinstance(table, dict):
        raise BadRequest(f"{path}: store is no table", "write [store] above the settings")
    return [f"store.{name}={_text(value)}" for name, value in table.items()]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
