"""The writer process: owns the CommitLog, takes appends, announces how far the log reaches.

One loop: take all that waits, append it as one group, publish the state page, notify, answer.
In SYNC_FLUSH (or where a request asks for it) the answer waits for the flush that covers it.
"""

import argparse
import logging
import os
import struct
import sys
import time
from pathlib import Path

import zmq

from node.broker_checkpoint import SAVE_EVERY_S
from node.flush import Flusher, FlushState, due
from node.serving import BadFrames, Received, Server
from node.store import disk
from node.store.process import (
    StopFlag,
    die_with_parent,
    end_badly,
    install_stop_signals,
    is_disk_full,
    now_ms,
    raise_file_limit,
    report_ready,
    set_title,
)
from node.store.settings import Settings, load_settings
from node.store.state_page import DISK_FULL, RUNNING, STOPPING
from node.writer_requests import (
    FLUSH_DISK_TIMEOUT,
    PUT_OK,
    WAIT_FLUSHED,
    WAIT_NONE,
    Pending,
    parse_append,
    parse_send,
    parse_wait,
)
from node.writer_store import WriterStore, first_address, open_writer_store
from protocol.errors import MqError, NodeBusy, ServiceNotAvailable, UnknownOperation
from protocol.message_id import Host, parse_host
from protocol.wire import (
    Header,
    answer,
    check_envelope,
    refusal,
    request_id,
    take,
    take_int,
    unpack,
)

log = logging.getLogger("keelog.writer")

GROUP_REQUESTS_MAX = 512
GROUP_BYTES_MAX = 1024 * 1024
HEARTBEAT_S = 0.1
DISK_RETRY_S = 1.0
STOP_WAIT_S = 5.0
_HINT = struct.Struct("<qq")
_PERM_MAX = 15


class Writer:
    """The loop. It owns the sockets and, through `store`, the log."""

    def __init__(self, store: WriterStore, server: Server, hints: "zmq.Socket[bytes]") -> None:
        self.store = store
        self.settings: Settings = store.settings
        self.server = server
        self.hints = hints
        self.flusher = Flusher()
        now = time.monotonic()
        self.flush_state = FlushState(store.log.end, store.log.end, now, now)
        self.waiting: list[Pending] = []
        """Appended, to be answered when flushed; ends ascend."""
        self.waiting_bytes = 0
        self.stopping = False
        self.lacks_room = False
        """Whether an append was refused for a full disk, and it is still full."""
        self.last_heartbeat = 0.0
        self.last_disk_retry = 0.0
        self.last_checkpoint = now

    def run(self, stop: StopFlag) -> None:
        """Serves until the flag is set, then stops in order."""
        poller = zmq.Poller()
        poller.register(self.server.socket, zmq.POLLIN)
        poller.register(self.flusher.fd, zmq.POLLIN)
        poller.register(stop.fd, zmq.POLLIN)
        self.store.page.publish(state=RUNNING)
        while not stop.is_set:
            poller.poll(self._sleep_ms())
            self.step(time.monotonic())
        self._stop(poller)

    def step(self, now: float) -> None:
        """One turn: a group of requests, a flush begun or ended, time-outs, the heartbeat."""
        self._collect_flush(now)
        group = self._take_group(now)
        if group:
            self._append(group)
        self._begin_flush(now)
        self._time_out(now)
        if now - self.last_heartbeat >= HEARTBEAT_S:
            self.store.page.publish(heartbeat_ms=now_ms())
            self.last_heartbeat = now
            self._look_for_room()
        if now - self.last_checkpoint >= SAVE_EVERY_S:
            self.last_checkpoint = now
            self.store.checkpoint.save_running()
        if not self.stopping:
            self.store.retain(now)
        if self.store.log.lacks_next and now - self.last_disk_retry >= DISK_RETRY_S:
            self.last_disk_retry = now
            if self.store.log.retry_next():
                log.info("the next segment could be made: the disk has room again")

    def _sleep_ms(self) -> int:
        return 10 if self.flush_state.appended != self.flush_state.flushed else 50

    def _look_for_room(self) -> None:
        """Shows when appends that were refused for a full disk may come again."""
        if self.lacks_room and not self.store.log.lacks_next and not self.stopping:
            self.lacks_room = False
            self.store.page.publish(state=RUNNING)

    # -- requests -----------------------------------------------------------------------------

    def _take_group(self, now: float) -> list[Pending]:
        group: list[Pending] = []
        size = 0
        for _ in range(GROUP_REQUESTS_MAX):
            if size >= GROUP_BYTES_MAX:
                break
            received = self.server.receive()
            if received is None:
                break
            if isinstance(received, BadFrames):
                self.server.send(received.peer, refusal(received.request_id, received.error))
                continue
            pending = self._parse(received, now)
            if pending is not None:
                group.append(pending)
                size += len(pending.append.records)
        return group

    def _parse(self, received: Received, now: float) -> Pending | None:
        """The append asked for; other operations are answered here. Never raises for bad input."""
        number = 0
        try:
            header = unpack(received.header)
            number = request_id(header)
            operation = check_envelope(header)
            if operation in ("send", "append"):
                return self._parse_append(received, header, operation, now)
            self.server.send(received.peer, self._other(operation, header, number))
        except MqError as error:
            self._refuse(received.peer, number, error)
        return None

    def _refuse(self, peer: bytes, number: int, error: MqError) -> None:
        if is_disk_full(error) and not self.stopping:
            self.lacks_room = True
            self.store.page.publish(state=DISK_FULL)
        self.server.send(peer, refusal(number, error))

    def _parse_append(
        self, received: Received, header: Header, operation: str, now: float
    ) -> Pending:
        if self.stopping:
            raise ServiceNotAvailable("the node is stopping", "send it again when it is back")
        full = len(self.waiting) >= self.settings.send_thread_pool_queue_capacity
        if full or self.waiting_bytes >= self.settings.waiting_bytes_max:
            raise NodeBusy(f"{len(self.waiting)} requests wait for the disk", "send it again later")
        self.store.retention.check_room()
        wait = parse_wait(header)
        topic, unique = "", ""
        if operation == "send":
            sender = received.sender()
            header.setdefault("born_timestamp", now_ms())
            append, message = parse_send(
                header, received.payload, self.store.topics, self.store.rules, sender
            )
            topic, unique = message.topic, message.unique_key
            if not message.wait:
                wait = WAIT_NONE
        else:
            append = parse_append(header, received.payload)
        deadline = now + self.settings.sync_flush_timeout / 1000
        is_send = operation == "send"
        number = request_id(header)
        return Pending(received.peer, number, append, wait, is_send, topic, unique, deadline)

    def _other(self, operation: str, header: Header, number: int) -> Header:
        table = self.store.topics
        if operation == "ping":
            return answer(number)
        if operation == "topics":
            rows = [
                {
                    "topic": topic.name,
                    "read_queues": topic.read_queues,
                    "write_queues": topic.write_queues,
                    "perm": topic.perm,
                }
                for topic in table.all()
            ]
            return answer(number, topics=rows)
        name = take(header, "topic", str) if operation in ("create_topic", "delete_topic") else ""
        if operation == "create_topic":
            queues = take_int(header, "queues", 1, 2**31 - 1)
            perm = take_int(header, "perm", 0, _PERM_MAX, 6)
            topic, created = table.create(name, queues, perm)
            return answer(number, topic=name, queues=topic.write_queues, created=created)
        if operation == "delete_topic":
            return answer(number, topic=name, deleted=table.delete(name))
        raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")

    # -- appending and answering --------------------------------------------------------------

    def _append(self, group: list[Pending]) -> None:
        before = self.store.log.end
        self.store.appender.append([pending.append for pending in group], now_ms())
        end = self.store.log.end
        self.flush_state.appended = end
        if end != before:
            self.store.page.publish(
                records=self.store.appender.records, appended=end, committed=end
            )
            if not self.settings.is_sync_flush:
                self._announce(end)
            self.store.snapshot_if_due()
        for pending in group:
            if pending.append.error is not None:
                self._refuse(pending.peer, pending.request_id, pending.append.error)
            elif self._waits(pending):
                self.waiting.append(pending)
                self.waiting_bytes += len(pending.append.records)
            else:
                self._answer(pending, PUT_OK, flushed=False)
        self.flush_state.waiting = bool(self.waiting)

    def _waits(self, pending: Pending) -> bool:
        if pending.wait == WAIT_NONE:
            return False
        return pending.wait == WAIT_FLUSHED or self.settings.is_sync_flush

    def _announce(self, readable: int) -> None:
        """Page first, then the hint: who hears it finds the page moved."""
        self.store.page.publish(readable=readable)
        self.hints.send(_HINT.pack(self.store.epoch, readable), zmq.NOBLOCK)

    def _answer(self, pending: Pending, status: str, flushed: bool) -> None:
        header = pending.answer(self.store.store_host, self.store.epoch, status, flushed)
        self.server.send(pending.peer, header)

    # -- flushing -----------------------------------------------------------------------------

    def _begin_flush(self, now: float) -> None:
        if self.flusher.is_busy or not due(self.flush_state, now, self.settings):
            return
        self.flush_state.last_flush_at = now
        self.flush_state.last_thorough_at = now
        job = self.store.log.flush_job()
        self.flusher.start(job, self.store.after_flush(job.target))

    def _collect_flush(self, now: float) -> None:
        """Raises the OSError of a failed flush: the process ends, nothing more is acknowledged."""
        done = self.flusher.collect()
        if done is None:
            return
        self.flush_state.flushed = done.target
        self.store.flushed_to(done.target)
        if self.settings.is_sync_flush:
            self._announce(done.target)
        ready = 0
        while ready < len(self.waiting) and self.waiting[ready].append.end <= done.target:
            pending = self.waiting[ready]
            self.waiting_bytes -= len(pending.append.records)
            self._answer(pending, PUT_OK, flushed=True)
            ready += 1
        del self.waiting[:ready]
        self.flush_state.waiting = bool(self.waiting)

    def _time_out(self, now: float) -> None:
        """Who waited too long is told so; the message is stored (FLUSH_DISK_TIMEOUT)."""
        late = 0
        while late < len(self.waiting) and self.waiting[late].deadline <= now:
            pending = self.waiting[late]
            self.waiting_bytes -= len(pending.append.records)
            self._answer(pending, FLUSH_DISK_TIMEOUT, flushed=False)
            late += 1
        del self.waiting[:late]

    # -- stopping -----------------------------------------------------------------------------

    def _stop(self, poller: zmq.Poller) -> None:
        """Refuses appends, flushes, waits for the workers, leaves a clean store."""
        self.stopping = True
        self.store.page.publish(state=STOPPING)
        deadline = time.monotonic() + STOP_WAIT_S
        while True:
            now = time.monotonic()
            self.flush_state.waiting = True
            self.step(now)
            flushed = self.flush_state.flushed == self.flush_state.appended
            waits = self.store.has_workers() and not self.store.workers_are_done()
            if flushed and (not waits or now >= deadline):
                break
            poller.poll(5)
        self.flusher.close()
        try:
            self.store.close_cleanly(self.store.workers_are_done())
        except OSError as error:
            if error.errno not in disk.DISK_FULL:
                raise
            log.warning("no room for the mark of a clean stop: %s", error)


def main(arguments: list[str] | None = None) -> int:
    """Runs the writer of one store until SIGTERM."""
    options = _options(arguments)
    set_title("keelog-writer")
    raise_file_limit()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s writer %(message)s"
    )
    stop = install_stop_signals()
    if options.ready_fd is not None:
        die_with_parent()
    root = Path(options.dir).resolve()
    try:
        settings = load_settings(options.settings)
        store_host = _store_host(options.bind, options.control_port)
        store = open_writer_store(root, settings, store_host, alone=options.ready_fd is None)
    except (MqError, OSError) as error:
        what = f"the writer of {root} cannot start"
        return end_badly(what, error, str(root), options.ready_fd)
    os.chdir(store.run_dir)
    context = zmq.Context()
    try:
        hints = context.socket(zmq.PUB)
        hints.setsockopt(zmq.LINGER, 0)
        hints.bind("ipc://log.ipc")
        server = Server(context, options.bind)
        report_ready(options.ready_fd, server.endpoint)
        Writer(store, server, hints).run(stop)
    except OSError as error:
        # Fail-stop: after a failed write or flush nothing more may be acknowledged.
        what = f"the writer of {root} stops, its log can no longer be trusted"
        os._exit(end_badly(what, error, str(root), options.ready_fd))
    context.destroy(linger=1000)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m node.writer", description=__doc__)
    parser.add_argument("dir", metavar="DIR", help="the store")
    parser.add_argument("--bind", default="tcp://127.0.0.1:9871")
    parser.add_argument("--control-port", type=int, default=9870)
    parser.add_argument("-X", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--ready-fd", type=int)
    return parser.parse_args(arguments)


def _store_host(bind: str, control_port: int) -> Host:
    """What records name as their store host: the IPv4 address of the endpoint, the control port."""
    address = bind.removeprefix("tcp://").rpartition(":")[0]
    if address in ("*", "0.0.0.0"):
        address = first_address()
    return Host(parse_host(address).ip, control_port)


if __name__ == "__main__":
    sys.exit(main())
