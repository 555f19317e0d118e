"""Options of many commands: --node, -X and --config, --format, --debug."""

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

import keelog
from keelog.cli.contexts import NODE_VARIABLE, key_callback, node_callback
from keelog.cli.failures import MEANT_COMMANDS, NoCommand, meant
from keelog.cli.output import FORMATS, NO_COLOR, Output
from keelog.cli.settings import STORE, Given, all_given
from keelog.text import CommandProgress
from protocol.addresses import DEFAULT_NODE
from protocol.errors import BadRequest
from protocol.human_text import bytes_of

_SHOWN_DIGITS = 40
_SENTENCE_CHARS = 1_000
_EXAMPLE = "Example: "
_FORMAT = "keelog.format"
_CONFIG = "keelog.config"

NO_TEXTS = (
    "This Python leaves docstrings out (PYTHONOPTIMIZE=2, -OO), and with them what commands do. "
    "Try: PYTHONOPTIMIZE= keelog --help"
)

Function = TypeVar("Function", bound=Callable[..., Any])


def show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"keelog {keelog.__version__}")
        ctx.exit()


def debug_wanted() -> bool:
    """Whether tracebacks are to be shown: --debug anywhere before `--`, or KEELOG_DEBUG."""
    words = sys.argv[1:]
    if "--" in words:
        words = words[: words.index("--")]
    return "--debug" in words or bool(os.environ.get("KEELOG_DEBUG"))


class WholeRange(click.IntRange):
    """A whole number of at most 64 bits, as a node and a store have them."""

    def __init__(self, *bounds: Any) -> None:
        super().__init__(*bounds)
        if self.min is None and self.max is None:
            self.name = "integer"

    def _describe_range(self) -> str:
        """Empty without bounds, which click does not expect."""
        return "" if self.name == "integer" else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuses more, however long it is, in one line."""
        found: int = super().convert(value, param, ctx)
        if not -(2**63) <= found < 2**63:
            shown = str(value)
            shown = shown if len(shown) <= _SHOWN_DIGITS else f"{shown[:_SHOWN_DIGITS]}…"
            self.fail(f"{shown} has more than 64 bits.", param, ctx)
        return found


def _bounded(params: Sequence[click.Parameter]) -> None:
    """Gives every number of a command its 64 bits."""
    for param in params:
        kind = param.type
        if type(kind) is click.IntRange:
            param.type = WholeRange(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
        elif kind is click.INT:
            param.type = WholeRange()


def size(value: Any) -> int:
    """The type of every option that takes bytes: 128, 4KiB, 1MB."""
    try:
        found: int = value if isinstance(value, int) else bytes_of(value)
    except BadRequest as error:
        raise click.BadParameter(f"{error.reason}; {error.hint}.") from None
    if not 0 < found < 2**63:
        raise click.BadParameter(f"{str(value)[:_SHOWN_DIGITS]} is not from 1 byte to 2^63.")
    return found


class _WithExamples:
    """Help that ends with the examples: paragraphs `Example: …` of the docstring, unwrapped."""

    help: str | None
    examples: tuple[str, ...] = ()

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """As click has it, in the words of the other options."""
        option: click.Option | None = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.help = "Prints this help."
        return option

    def take_examples(self) -> None:
        """Moves the examples out of the help text."""
        parts = inspect.cleandoc(self.help or "").split("\n\n")
        shown = [part for part in parts if part.startswith(_EXAMPLE)]
        self.examples = tuple(part.removeprefix(_EXAMPLE) for part in shown)
        self.help = "\n\n".join(part for part in parts if not part.startswith(_EXAMPLE))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, then the examples, ready to paste."""
        super().format_epilog(ctx, formatter)  # type: ignore[misc]
        if sys.flags.optimize > 1:
            formatter.write_paragraph()
            formatter.write_text(NO_TEXTS)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{example}\n")


def no_color_option() -> click.Option:
    """`--no-color`: of `keelog` itself, and of each command."""

    def forbid(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            os.environ[NO_COLOR] = "1"  # for all of this process that heeds it, and its children

    text = "Prints no colours and nothing bold, as with the variable NO_COLOR."
    return click.Option(
        ["--no-color"], is_flag=True, is_eager=True, expose_value=False, callback=forbid, help=text
    )


class CliCommand(_WithExamples, click.Command):
    """A command with --debug and --no-color, so that both may end the line, too."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.take_examples()
        _bounded(self.params)
        self.params += [
            no_color_option(),
            click.Option(["--debug"], is_flag=True, expose_value=False, help="Shows tracebacks."),
        ]


class CliGroup(_WithExamples, click.Group):
    """A group of such commands. Without a command it prints its help."""

    command_class = CliCommand

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        keywords |= {"invoke_without_command": True, "no_args_is_help": False}
        super().__init__(*arguments, **keywords)
        self.take_examples()

    def invoke(self, ctx: click.Context) -> object:
        """As click does; the help where no command is named."""
        done: object = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())
        return done

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name gets what it means, or the nearest one, for a hint."""
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name):
            return super().resolve_command(ctx, args)
        known = self.list_commands(ctx)
        wanted = meant(MEANT_COMMANDS, name)
        near = [wanted] if wanted in known else difflib.get_close_matches(name, known, n=1)
        raise NoCommand(name, " ".join([ctx.command_path, *near, "--help"]), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, each with the whole first sentence of its help."""
        rows = []
        for name in self.list_commands(ctx):
            found = self.get_command(ctx, name)
            if found is not None and not found.hidden:
                rows.append((name, found.get_short_help_str(limit=_SENTENCE_CHARS)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def command(name: str | None = None, **keywords: Any) -> Callable[[Callable[..., Any]], CliCommand]:
    """As `click.command`, with --debug and --no-color."""
    return click.command(name, cls=CliCommand, **keywords)


def options(*several: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Adds several options, or groups of them, in the order of the help."""

    def add(function: Function) -> Function:
        for one in reversed(several):
            function = one(function)
        return function

    return add


def one_of(name: str, words: Sequence[str], help: str) -> Callable[[Function], Function]:
    """An option that takes one of some words, the first where it is not given."""
    kind = click.Choice(words)
    return click.option(name, type=kind, default=words[0], show_default=True, help=help)


keys_option = options(
    click.option(
        "--client-key",
        metavar="FILE",
        # Before --node, which takes those of its context where these are not said.
        is_eager=True,
        expose_value=False,
        callback=key_callback,
        help="Your .key_secret, for a node with keys; else that of the context.",
    ),
    click.option(
        "--server-key",
        metavar="KEY|FILE",
        is_eager=True,
        expose_value=False,
        callback=key_callback,
        help="The node's public key: keelog key show DIR.",
    ),
)
"""Of a command that connects to a node by itself: `contexts.given_keys`. It is not called --key,
which is that of a message."""
node_option = options(
    click.option(
        "--node",
        envvar=NODE_VARIABLE,
        metavar="URL",
        callback=node_callback,
        help=f"Where the node is; else {NODE_VARIABLE}, else the context in use, else"
        f" {DEFAULT_NODE}.",
    ),
    keys_option,
)
"""The command gets `node: str`: where the node is, by flag, context, variable or default; and
`contexts.connect` the keys to come with."""


def _widen(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    output = ctx.params.get("output")
    if wanted and isinstance(output, Output):
        output.wide = True


def _make_output(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Output:
    if value == "help" and not ctx.resilient_parsing:
        # Imported here: only --format help needs the shapes.
        from keelog.cli.shape_help import shape_text

        click.echo(shape_text(ctx.command_path.removeprefix("keelog ")))
        ctx.exit()
    return Output(value or ctx.meta.get(_FORMAT))


def _remember_format(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_FORMAT] = parameter.name


format_option = options(
    click.option(
        "--format",
        "output",
        type=click.Choice((*FORMATS, "help")),
        # Before the others, so that `--format help` asks for no arguments.
        is_eager=True,
        callback=_make_output,
        help="Default: table on a terminal, jsonl otherwise; help shows the fields.",
    ),
    click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_widen,
        help="Cuts nothing off a table, however narrow the terminal is.",
    ),
)
"""Where --jsonl is about what is read; the command gets `output: Output`."""
output_options = options(
    format_option,
    *(
        click.option(
            f"--{name}",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_remember_format,
            help=f"As --format {name}: {text}.",
        )
        for name, text in (("json", "one document"), ("jsonl", "one object a line"))
    ),
)
"""The command gets `output: Output`."""
progress_option = click.option(
    "--no-progress",
    "progress",
    is_flag=True,
    callback=lambda _ctx, _parameter, quiet: CommandProgress(quiet),
    help="Does not say on stderr how far it is.",
)
"""The command gets `progress: CommandProgress`."""


def _settings(
    name: str, shape: Callable[[tuple[Given, ...]], object]
) -> Callable[[Function], Function]:
    """Adds -X and --config. The TOML file comes first, then variables, then -X: the last wins."""

    def convert(ctx: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> object:
        config = ctx.meta.get(_CONFIG)
        file = None if config is None or ctx.resilient_parsing else Path(config)
        return shape(all_given(file, os.environ, value))

    def remember(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        ctx.meta[_CONFIG] = value

    return options(
        click.option(
            "-X",
            name,
            multiple=True,
            metavar="NAME=VALUE",
            callback=convert,
            help="Changes a setting, as -X store.flush_disk_type=SYNC_FLUSH.",
        ),
        click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False),
            is_eager=True,
            expose_value=False,
            callback=remember,
            help="A TOML file of settings; keelog config init prints one.",
        ),
    )


settings_options = _settings(
    "pairs",
    lambda given: tuple(one.pair for one in given if one.table == STORE or one.origin == "-X"),
)
"""The command gets `pairs`: `name=value` texts for `load_settings`. Settings of `keelog serve` are
for that command alone; with -X they are unknown settings here."""
settings_given_options = _settings("given", lambda given: given)
"""The command gets `given: tuple[Given, ...]`, with its origin."""
node_options = options(node_option, output_options)
"""Of a command that asks a node."""
store_options = options(settings_options, output_options)
"""Of a command on a store."""
walk_options = options(settings_options, progress_option, output_options)
"""Of a command on a store that may take long."""
