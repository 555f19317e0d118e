"""The process that serves the console of a node: a child of the supervisor, and a client of the
node as any other.

The supervisor holds the socket and hands it on, so that a console that is killed loses no
connection that waits. Nothing of the node depends on this process. Run it as
`python -m keelog.console.process DIR --fd N --node URL`.
"""

import asyncio
import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING

from keelog.console.app import Console, ConsoleOptions
from keelog.console.node_link import NodeLink
from keelog.console.server import serve
from keelog.console.sessions import Sessions, write_key
from keelog.console.viewers import Door
from node.access.tls_settings import ClientAuth, server_tls
from node.access.user_table import UserTable
from node.runtime import process, state_page, stats_series, store_paths
from node.runtime.settings import Settings
from node.runtime.stats import StatsPage
from protocol.addresses import DEFAULT_NODE

if TYPE_CHECKING:
    from node.access.tls import ServerTls

SLOT = "console-0"
BEAT_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Serves the console of a store's node until SIGTERM."""
    parser = process.child_parser("keelog.console.process", __doc__)
    parser.add_argument("--fd", type=int, required=True, help="the socket that listens")
    parser.add_argument("--node", default=DEFAULT_NODE, help="the node's control address")
    parser.add_argument("--shown", default="", help="that address for people")
    parser.add_argument("--read", default="open", help="open or key: who may look")
    parser.add_argument("--hosts", default="", help="names that browsers may ask for")
    parser.add_argument("--path", default="", help="before every address")
    parser.add_argument("--cluster", default="DefaultCluster", help="the cluster of the node")
    child = process.ChildProcess(
        slot="console",
        what="the console of {} ended",
        options=parser.parse_args(arguments),
        oom_points=process.OOM_READER,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    options = child.options
    tls = server_tls(settings, ClientAuth.NONE)
    listener = socket.socket(fileno=options.fd)
    listener.setblocking(False)
    with process.take_place(child.root, SLOT) as page, listener:
        door = Door(UserTable(child.root), settings, options.read == "key", options.cluster)
        node = NodeLink(options.node, shown=options.shown)
        console = Console(
            node,
            door,
            Sessions(write_key(child.root)),
            ConsoleOptions(
                hosts=names_of(options.hosts),
                base=options.path,
                cookie=f"keelog-{listener.getsockname()[1]}",
                root=child.root,
                is_tls=tls is not None,
            ),
        )
        try:
            asyncio.run(_run(child, console, page, listener, tls, stop))
        finally:
            node.close()


async def _run(
    child: process.ChildProcess,
    console: Console,
    page: state_page.WorkerPage,
    listener: socket.socket,
    tls: "ServerTls | None",
    stop: process.StopFlag,
) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(stop.fd, ended.set)
    stats = StatsPage(child.root, stats_series.CONSOLE, 0)
    beating = asyncio.ensure_future(_beat(page, tls, console, stats))
    beating.add_done_callback(lambda _: ended.set())
    page.publish(state=state_page.RUNNING)
    child.report_ready()
    await serve(console, listener, ended, None if tls is None else _newest(tls))
    asyncio.get_running_loop().remove_reader(stop.fd)
    page.publish(state=state_page.STOPPED)
    stats.close()
    if beating.done():
        beating.result()
    beating.cancel()


async def _beat(
    page: state_page.WorkerPage, tls: "ServerTls | None", console: Console, stats: StatsPage
) -> None:
    place = stats.counts.place(stats_series.CONSOLE_REQUESTS)
    before = stats.counts.numbers[place]
    while True:
        stats.counts.numbers[place] = before + console.requests
        stats.publish()
        store_paths.check_held()
        page.beat(process.now_ms())
        if tls is not None:
            tls.look(monotonic())
        await asyncio.sleep(BEAT_S)


def _newest(tls: "ServerTls") -> ssl.SSLContext:
    """A context whose connections take the certificate that is in use when they come."""

    def choose(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = tls.context

    context = tls.context
    context.sni_callback = choose
    return context


def names_of(text: str) -> frozenset[str]:
    """The names in a setting, with commas between."""
    return frozenset(one.strip().lower() for one in text.split(",") if one.strip())


if __name__ == "__main__":
    process.leave(main())
