"""`keelog context`: names for nodes."""

import os

import click

from keelog.cli.contexts import Context, changed, check_name, complete_names, load, path_of
from keelog.cli.failures import OK, doing
from keelog.cli.options import CliGroup, output_options
from keelog.cli.output import Output
from protocol.addresses import with_scheme, without_credentials
from protocol.errors import BadRequest


@click.group("context", cls=CliGroup)
def context() -> None:
    """Gives nodes names: `keelog -c NAME …`, or one that is in use until another is.

    They are kept in ~/.config/keelog/contexts.toml (XDG_CONFIG_HOME), readable by you alone.

    Example: keelog context add prod --node tcp://10.0.0.7:7850 --use

    Example: keelog context ls
    """


@context.command("ls")
@output_options
def ls(output: Output) -> int:
    """Lists the contexts; `current` marks the one in use.

    Example: keelog context ls --json
    """
    with doing("cannot list the contexts"):
        contexts = load(path_of(os.environ))
    names = ("name", "node", "description", "current")
    rows = (
        (name, without_credentials(one.node), one.description, name == contexts.current)
        for name, one in sorted(contexts.named.items())
    )
    output.rows((dict(zip(names, row, strict=True)) for row in rows), names)
    return OK


@context.command("add")
@click.argument("name")
@click.option("--node", required=True, metavar="URL", help="As tcp://10.0.0.7:7850.")
@click.option("--description", default="", metavar="TEXT")
@click.option("--use", is_flag=True, help="Puts it in use, too.")
@click.option("--replace", is_flag=True, help="Replaces the one that has this name.")
def add(name: str, node: str, description: str, use: bool, replace: bool) -> int:
    """Gives a node a name.

    Example: keelog context add test --node tcp://127.0.0.1:7850 --description 'on this machine'
    """
    with changed(f"add the context {name}") as contexts:
        if check_name(name) in contexts.named and not replace:
            hint = f"keelog context add {name} --node {node} --replace"
            raise BadRequest(f"there is a context {name} already", hint)
        node = with_scheme(node)
        if not node.startswith(("tcp://", "ipc://")):
            raise BadRequest(f"{node[:80]!a} is not an address", "write tcp://127.0.0.1:7850")
        contexts.named[name] = Context(node, description)
        if use:
            contexts.current = name
    return OK


@context.command("use")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--none", is_flag=True, help="No context is in use any more.")
def use(name: str | None, none: bool) -> int:
    """Puts a context in use: commands talk to its node when nothing else says where.

    Example: keelog context use prod

    Example: keelog context use --none
    """
    if (name is None) != none:
        raise click.UsageError("name a context, or say --none")
    with changed("change the context in use") as contexts:
        if name is not None:
            contexts.get(name)
        contexts.current = name
    return OK


@context.command("rm")
@click.argument("name", shell_complete=complete_names)
def remove(name: str) -> int:
    """Removes a context; if it is in use, none is in use then.

    Example: keelog context rm prod
    """
    with changed(f"remove the context {name}") as contexts:
        contexts.get(name)
        del contexts.named[name]
        if contexts.current == name:
            contexts.current = None
    return OK
