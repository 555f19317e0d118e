"""`keelog console`: pages for a browser, of a node anywhere; `keelog console open` shows a node's
own."""

import json
import os
import sys
import webbrowser
from pathlib import Path

import click

from keelog.cli import contexts
from keelog.cli.failures import doing
from keelog.cli.options import CliGroup, node_option
from keelog.cli.output import say
from node.runtime import disk
from node.runtime.state_page import run_dir
from protocol.errors import BadRequest, NotFound
from protocol.names import module_name

_PAGE = '<!doctype html><meta http-equiv="refresh" content="0;url={url}"><title>Keelog</title>'


@click.group("console", cls=CliGroup, invoke_without_command=True)
@node_option
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="7856",
    show_default=True,
    help="Where: a port, or HOST:PORT on loopback; port 0 takes a free one.",
)
@click.pass_context
def console(ctx: click.Context, node: str, listen: str) -> None:
    """Serves pages for a browser that show a node, until Ctrl-C. They change nothing.

    A node shows itself with keelog serve DIR --console 7856: then who has its key may do more.

    Example: keelog console --node tcp://db7:7850
    """
    if ctx.invoked_subcommand is not None:
        return
    with doing(f"cannot show the node at {node}"):
        from node.supervisor import before_start, bind, child_process

        place = bind.parse_console(listen)
        if place is None:
            raise BadRequest("--listen names no port", "write 7856")
        before_start.check_console_libraries()
        if not place.resolved().is_loopback:
            raise BadRequest(
                f"--listen {listen} can be reached from other hosts, and nobody has to log in",
                "listen at 127.0.0.1, or have the node serve it: keelog serve DIR --console",
            )
        found = contexts.chosen(ctx, node)
        words = {
            "--host": place.host,
            "--port": str(place.port),
            "--node": node,
            "--key": found.key,
            "--server-key": found.server_key,
        }
        arguments = [word for option in words.items() for word in option]
        command = child_process.command(module_name("keelog.console.alone"), arguments)
        sys.stdout.flush()
        os.execve(command[0], command, child_process.environment())


@console.command("open")
@node_option
@click.option("--print", "prints", is_flag=True, help="Prints the address with its key instead.")
def open_(node: str, prints: bool) -> None:
    """Opens the console of a node of this machine in a browser, with the right to change things.

    The key is new at each start of the console; whoever can read the store's files can read it.

    Example: keelog console open
    """
    with doing(f"cannot open the console of {node}"), contexts.connect(node) as client:
        status = client.status().raw
        url = status.get("console")
        if not url:
            raise NotFound("this node serves no console", "keelog serve DIR --console 7856")
        root = Path(str(status["store"]))
        try:
            key = (run_dir(root) / "console.key").read_text().strip()
        except OSError as error:
            raise NotFound(
                f"{error.filename}: {error.strerror}",
                "the same on the node's machine, as the owner of the store",
            ) from None
        address = f"{url}unlock#{key}"
        if prints:
            click.echo(address)
            return
        # In a file, not in an argument of the browser, which others could read.
        page = run_dir(root) / "console.html"
        disk.replace_unsynced(page, _PAGE.format(url=json.dumps(address)[1:-1]).encode())
        if not webbrowser.open(page.as_uri()):
            say(f"no browser was found: open {url} and give it the key of")
            say(f"{run_dir(root) / 'console.key'}, or use keelog console open --print")
