"""The replica process: in the writer's place, it copies a master's log instead of taking appends.

It has the writer's lock, state page, segments and socket, so workers and readers work as they do
with a writer. Of what clients ask it questions are answered, and changes refused.
Run it as `python -m keelog.replication.replica.loop DIR -X follow=HOST:PORT`.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from keelog.replication.replica.follower import MasterFollower, StartsElsewhere
from keelog.replication.replica.log_copy import LogCopy, begin_as_master, has_log, settings_of_copy
from keelog.replication.replica.master_link import MasterFacts, ask_facts, find_master
from keelog.replication.replica.tables import MasterTables
from node.access.own_credentials import OwnLogin
from node.runtime import addresses, disk, process, run_files, state_page, store_paths, wakeup
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.serving.curve_server import open_server
from node.serving.request_server import Received, Server, serve_waiting
from node.store.identity.roles import REPLICA, StoreRole, load_role, save_role
from node.writer import broker_checkpoint, loop, requests
from node.writer.stats import WriterStats
from node.writer.store import WriterStore
from protocol.errors import BadRequest, MqError, NodeFollows
from protocol.wire.frames import Header

if TYPE_CHECKING:
    from node.access.own_credentials import OwnCredentials
    from node.access.tls import ClientTls

log = logging.getLogger("keelog.replica")

ANSWERS_AT_ONCE = 100
QUESTIONS = frozenset(
    {"ping", "topics", "groups", "cursor_get", "cursor_commit", "users", "change_users"}
)
"""Places of groups are taken as by a Java slave, for the time without a master: the master's own
replace them. Users are each node's own, as at a broker and its slaves, unless they follow the
master's."""

HEARTBEAT_S = 0.1
STATE_EVERY_S = 0.5
"""How often the file for the supervisor is written, while something changes."""
ROLE_EVERY_S = 10.0
STOP_WAIT_S = 5.0
_SLEEP_MS = int(wakeup.SLEEP_S_MAX * 1000)
_SOON_MS = 20


class Replica:
    """The loop. It owns the socket and, through `copy`, the log."""

    def __init__(
        self,
        store: WriterStore,
        server: Server,
        workers: wakeup.Waiters,
        find: Callable[[], run_files.MasterPlace],
        source: str,
        tls: "ClientTls | None" = None,
        credentials: "OwnCredentials | None" = None,
    ) -> None:
        now = time.monotonic()
        self.store = store
        self.server = server
        self.workers = workers
        self.source = source
        self.copy = LogCopy(store, workers, now)
        broker_id = store.settings.controller_id
        self.follower = MasterFollower(self.copy, find, now, broker_id, tls, credentials)
        users = store.users if store.settings.auth_follow_master else None
        self.tables = MasterTables(
            store.root, store.topics, store.offsets, now, tls, credentials, users
        )
        self.stats = WriterStats(store.root, True)
        self._beat_at = self._state_at = self._checkpoint_at = 0.0
        self._shown = run_files.read_follow_state(store.root)
        if self._shown.source == source:
            # What is known of a master that is away now, for a promotion.
            self.follower.master_end = self._shown.master_end
            self.follower.heard_ms = self._shown.contact_ms
        self._level_ms = 0
        """When the copy last lacked nothing, in ms since 1970; 0: not since the start."""
        before = load_role(store.root)
        acknowledged = 0 if before is None else before.acknowledged
        self._role = StoreRole(REPLICA, source, store.epoch, store.log.end, acknowledged)
        self._role_at = now
        save_role(store.root, self._role)

    def run(self, stop: process.StopFlag) -> None:
        """Follows until the flag is set, then stops in order. Raises OSError, StoreMoved and
        StartsElsewhere."""
        self.store.page.publish(state=state_page.RUNNING)
        has_more = False
        while not stop.is_set:
            self._wait(stop.fd, has_more)
            has_more = self.step(time.monotonic())
        self._stop()

    def _wait(self, stop_fd: int, has_more: bool) -> None:
        """Until there is something to do: bytes, requests, the end of a flush, the clock."""
        watched: list[tuple[Any, int]] = [(one, 1) for one in (*self.server.watched, stop_fd)]
        watched += [(fd, 1) for fd in (*self.copy.flushing.fds, self.tables.fd)]
        watched += self.follower.watched
        busy = has_more or self.server.ready
        soon = self.server.unsent or self.follower.lacks
        zmq.zmq_poll(watched, 0 if busy else _SOON_MS if soon else self._sleep_ms())

    def _sleep_ms(self) -> int:
        due = min(self._beat_at + HEARTBEAT_S, self.follower.try_at)
        return max(1, min(_SLEEP_MS, int((due - time.monotonic()) * 1000)))

    def step(self, now: float) -> bool:
        """One turn. Returns whether there is more to read at once."""
        self.copy.take_flushed(now)  # before the report: a send at the master waits for it
        has_more, full = False, self.store.retention.full
        if full is None:
            has_more = self.follower.turn(now)
        else:  # a writer would refuse appends
            self.follower.wait_for_room(full, now)
        self.copy.flush(now)
        self._serve_clients()
        self.tables.turn(now, self.follower.address.remoting, self.copy.flushed)
        if now - self._beat_at >= HEARTBEAT_S:
            self._keep_house(now)
        return has_more

    def _keep_house(self, now: float) -> None:
        self._beat_at = now
        store_paths.check_held()
        store = self.store
        lacks = store.retention.full or self.follower.lacks
        store.page.publish(flush_began_ms=self.copy.flushing.flush_began_ms)
        if lacks:
            store.page.publish_refusal(state_page.DISK_FULL, lacks)
        else:
            store.page.publish(state=state_page.RUNNING)
        store.beat()
        store.port.look(now)
        process.met_damage.turn(now)
        self.stats.publish(0, 0)
        self.workers.look()
        self.server.turn()
        if now - self._checkpoint_at >= broker_checkpoint.SAVE_EVERY_S:
            self._checkpoint_at = now
            with disk.if_room():
                store.checkpoint.save_running()
                store.topics.keep_file()
        store.offsets.turn(now)
        self.copy.settle()  # retention may save the ends of queues
        with disk.if_room():
            store.retain(now)
        if now - self._role_at >= ROLE_EVERY_S:
            self._role_at = now
            with disk.if_room():
                self._note_role()
        if store.log.lacks_next:
            store.log.retry_next()
        if now - self._state_at >= STATE_EVERY_S:
            self._state_at = now
            self.follower.look(now)
            self._show()

    def _note_role(self) -> None:
        """Notes what was acknowledged, for who wants to promote this store."""
        acknowledged = max(self._role.acknowledged, self.follower.acknowledged)
        if acknowledged != self._role.acknowledged:
            self._role = self._role._replace(acknowledged=acknowledged)
            save_role(self.store.root, self._role)

    def _show(self) -> None:
        """Writes the state for the supervisor, where it has changed."""
        follower, tables, copy = self.follower, self.tables, self.copy
        known = max(follower.master_end, tables.facts.end if tables.facts is not None else 0)
        lag = max(0, known - copy.end)
        stopped, (waits_for, hint) = follower.stopped, follower.waits_for
        state = run_files.FollowState(
            state=follower.state,
            source=self.source,
            master=follower.address.ha,
            remoting=follower.address.remoting,
            kind="" if stopped is None else type(stopped).__name__,
            reason=waits_for if stopped is None else stopped.reason,
            hint=hint if stopped is None else stopped.hint,
            disconnected=follower.disconnected,
            disconnected_ms=follower.disconnected_ms,
            connections=follower.connections,
            end=copy.end,
            acknowledged=follower.acknowledged,
            master_end=known,
            contact_ms=follower.heard_ms,
            lag_bytes=lag,
            lag_ms=self._lag_ms(lag),
            metadata=dict(tables.why),
            metadata_ms=tables.fetched_ms,
            progress_ms=tables.progress_ms,
            topics_end=tables.topics_end,
        )
        if state != self._shown:
            with disk.if_room():
                run_files.write_follow_state(self.store.root, state)
                self._shown = state

    def _lag_ms(self, lag_bytes: int) -> int:
        """How old the first byte is that may be missing here: it came after the newest record, and
        after the moment in which nothing was missing. A master that is away may have more."""
        now, follower = process.now_ms(), self.follower
        if follower.is_connected and not lag_bytes:
            if follower.state == run_files.FOLLOWING:
                self._level_ms = now
            return 0
        known = [self._level_ms, min(self.copy.last_store_ms, now)]
        return now - max(known) if any(known) else 0

    def _serve_clients(self) -> None:
        """Replies to questions and refuses the rest, up to a number that delays no copy."""
        serve_waiting(self.server, ANSWERS_AT_ONCE, str(self.store.root), self._answer)

    def _answer(self, operation: str, header: Header, received: Received) -> Header:
        port = self.store.port
        asker = port.asker_of(received, operation, header) if port.is_on else None
        if operation not in QUESTIONS:
            raise NodeFollows(
                f"this node follows {self.source} and takes {operation[:40]} from no client",
                "send to the master; keelog replica promote makes this node one",
            )
        if operation == "change_users" and self.store.settings.auth_follow_master:
            raise NodeFollows(
                f"the users here are those of {self.source}: auth_follow_master is true",
                "change them there; they come here within seconds",
            )
        if operation == "cursor_commit":
            self.copy.settle()  # so that the ends of queues are up to date
        return requests.answer_other(self.store, operation, header, received, asker)

    def _stop(self) -> None:
        """Ends the connection, flushes, waits for the workers, and leaves the mark of a clean
        stop."""
        self.store.page.publish(state=state_page.STOPPING)
        self.follower.close()
        self.workers.ring_all()
        deadline = time.monotonic() + STOP_WAIT_S
        while True:
            now = time.monotonic()
            self.copy.take_flushed(now)
            self.copy.flush(now)
            self._serve_clients()
            waits = self.store.has_workers() and not self.store.workers_are_done()
            if self.copy.flushing.is_done and (not waits or now >= deadline):
                break
            self.store.beat()
            time.sleep(_SOON_MS / 1000)
        self.tables.close()
        self.copy.settle()
        self.copy.close()
        self.stats.close(0)
        try:
            self._note_role()
            self.store.close_cleanly(self.store.workers_are_done())
        except OSError as error:
            if error.errno not in disk.PASSING:
                raise
            log.warning("no mark of a clean stop could be made", extra=fields(why=error))


def main(arguments: list[str] | None = None) -> int:
    """Runs the replica of one store until SIGTERM."""
    child = process.ChildProcess(
        slot="replica",
        what="the replica of {} cannot start",
        options=loop.log_owner_options("keelog.replication.replica.loop", __doc__, arguments),
        oom_points=process.OOM_WRITER,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    root = child.root
    if not settings.follow:
        raise BadRequest("a replica has to follow somebody", "add -X follow=HOST:PORT")
    source = addresses.parse_follow(settings.follow)
    find = partial(find_master, root, source, settings.follow_remoting)
    segment_bytes = settings.mapped_file_size_commit_log
    own = OwnLogin.of(settings)
    prepare = partial(_prepare, find=find, segment_bytes=segment_bytes, own=own)
    store = loop.open_own_store(child, settings_of_copy(settings), prepare)
    context: wakeup.Context = zmq.Context()
    workers = wakeup.Waiters(context, root, loop.is_log_follower)
    gate = loop.gate_of_owner(store, child.options.keys)
    server = open_server(gate, context, child.options.bind, local=child.options.local)
    child.what = f"the replica of {root} stops, its log can no longer be trusted"
    replica = Replica(store, server, workers, find, str(source), *own)
    child.report_ready(server.endpoint)
    try:
        replica.run(stop)
    except StartsElsewhere:
        # Nothing was copied yet: the next start of this process makes the log anew.
        log.info("starts again: the master's log begins elsewhere")
        os._exit(process.EXIT_OK)
    except MqError:
        server.close()
        raise
    context.destroy(linger=1000)


def _prepare(
    root: Path,
    find: Callable[[], run_files.MasterPlace],
    segment_bytes: int,
    own: OwnLogin,
) -> None:
    """Before the store is opened: an empty one begins as the master's log, where that says how."""
    remoting = find().remoting
    if not remoting or has_log(root):
        return
    facts = ask_facts(remoting, True, *own)
    if isinstance(facts, MasterFacts):
        begin_as_master(root, facts, segment_bytes)


if __name__ == "__main__":
    process.leave(main())
