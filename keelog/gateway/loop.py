"""The gateway process: RocketMQ's own clients at a node, over the remoting protocol.

Run it as `python -m keelog.gateway.loop DIR --bind HOST:PORT --node URL --shards N`.
"""

import asyncio
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from selectors import EpollSelector, SelectorKey

import zmq

from keelog.client.core import ClientCore
from keelog.client.event_loop import pass_on_error
from keelog.gateway.connection import RemotingConnection
from keelog.gateway.name_servers import USUAL_PACE, OtherMasters, Registrar, promoted_at
from keelog.gateway.service import GatewayService
from keelog.gateway.settings import MASTER, BrokerName
from keelog.gateway.tls_port import TlsPort
from node.access.own_credentials import OwnLogin
from node.access.tls import ServerTls
from node.access.tls_settings import server_tls
from node.reader.follower import ReaderSite, StoreFollower
from node.runtime import addresses, disk, process, run_files, shortage, wakeup
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.state_page import RUNNING, STOPPING, WorkerPage
from node.store.identity.roles import load_master_epochs
from protocol import errors, ha
from protocol.addresses import DEFAULT_NODE, REMOTING_PORT, VIP_DISTANCE
from protocol.names import DEFAULT_CLUSTER
from protocol.wire.zmtp import AwakeLook

log = logging.getLogger("keelog.gateway")

BACKLOG = 1_024
SHORTAGE_S = 0.1
"""The pause after a turn that failed because no descriptor was free, or the disk was full."""
LOOK_S = 1.0
AWAKE_S = 0.0003
"""How long the loop looks for the next request before it sleeps: longer than a client takes from a
reply to that."""
REQUEST_S = 5.0
"""How long a request to the writer may take, beside sends."""


class AwakeSelector(EpollSelector):
    """As the selector that asyncio takes by itself, for one thread, but it can look for the next
    event before it sleeps. A client that waits for each reply sends its next request at once: the
    loop would go to sleep just before that comes (decision 27)."""

    def __init__(self, give_way: Callable[[], object] = os.sched_yield) -> None:
        super().__init__()
        self._look = AwakeLook(AWAKE_S, len(os.sched_getaffinity(0)), time.monotonic, give_way)
        self._looks = False
        self._events = select.poll()
        self._events.register(self.fileno(), select.POLLIN)

    @property
    def is_awake(self) -> bool:
        """Whether its looks bring something: a client sends its next request at once."""
        return self._look.is_awake

    def look_once(self) -> None:
        """Lets it look before the next sleep: a client has its reply, and nobody else waits."""
        self._looks = True

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """As that of `EpollSelector`."""
        if self._looks and (timeout is None or timeout > 0):
            self._looks = False
            if not self._is_ready():
                self._look.until(self._is_ready)
        return super().select(timeout)

    def _is_ready(self) -> bool:
        return bool(self._events.poll(0))


class Gateway:
    """The loop: it owns the service, the follower of the store and the state page."""

    def __init__(
        self,
        site: ReaderSite,
        core: ClientCore,
        name: BrokerName,
        name_servers: Sequence[str],
        page: WorkerPage,
        zmq_: wakeup.Context,
        tls: ServerTls | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._core = core
        self._page = page
        self.service = GatewayService(site, core, name)
        own = OwnLogin.of(site.settings)
        is_master = not (site.settings.follow or site.settings.controller_id or name.broker_id)
        self._others = OtherMasters(site.root, name, *own) if is_master else None
        self._registrar = Registrar(
            name_servers, name, self.service.topics, USUAL_PACE, self._others, *own
        )
        if site.settings.follow:
            self._registrar.follow(partial(_note_master, site.root))
        self._follower = StoreFollower(site, self.service.pulls.desk, page, zmq_)
        self.service.before_reading = self._catch_up
        link = self.service.link
        link.on_request, link.on_outcome = self._appending, self._appended
        self.service.commits.fail = self._fail
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_due = False
        self._look_at = 0.0
        self._servers: list[asyncio.Server | TlsPort] = []
        self._port = 0
        self._failed: asyncio.Future[None] = self._loop.create_future()

    async def listen(self, host: str, port: int) -> str:
        """Opens the port, and the one VIP_DISTANCE below it; returns the endpoint."""
        found = self._port = await self._open(host, port)
        if port > VIP_DISTANCE:
            await self._open(host, port - VIP_DISTANCE)
        return f"tcp://{host}:{found}"

    async def _open(self, host: str, port: int) -> int:
        listener = addresses.open_port(host, port, BACKLOG)
        server: asyncio.Server | TlsPort
        if self._tls is None:
            server = await self._loop.create_server(self._made, sock=listener, backlog=BACKLOG)
        else:
            server = TlsPort(listener, self._tls, self._made, self._fail)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _made(self) -> RemotingConnection:
        return RemotingConnection(self.service, self._loop)

    async def run(self, stop: process.StopFlag) -> None:
        """Serves until the flag is set, then serves the held pulls. Raises what a turn raises."""
        self._page.publish(state=RUNNING)
        ended = asyncio.Event()
        self._loop.add_reader(stop.fd, ended.set)
        self._failed.add_done_callback(lambda _: ended.set())
        self._loop.add_reader(self._follower.bell_fd, self._turn, True)
        self._turn()
        self._registrar.start(self._fail)
        looking: asyncio.Task[None] | None = None
        if self._others is not None:
            looking = self._loop.create_task(self._others.watch_old_master(self._port))
            looking.add_done_callback(partial(pass_on_error, fail=self._fail))
        self.service.start(self._fail)
        await ended.wait()
        if looking is not None:
            looking.cancel()
        if not self._failed.done():
            await self._registrar.stop()
        self._loop.remove_reader(self._follower.bell_fd)
        self._loop.remove_reader(stop.fd)
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            server.close()
        if self._failed.done():
            self._failed.result()
        self._page.publish(state=STOPPING)
        self._follower.stop()
        await self.service.stop()
        self._follower.stopped(self.service.requests)

    def _catch_up(self, now: float) -> None:
        """Before a request that reads; after it, a turn holds or wakes what has to be."""
        self._follower.catch_up(now)
        self._soon()

    def _appending(self) -> None:
        if self.service.link.is_answered_soon:
            self._follower.spare_ring()

    def _appended(self) -> None:
        """The answer of the writer is the news of what it appended: held pulls get it at once."""
        if self.service.pulls.desk.tail.follows:
            self._soon()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.service.buffers.gathering.at_end(self._turn_if_due, is_last=True)

    def _turn_if_due(self) -> None:
        """One more pull that is held at the log's end changes nothing: the wish for a ring and the
        time of the next turn stay."""
        self._is_due = False
        if not self._follower.asks_for_ring or self._follower.is_anything_due(time.monotonic()):
            self._turn()

    def _turn(self, is_rung: bool = False) -> None:
        try:
            self._step(is_rung)
        except (errors.MqError, OSError) as error:
            if not shortage.is_shortage(error):
                self._fail(error)
                return
            log.warning("not done for now", extra=fields(why=error))
            self._turn_after(SHORTAGE_S)
        except BaseException as error:  # noqa: BLE001 (it ends the process)
            self._fail(error)

    def _turn_after(self, seconds: float) -> None:
        """A timer that has half of the time left stays: it costs more than the rest of a turn."""
        now = time.monotonic()
        if self._timer is not None:
            if seconds / 2 <= self._timer_at - now <= seconds:
                return
            self._timer.cancel()
        self._timer_at = now + seconds
        self._timer = self._loop.call_at(self._timer_at, self._turn)

    def _fail(self, error: BaseException) -> None:
        """Ends `run` with the error: asyncio would log it and go on."""
        if not self._failed.done():
            self._failed.set_exception(error)

    def _step(self, is_rung: bool) -> None:
        follower, now = self._follower, time.monotonic()
        follower.begin_turn(now, is_rung)
        follower.end_turn(now)
        if now >= follower.beat_at:
            follower.beat(now, self.service.requests)
            process.met_damage.turn(now)
        self.service.look_at_users(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.service.look_around(now)
            if self._tls is not None:
                self._tls.look(now)
        may_sleep = follower.ask_for_ring(self.service.link.is_answered_soon)
        sleep_ms = follower.sleep_ms(now, has_unsent=False) if may_sleep else 0
        self._turn_after(sleep_ms / 1000)

    def close(self) -> None:
        """Closes pages and files, and the connection to the writer."""
        self._follower.close()
        self._core.close()


def main(arguments: list[str] | None = None) -> int:
    """Runs the gateway of a store until SIGTERM."""
    parser = process.child_parser("keelog.gateway.loop", __doc__)
    parser.add_argument("--bind", default=f"127.0.0.1:{REMOTING_PORT}", metavar="HOST:PORT")
    parser.add_argument("--node", default=DEFAULT_NODE, help="the node's control address")
    parser.add_argument("--cluster", default=DEFAULT_CLUSTER)
    parser.add_argument("--broker", default=socket.gethostname())
    parser.add_argument("--broker-id", type=int, default=MASTER, metavar="N")
    parser.add_argument("--address", default="", metavar="HOST:PORT", help="what clients are told")
    parser.add_argument("--namesrv", default="", metavar="HOST:PORT;HOST:PORT")
    parser.add_argument("--announce", default="", metavar="HOST:PORT", help="what name servers get")
    parser.add_argument("--ha", default="", metavar="HOST:PORT", help="what followers get")
    shards = "how many queue workers the node has"
    parser.add_argument("--shards", type=int, default=1, metavar="N", help=shards)
    child = process.ChildProcess(
        slot="gateway",
        what="the gateway of {} ended",
        options=parser.parse_args(arguments),
        oom_points=process.OOM_READER,
        serves_clients=True,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    options, root = child.options, child.root
    site = ReaderSite(root, f"{wakeup.GATEWAY}0", options.shards, settings)
    name = BrokerName(
        options.cluster, options.broker, options.address, options.broker_id, options.announce,
        options.ha, _state_version(root, settings),
    )  # fmt: skip
    name_servers = tuple(filter(None, options.namesrv.split(";")))
    tls = server_tls(settings)
    selector = AwakeSelector()
    with process.take_place(root, site.slot) as page:
        context: wakeup.Context = zmq.Context()

        async def serve() -> None:
            core = ClientCore(options.node, REQUEST_S, None)
            gateway = Gateway(site, core, name, name_servers, page, context, tls)
            gateway.service.link.selector = selector
            try:
                place = addresses.parse_listen(options.bind, REMOTING_PORT)
                child.report_ready(await gateway.listen(*place))
                await gateway.run(stop)
            finally:
                gateway.close()

        with asyncio.Runner(loop_factory=partial(asyncio.SelectorEventLoop, selector)) as runner:
            runner.run(serve())
        context.term()


def _note_master(root: Path, place: run_files.MasterPlace) -> None:
    """For the replica, which follows whom the name servers name."""
    if place != run_files.read_master_place(root):
        log.info("master found", extra=fields(remoting=place.remoting, replication=place.ha))
        with disk.if_room():
            run_files.write_master_place(root, place)


def _state_version(root: Path, settings: Settings) -> int:
    """By which name servers know a newer master from an older one: its epoch, or where it was
    promoted."""
    if settings.controller_id:
        return max(0, ha.last_number(load_master_epochs(root)))
    return 0 if settings.follow else promoted_at(root)


if __name__ == "__main__":
    process.leave(main())
