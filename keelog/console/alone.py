"""A console of its own, for a node anywhere: `keelog console`. It listens at loopback, and shows
what the node lets its client see; it changes nothing.

Run it as `python -m keelog.console.alone --bind HOST:PORT --node URL`.
"""

import argparse
import asyncio
import secrets
import signal
import socket
import sys

from keelog.console.app import Console, ConsoleOptions
from keelog.console.node_link import NodeLink
from keelog.console.process import names_of
from keelog.console.server import BACKLOG, serve
from keelog.console.sessions import Sessions
from keelog.console.viewers import Door
from node.runtime.addresses import listen_at
from node.runtime.event_log import log_to_stderr
from node.runtime.settings import OFF, load_settings
from protocol.addresses import DEFAULT_NODE
from protocol.human_text import printable


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser("python -m keelog.console.alone", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--node", default=DEFAULT_NODE, help="the node's control address")
    parser.add_argument("--key", default="", help="the path of the secret key to come with")
    parser.add_argument("--server-key", default="", help="the node's public key, or its file")
    parser.add_argument("--hosts", default="", help="names that browsers may ask for")
    parser.add_argument("--path", default="", help="before every address")
    options = parser.parse_args(arguments)
    log_to_stderr("console")
    listener = listen_at(options.host, options.port, BACKLOG)
    listener.setblocking(False)
    port = listener.getsockname()[1]
    node = NodeLink(options.node, options.key, options.server_key)
    door = Door(None, load_settings([f"authentication_enabled={OFF}"]), False, "DefaultCluster")
    console = Console(
        node,
        door,
        Sessions(secrets.token_urlsafe()),
        ConsoleOptions(names_of(options.hosts), options.path, f"keelog-{port}"),
    )
    with listener:
        sys.stderr.write(
            printable(f"console http://{options.host}:{port}{options.path}/ of {options.node}\n")
        )
        sys.stderr.flush()
        asyncio.run(_run(console, listener))
    node.close()
    return 0


async def _run(console: Console, listener: socket.socket) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await serve(console, listener, ended)


if __name__ == "__main__":
    sys.exit(main())
