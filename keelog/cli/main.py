"""The command `keelog`: finds the command's module, and turns every error into three lines.

A command's module is imported when it is asked for, so that `keelog --version` stays fast.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from keelog.cli import contexts, failures
from keelog.cli.options import CliGroup, debug_wanted, no_color_option, show_version
from protocol.errors import MqError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """The module of a command, below keelog.cli, and the line that `keelog --help` shows for it."""

    module: str
    line: str


COMMANDS = {
    "serve": Lazy("node.serve", "Runs a node on a store directory."),
    "health": Lazy("node.state", "Tells whether a node is ready."),
    "status": Lazy("node.state", "Shows a node's processes and offsets."),
    "top": Lazy("node.top", "Shows what a node does, live."),
    "produce": Lazy("messages.produce", "Sends lines or JSON objects from stdin."),
    "consume": Lazy("messages.consume", "Prints the messages of a topic."),
    "export": Lazy("node.export", "Exports topics of a node to SQLite, Parquet, CSV."),
    "topic": Lazy("node.topics", "Lists, describes, makes and removes topics."),
    "group": Lazy("node.topics", "Shows consumer groups and resets them."),
    "user": Lazy("access.users", "Makes, shows, changes and removes users."),
    "acl": Lazy("access.lists", "Says what users may do."),
    "dead": Lazy("messages.single", "Shows dead letters, and sends them back to their group."),
    "msg": Lazy("messages.single", "Finds single messages through a node."),
    "store": Lazy("store.group", "Reads, checks and repairs a store directory."),
    "replica": Lazy("store.group", "Promotes, demotes and rewinds a replica's store."),
    "spark": Lazy("spark", "Runs Spark jobs on a store directory."),
    "bench": Lazy("node.bench", "Measures a node under load."),
    "diag": Lazy("node.state", "Gathers what helps to find out what is wrong."),
    "demo": Lazy("demo", "Shows a node at work on real messages."),
    "config": Lazy("config", "Shows, checks, writes and imports settings."),
    "context": Lazy("config", "Gives nodes names."),
    "console": Lazy("node.console", "Shows a node in a browser."),
    "key": Lazy("key", "Makes keys for nodes and programs, and shows a node's."),
    "completion": Lazy("help", "Prints a shell's completion."),
    "cheat": Lazy("help", "Prints commands to paste, by subject."),
    "help": Lazy("help", "Explains a command, or exit codes and places."),
}
"""The function has the command's name, in `help` with an underscore behind it."""
HIDDEN = {"version": Lazy("help", "Prints the version.")}
"""Commands that no list shows."""


class LazyGroup(CliGroup):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which is the order of a first day."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None when there is none of this name."""
        entry = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"keelog.cli.{entry.module}")
        command = getattr(module, f"{cmd_name}_" if entry.module == "help" else cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """As click does, but a closed pipe is a success (click would end with 1)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise failures.ClosedPipe from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Commands out of the table, options as click finds them: no command is imported."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=entry.line)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing one of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.line) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 nothing found, 4 node unreachable or timed"
    " out, 5 damage found, 6 store locked or busy, 7 partial success, 130 interrupted; more with"
    " keelog help exit-codes.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Prints the version.",
)
@click.option(
    "-c",
    "--context",
    metavar="NAME",
    expose_value=False,
    callback=contexts.name_callback,
    shell_complete=contexts.complete_names,
    help="Talks to the node of this context: keelog context ls.",
)
@click.option("--debug", is_flag=True, help="Shows tracebacks.")
def cli(debug: bool) -> None:
    """A RocketMQ-compatible message store that you can run, read and repair.

    Example: keelog serve ./store

    Example: keelog store verify ./store
    """


cli.params.append(no_color_option())


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; errors become three lines on stderr, the return value is the exit code."""
    try:
        code = cli.main(args=arguments, prog_name="keelog", standalone_mode=False)
        sys.stdout.flush()
    except (failures.ClosedPipe, BrokenPipeError):
        return failures.quiet_end()
    except (KeyboardInterrupt, click.exceptions.Abort):
        return failures.INTERRUPTED
    except (MqError, click.ClickException, OSError) as error:
        if debug_wanted():
            raise
        return failures.report(error)
    return code if isinstance(code, int) else failures.OK


def main() -> int:
    """The console script. An unforeseen error is three lines too, without --debug."""
    sys.excepthook = failures.unforeseen(sys.excepthook, debug_wanted)
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = failures.quiet_end()
    return code
