"""The reader process: pulls with long polling, look-ups by id, key and time (format 12 to 14).

Run it as `python -m node.reader.loop DIR --index I --shards N`.
"""

import logging
import time
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

import zmq

from node.access.asking import KEY_HINT, NO_KEY, PortAsker, PortGuard
from node.access.audit import AuditLog
from node.access.curve import gate_of
from node.access.rights import Rights
from node.access.user_table import UserTable
from node.reader import answers as lookups
from node.reader.answers import Answer
from node.reader.follower import ReaderSite, StoreFollower, open_fitting, transfer_limits
from node.reader.pull_desk import Held, PullDesk, parse_pull
from node.runtime import disk, process
from node.runtime import stats_series as series
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import as_refusal, is_shortage
from node.runtime.state_page import RUNNING, STOPPING, WorkerPage
from node.runtime.stats import Counts, StatsPage, TopicCounts
from node.runtime.wakeup import READER, Context
from node.serving import request_server
from node.serving.curve_server import open_server
from node.store.config.topics_file import TopicsFile
from node.store.opening import RunningStore
from node.store.query.pull import TransferLimits
from protocol import errors, requests
from protocol.addresses import DEFAULT_PORT
from protocol.names import DEFAULT_CLUSTER
from protocol.wire import frames
from protocol.wire.frames import Header

log = logging.getLogger("keelog.reader")

FRAME_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 128 * 1024
"""More than any request to a reader needs."""
ANSWERS_MAX = 256
"""Answers that ZeroMQ keeps for a connection that does not read: up to 64 KiB each."""
REQUESTS_AT_ONCE = 128
"""The most requests in a turn, before held pulls get theirs."""
STOP_REQUESTS_MAX = 10_000
SHORTAGE_S = 0.1
"""The pause after a turn that failed because no descriptor was free."""
PULL = "pull"

Send = Callable[[bytes, Header, request_server.Payload | None], bool]


class ReaderService:
    """Replies to requests from the desk's store, or leaves pulls to the desk. No sockets, no clock.

    Answers leave through `send`; times are seconds of the caller's monotonic clock. Answers and
    refusals are counted by operation, and their latency: of requests answered at once, without
    long polls.
    """

    def __init__(
        self,
        store: RunningStore,
        topics: TopicsFile,
        limits: TransferLimits,
        send: Send,
        shards: int,
        port: PortGuard | None = None,
    ) -> None:
        """`port`: asks who sent each request; None where everybody may do everything."""
        self.desk = PullDesk(store, self._deliver, shards)
        self.stats = ReaderStats()
        """Its owner may replace it before the first request."""
        self.requests = 0
        self.look_ups = 0
        """Those that were answered at once, and were no pulls."""
        self._topics = topics
        self._limits = limits
        self._send = send
        self._port = port

    def handle(
        self, received: request_server.Received | request_server.BadFrames, now: float
    ) -> None:
        """Replies to one request, or holds it. Never raises for what a client sent."""
        self.requests += 1
        desk = self.desk
        if desk.store.removed.number != desk.removals:
            desk.note_removals()
        began, pulls = monotonic_ns(), self.stats.pulls
        if isinstance(received, request_server.BadFrames):
            self._refuse(received.peer, received.request_id, "", received.error)
            return
        header: Header = {}
        number, operation = 0, ""
        try:
            header = frames.unpack(received.header, HEADER_BYTES_MAX)
            operation = frames.check_envelope(header)
            number = header["id"]
            port, asker = self._port, None
            if port is not None and port.is_on:
                asker = port.asker_of(received, operation, header)
            if received.payload is not None:
                raise errors.BadRequest("a reader takes one frame, two came")
            if operation == PULL:
                wanted = parse_pull(header, desk.store.settings, self._limits)
                desk.pull(received.peer, number, wanted, now, asker)
                if self.stats.pulls != pulls:
                    self.stats.took(operation, monotonic_ns() - began)
                return
            found = lookups.look_again(
                desk.store, lambda: self._answer(operation, header, now, asker)
            )
        except (errors.MqError, OSError) as error:
            number = frames.request_id(header) or frames.id_within(received.header)
            place = str(desk.store.root)
            # No name for the refusal: its traceback would keep this frame, and the request, alive.
            self._refuse(received.peer, number, operation, as_refusal(error, place))
        else:
            self.look_ups += 1
            self._send(received.peer, frames.answer(number, **found.fields), found.payload)
            self.stats.answered(operation, monotonic_ns() - began)

    def refuse(
        self, received: request_server.Received | request_server.BadFrames, error: errors.MqError
    ) -> None:
        """Refuses one request with `error`, whatever it asks for."""
        if isinstance(received, request_server.BadFrames):
            number = received.request_id
        else:
            try:
                number = frames.request_id(frames.unpack(received.header, HEADER_BYTES_MAX))
            except errors.BadRequest:
                number = frames.id_within(received.header)
        self._refuse(received.peer, number, "", error)

    def _refuse(self, peer: bytes, number: int, operation: str, error: errors.MqError) -> None:
        header = frames.refusal(number, error)
        self.stats.refused(operation, header["error"])
        self._send(peer, header, None)

    def _deliver(
        self, held: Held, found: Answer | errors.MqError, extra: Mapping[str, Any]
    ) -> bool:
        """Sends what the desk has for a pull; False when the peer is gone."""
        if isinstance(found, errors.MqError):
            header, payload = frames.refusal(held.request_id, found), None
        else:
            header = frames.answer(held.request_id, **found.fields, **extra)
            payload = found.payload
        self.stats.pulled(held.pull.queue.topic, header, payload)
        return self._send(held.peer, header, payload)

    def decide_again(self, is_own: Callable[[bytes], bool]) -> None:
        """Ends the held pulls whose users may not pull any more, or who never said who they are.
        Call it when users have changed. `is_own`: whether a peer is at a local socket."""
        is_on = self._port is not None and self._port.is_on

        def refusal(held: Held) -> errors.MqError | None:
            if held.asker is not None:
                return held.asker.refusal()
            if not is_on or is_own(held.peer):
                return None
            return errors.NotLoggedIn(NO_KEY, KEY_HINT)

        self.desk.end_refused(refusal)

    def _answer(
        self, operation: str, header: Header, now: float, asker: PortAsker | None
    ) -> Answer:
        if operation == "ping":
            return Answer({})
        desk = self.desk
        if desk.trouble is not None:
            raise desk.trouble
        store, tail = desk.store, desk.tail
        match operation:
            case "get":
                wanted = lookups.parse_get(header)
                desk.see_end(now)
                return lookups.get(store, tail, wanted, asker)
            case "find":
                asked_for = requests.FIND.parse(header)
                found = lookups.find_messages(store, self._topics, asked_for, asker)
                self.stats.looked_up(bool(found.fields["count"]))
                return found
            case "offsets":
                asked = requests.OFFSETS.parse(header)
                desk.see_end(now)
                return lookups.offsets(store, tail, self._topics, asked)
            case "seek":
                return lookups.seek(store, requests.SEEK.parse(header))
            case "fetch":
                return lookups.fetch(store, header)
            case "layout":
                return lookups.layout(store, requests.LAYOUT.parse(header))
            case "topics":
                return lookups.list_all_topics(store, self._topics, asker)
        raise errors.UnknownOperation(
            f"a reader knows no operation {operation[:40]!a}",
            "pull, get, find, offsets, seek, topics, fetch, layout or ping",
        )


class ReaderStats:
    """Counts for the reader's one thread."""

    def __init__(self, counts: Counts | None = None, topics: TopicCounts | None = None) -> None:
        """`counts`: those of a stats page; `topics`: messages by topic. All may be absent."""
        self._counts = counts = Counts(series.READER) if counts is None else counts
        self._numbers = counts.numbers
        self._ok = {
            op: counts.place(series.REQUESTS, op=op, code=series.OK) for op in series.READER_OPS
        }
        self._durations = {op: counts.place(series.DURATION, op=op) for op in series.READER_OPS}
        self._pull_ok = self._ok[PULL]
        self._hit, self._miss = (
            counts.place(series.INDEX_LOOKUPS, result=one) for one in series.LOOKUPS
        )
        self._topics = topics
        self.pulls = 0
        """The answers to pulls, refusals included."""

    def pulled(self, topic: str, header: Header, payload: request_server.Payload | None) -> None:
        """Counts the answer to a pull, which may be a refusal."""
        self.pulls += 1
        if not header["ok"]:
            self.refused(PULL, header["error"])
            return
        self._numbers[self._pull_ok] += 1
        if payload is not None and self._topics is not None:
            self._topics.add(topic, header["count"], len(payload))

    def answered(self, operation: str, took: int) -> None:
        """Counts the answer to another request that succeeded; it took `took` ns."""
        self._numbers[self._ok.get(operation, self._ok[series.OTHER])] += 1
        self.took(operation, took)

    def took(self, operation: str, took: int) -> None:
        """Counts the latency, in ns, of an answer that was given at once."""
        self._counts.observe(self._durations.get(operation, self._durations[series.OTHER]), took)

    def refused(self, operation: str, error: Header) -> None:
        """Counts a refusal, and notes the damage that it is about."""
        status = error["status"]
        op = operation if operation in series.READER_OPS else series.OTHER
        code = status if status in series.CODES else series.CODES[-1]
        self._numbers[self._counts.place(series.REQUESTS, op=op, code=code)] += 1
        if status == errors.CorruptError.status:
            process.met_damage.note_place(error["where"], error["offset"], error["found"])

    def looked_up(self, is_hit: bool) -> None:
        self._numbers[self._hit if is_hit else self._miss] += 1


class Reader:
    """The loop: it owns the sockets, the follower of the store and the stats page."""

    def __init__(
        self,
        site: ReaderSite,
        server: request_server.Server,
        page: WorkerPage,
        context: Context,
        port: PortGuard | None = None,
    ) -> None:
        self.server = server
        self._page = page
        self._port = port
        self.service = ReaderService(
            open_fitting(site),
            TopicsFile(site.root),
            transfer_limits(site.settings),
            server.send,
            site.shards,
            port,
        )
        self._follower = StoreFollower(site, self.service.desk, page, context)
        number = int(site.slot.removeprefix(READER))
        self._stats = StatsPage(site.root, series.READER, number)
        self._topics = TopicCounts(site.root, series.READER, number)
        self.was_lone = False
        """The last turn served one look-up: its client may wait with the next one."""
        self.service.stats = ReaderStats(self._stats.counts, self._topics)

    def run(self, stop: process.StopFlag) -> None:
        """Serves until the flag is set, then answers the held pulls."""
        server, follower, sleep_ms = self.server, self._follower, 0
        bell_fd = follower.bell_fd
        wait = request_server.RequestWait((*server.watched, bell_fd, stop.fd), server)
        self._page.publish(state=RUNNING)
        while not stop.is_set:
            ready = wait.poll(sleep_ms, self.was_lone)
            now = time.monotonic()
            has_work = bool(ready or server.ready or server.unsent)
            if has_work or follower.is_anything_due(now):
                try:
                    self.step(now, is_rung=any(one == bell_fd for one, _ in ready))
                except (OSError, errors.MqError) as error:
                    self._pause(error, now)
                now = time.monotonic()
            sleep_ms = 0
            if follower.ask_for_ring() and not server.ready:
                sleep_ms = follower.sleep_ms(now, bool(server.unsent))
        self._page.publish(state=STOPPING)
        self._stop()

    def _pause(self, error: OSError | errors.MqError, now: float) -> None:
        """Without a free descriptor a later turn does the rest; raises any other error."""
        if isinstance(error, errors.MqError):
            if not is_shortage(error):
                raise error
            log.warning("not done for now", extra=fields(why=error))
        elif not disk.is_passing(error):
            raise error
        if now >= self._follower.beat_at:
            self._follower.beat(now, self.service.requests)
            self._show(now)
        time.sleep(SHORTAGE_S)

    def step(self, now: float, is_rung: bool) -> None:
        """One turn: takes in the pages, serves requests, wakes held pulls, times out, beats."""
        follower = self._follower
        follower.begin_turn(now, is_rung)
        if self._port is not None and self._port.look(now):
            self.service.decide_again(self.server.is_own)
        service, requests, look_ups = self.service, self.service.requests, self.service.look_ups
        for _ in range(REQUESTS_AT_ONCE):
            received = self.server.receive()
            if received is None:
                break
            follower.catch_up(now)
            service.handle(received, now)
        self.was_lone = service.requests - requests == service.look_ups - look_ups == 1
        follower.end_turn(now)
        if now >= follower.beat_at:
            follower.beat(now, service.requests)
            self._show(now)

    def _show(self, now: float) -> None:
        self._stats.publish()
        self._topics.publish()
        process.met_damage.turn(now)
        self.server.turn()

    def _stop(self) -> None:
        self._follower.stop()
        stopping = errors.ServiceNotAvailable(
            "this reader is stopping", "ask another one, or again later"
        )
        self.server.may_have_remote = True
        for _ in range(STOP_REQUESTS_MAX):
            received = self.server.receive()
            if received is None:
                break
            self.service.refuse(received, stopping)
        self._follower.stopped(self.service.requests)

    def close(self) -> None:
        self._stats.close()
        self._topics.close()
        self.server.close()
        self._follower.close()


def main(arguments: list[str] | None = None) -> int:
    parser = process.child_parser("node.reader.loop", __doc__)
    parser.add_argument("--bind", default=f"tcp://127.0.0.1:{DEFAULT_PORT + 2}")
    parser.add_argument("--local", default="", metavar="IPC", help="for clients of this machine")
    parser.add_argument("--keys", action="store_true", help="clients over TCP come with keys")
    parser.add_argument("--cluster", default=DEFAULT_CLUSTER, help="the cluster of the node")
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
        raise errors.BadRequest(
            f"reader {options.index} of a node with {options.shards} queue workers"
        )
    site = ReaderSite(root, f"{READER}{options.index}", options.shards, settings)
    with process.take_place(root, site.slot) as page:
        context: Context = zmq.Context()
        bulk = request_server.bulk_socket(options.local) if options.local else ""
        table, audit = UserTable(root), AuditLog(root, f"audit.{site.slot}.log")
        port = PortGuard(Rights(table, settings), audit, options.cluster)
        gate = gate_of(root, table.user_of_key, audit) if options.keys else None
        server = open_server(
            gate, context, options.bind, frame_bytes_max=FRAME_BYTES_MAX, answers_max=ANSWERS_MAX,
            local=options.local, bulk=bulk,
        )  # fmt: skip
        reader = Reader(site, server, page, context, port)
        child.report_ready(server.endpoint)
        reader.run(stop)
        reader.close()
        port.close()
        context.term()


if __name__ == "__main__":
    process.leave(main())
