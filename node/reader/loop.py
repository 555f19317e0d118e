"""The reader process: pulls with long polling, look-ups by id, key and time (format 12 to 14).

Run it as `python -m node.reader.loop DIR --index I --shards N`.
"""

import logging
import time

import zmq

from node.reader.follower import ReaderSite, StoreFollower, open_fitting, transfer_limits
from node.reader.service import ReaderService, ReaderStats
from node.runtime import disk, process
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import is_shortage
from node.runtime.state_page import RUNNING, STOPPING, WorkerPage
from node.runtime.stats import StatsPage, TopicCounts
from node.runtime.stats_series import READER as STATS
from node.runtime.wakeup import READER
from node.serving.request_server import RequestWait, Server, bulk_socket
from node.store.config.topics_file import TopicsFile
from protocol.errors import BadRequest, MqError, ServiceNotAvailable

log = logging.getLogger("keelog.reader")

FRAME_BYTES_MAX = 1 << 20
ANSWERS_MAX = 256
"""Answers that ZeroMQ keeps for a connection that does not read: up to 64 KiB each."""
REQUESTS_AT_ONCE = 128
"""The most requests in a turn, before held pulls get theirs."""
STOP_REQUESTS_MAX = 10_000
SHORTAGE_S = 0.1
"""The pause after a turn that failed because no descriptor was free."""


class Reader:
    """The loop: it owns the sockets, the follower of the store and the stats page."""

    def __init__(
        self,
        site: ReaderSite,
        server: Server,
        page: WorkerPage,
    ) -> None:
        self.server = server
        self._page = page
        self.service = ReaderService(
            open_fitting(site),
            TopicsFile(site.root),
            transfer_limits(site.settings),
            server.send,
            site.shards,
        )
        self._follower = StoreFollower(site, self.service.desk, page)
        number = int(site.slot.removeprefix(READER))
        self._stats = StatsPage(site.root, STATS, number)
        self._topics = TopicCounts(site.root, STATS, number)
        self.was_lone = False
        """The last turn served one look-up: its client may wait with the next one."""
        self.service.stats = ReaderStats(self._stats.counts, self._topics)

    def run(self, stop: process.StopFlag) -> None:
        """Serves until the flag is set, then answers the held pulls."""
        bell_fd = self._follower.bell_fd
        watched = (*self.server.watched, bell_fd, stop.fd)
        wait = RequestWait(watched, self.server)
        self._page.publish(state=RUNNING)
        follower, sleep_ms = self._follower, 0
        while not stop.is_set:
            ready = wait.poll(sleep_ms, self.was_lone)
            now = time.monotonic()
            if ready or self._is_anything_due(now):
                self._try_step(now, is_rung=any(one == bell_fd for one, _ in ready))
                now = time.monotonic()
            sleep_ms = self._sleep_ms(now) if follower.ask_for_ring() else 0
        self._page.publish(state=STOPPING)
        self._stop()

    def _try_step(self, now: float, is_rung: bool) -> None:
        """As `step`; without a free descriptor it pauses, and a later turn does the rest."""
        try:
            self.step(now, is_rung)
        except OSError as error:
            if not disk.is_passing(error):
                raise
        except MqError as error:
            if not is_shortage(error):
                raise
            log.warning("not done for now", extra=fields(why=error))
        else:
            return
        self._beat(now)
        time.sleep(SHORTAGE_S)

    def step(self, now: float, is_rung: bool) -> None:
        """One turn: takes in the pages, serves requests, wakes held pulls, times out, beats."""
        follower = self._follower
        follower.begin_turn(now, is_rung)
        service, requests, look_ups = self.service, self.service.requests, self.service.look_ups
        for _ in range(REQUESTS_AT_ONCE):
            received = self.server.receive()
            if received is None:
                break
            follower.catch_up(now)
            service.handle(received, now)
        self.was_lone = service.requests - requests == service.look_ups - look_ups == 1
        follower.end_turn(now)
        self._beat(now)

    def _is_anything_due(self, now: float) -> bool:
        if self.server.ready or self.server.unsent:
            return True
        return self._follower.is_anything_due(now)

    def _sleep_ms(self, now: float) -> int:
        if self.server.ready:
            return 0
        return self._follower.sleep_ms(now, bool(self.server.unsent))

    def _beat(self, now: float) -> None:
        if not self._follower.beat(now, self.service.requests):
            return
        self._stats.publish()
        self._topics.publish()
        process.met_damage.turn(now)
        self.server.turn()

    def _stop(self) -> None:
        self._follower.stop()
        stopping = ServiceNotAvailable("this reader is stopping", "ask another one, or again later")
        self.server.may_have_remote = True
        for _ in range(STOP_REQUESTS_MAX):
            received = self.server.receive()
            if received is None:
                break
            self.service.refuse(received, stopping)
        self._follower.stopped(self.service.requests)

    def close(self) -> None:
        """Closes sockets, pages and files."""
        self._stats.close()
        self._topics.close()
        self.server.close()
        self._follower.close()


def main(arguments: list[str] | None = None) -> int:
    """Runs one reader of a store until SIGTERM."""
    parser = process.child_parser("node.reader.loop", __doc__)
    parser.add_argument("--bind", default="tcp://127.0.0.1:7852")
    parser.add_argument("--local", default="", metavar="IPC", help="for clients of this machine")
    parser.add_argument("--index", type=int, default=0, metavar="I", help="which reader this is")
    parser.add_argument(
        "--shards", type=int, default=1, metavar="N", help="how many queue workers the node has"
    )
    options = parser.parse_args(arguments)
    child = process.ChildProcess(
        slot=f"reader-{options.index}",
        what=f"reader {options.index} of {{}} ended",
        options=options,
        oom_points=process.OOM_READER,
        serves_clients=True,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    options, root = child.options, child.root
    if options.index < 0 or options.shards < 1:
        raise BadRequest(f"reader {options.index} of a node with {options.shards} queue workers")
    site = ReaderSite(root, f"{READER}{options.index}", options.shards, settings)
    with process.take_place(root, site.slot) as page:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        bulk = bulk_socket(options.local) if options.local else ""
        server = Server(
            context, options.bind, FRAME_BYTES_MAX, ANSWERS_MAX, local=options.local, bulk=bulk
        )
        reader = Reader(site, server, page)
        child.report_ready(server.endpoint)
        reader.run(stop)
        reader.close()
        context.term()


if __name__ == "__main__":
    process.leave(main())
