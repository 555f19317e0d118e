"""All commands of `keelog`, by walking the tree."""

from collections.abc import Iterator
from functools import cache

import click

from keelog.cli.main import HIDDEN, cli
from keelog.cli.options import CliCommand, CliGroup


def commands() -> dict[str, CliCommand | CliGroup]:
    """Every command and group by its words, `""` for `keelog` itself, hidden ones too."""
    return dict(_below(cli, ""))


@cache
def leaves() -> dict[str, CliCommand]:
    """Every command that does something."""
    return {path: one for path, one in commands().items() if isinstance(one, CliCommand)}


def _below(command: click.Command, path: str) -> Iterator[tuple[str, CliCommand | CliGroup]]:
    assert isinstance(command, CliCommand | CliGroup), (
        f"keelog {path} has no examples: use our classes"
    )
    yield path, command
    if not isinstance(command, CliGroup):
        return
    context = click.Context(command)
    names = [*command.list_commands(context), *(HIDDEN if command is cli else ())]
    for name in names:
        found = command.get_command(context, name)
        assert found is not None, name
        yield from _below(found, f"{path} {name}".strip())


def help_of(path: str) -> str:
    """What `--help` of a command prints."""
    context = click.Context(cli, info_name="keelog", help_option_names=["-h", "--help"])
    for word in path.split():
        group = context.command
        assert isinstance(group, click.Group)
        found = group.get_command(context, word)
        assert found is not None
        context = click.Context(found, info_name=word, parent=context)
    return context.get_help()


def assert_is_read(words: list[str]) -> None:
    """The command is there, and takes these words."""
    text = f"{' '.join(words)} "
    path = max((path for path in leaves() if text.startswith(f"{path} ")), key=len, default="")
    assert path, text
    one = leaves()[path]
    one.make_context(path, words[len(path.split()) :], resilient_parsing=True)
    known = {name for param in one.params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, words
