"""`keelog completion`: what a shell needs to complete commands, options and topics."""

from typing import Any

import click
from click.shell_completion import get_completion_class

from keelog.cli import contexts
from keelog.cli.failures import OK
from keelog.cli.options import command
from protocol.errors import MqError
from protocol.human_text import one_line

SHELLS = ("bash", "zsh", "fish")
TOPICS_S_MAX = 0.3
"""The longest that a press of TAB waits for a node."""


@command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Prints the completion script of a shell. Topics are completed from the node, if it runs.

    Put it where the shell looks: for bash `eval "$(keelog completion bash)"` in ~/.bashrc, for zsh
    the same with zsh in ~/.zshrc, behind compinit, for fish the file
    ~/.config/fish/completions/keelog.fish.

    Example: keelog completion bash

    Example: keelog completion fish > keelog.fish
    """
    # Imported here: it imports this module.
    from keelog.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    script = kind(cli, {}, "keelog", "_KEELOG_COMPLETE").source()
    # click's script for fish splits at each comma, and so loses the rest of a description.
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))
    return OK


def complete_topics(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The node's topics that begin with the word; none where no node replies in time."""
    import keelog

    try:
        place = contexts.find(ctx, ctx.params.get("node"))
        with keelog.connect(place.url, timeout=TOPICS_S_MAX) as client:
            names = [info.topic for info in client.topics()]
    except (MqError, OSError):
        return []
    # What a shell cannot type is not completed, and the terminal does not get it.
    return sorted(n for n in names if n.startswith(incomplete) and n == one_line(n))
