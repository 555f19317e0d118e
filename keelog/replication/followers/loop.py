"""The process that serves those who follow the node, by RocketMQ's replication.

Run it as `python -m keelog.replication.followers.loop DIR --bind HOST:PORT`.
One thread and one epoll serve all followers.
"""

import logging
import os
import select
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keelog.replication.followers import connection as connections
from keelog.replication.followers.allowed import FollowerPeers
from keelog.replication.followers.book import AheadBefore, ElectedRule, FollowerBook
from keelog.replication.followers.connection import FollowerConnection, FollowerGone, Gone, Peer
from node.access.tls_settings import ClientAuth, load_tls, server_tls
from node.runtime import disk, process, run_files, state_page, wakeup
from node.runtime.addresses import open_port, parse_listen
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.store_paths import check_held
from node.store.identity.roles import load_master_epochs
from protocol import addresses

if TYPE_CHECKING:
    from keelog.replication.followers.newcomers import Known, Newcomers
    from node.access.tls import ServerTls

log = logging.getLogger("keelog.followers")

FOLLOWERS_MAX = 64
"""Connections; a further one is closed."""
BACKLOG = 16
LOOK_S_MIN = 0.005
"""A lost ring delays a follower by this much while the log grows, and by more after a quiet time
(`quiet_sleep_s`)."""
HEARTBEAT_S = 0.1
SHOW_S = 0.2
"""How often the file of the followers is written while something in it changes: the lag in `status`
is so old, and by it the keeper of an elected master decides who is in sync."""
STOP_S_MAX = 2.0
"""How long a stop waits for followers to get the end of the log and to acknowledge it."""
SHORTAGE_S = 0.1
"""The pause after a connection that could not be taken for want of a descriptor."""
Events = dict[int, int]


class FollowerServer:
    """Owns the listening socket, the connections and the state page."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        listener: socket.socket,
        page: state_page.WorkerPage,
        tls: "ServerTls | None" = None,
    ) -> None:
        """The current folder must be `keelog/run`."""
        self._root = root
        self._page = page
        self._listener = listener
        self._pace = connections.FollowerPace(
            settings.ha_send_heartbeat_interval / 1000, settings.ha_housekeeping_interval / 1000
        )
        self._peers = FollowerPeers(settings.ha_allowed_peers)
        self._allowed_text = settings.ha_allowed_peers
        self._log = connections.FlushedLog(root)
        controller_id = settings.controller_id
        self._rule = ElectedRule(root, controller_id) if controller_id else None
        self._book = FollowerBook(
            settings.followers_needed, settings.ha_max_gap_not_in_sync, self._rule
        )
        self._ahead = AheadBefore()
        self._connections: dict[int, FollowerConnection] = {}
        self._wakeup = wakeup.DatagramWakeup(wakeup.FOLLOWERS_SLOT)
        self._writer = wakeup.DatagramRinger(wakeup.WRITER_SLOT)
        self._epoll = select.epoll()
        for fd in (listener.fileno(), self._wakeup.watched):
            self._epoll.register(fd, select.EPOLLIN)
        self._tls = tls
        self._trust_changes = 0
        self._certified: set[int] = set()
        """The connections that may follow by their certificates; others by their addresses."""
        self._newcomers: Newcomers | None = None
        if tls is not None:
            # Only here: OpenSSL costs a start 50 ms.
            from keelog.replication.followers import newcomers

            self._newcomers = newcomers.Newcomers(tls, self._epoll)
        self._blocked: set[int] = set()
        """The connections that wait until they can be written to."""
        self._acknowledged = self._count = -1
        self._rung_for = 0
        self._epoch = 0
        self._grew_at = time.monotonic()
        self._heartbeat_at = self._show_at = self._accept_at = 0.0
        self._shown: run_files.FollowersState | None = None

    def run(self, stop: process.StopFlag) -> None:
        """Serves until the flag is set, then until all have the end of the log, STOP_S_MAX at most.
        Raises StoreMoved."""
        self._epoll.register(stop.fd, select.EPOLLIN)
        self._page.publish(state=state_page.RUNNING)
        while not stop.is_set:
            self._turn(self._poll())
        self._epoll.unregister(stop.fd)
        self._page.publish(state=state_page.STOPPING)
        deadline = time.monotonic() + STOP_S_MAX
        while time.monotonic() < deadline and not self._all_have_all():
            self._turn(self._poll())
        for connection in list(self._connections.values()):
            self._end(connection, FollowerGone(Gone.STOP, "this node stops"))
        self._publish()
        self._show(time.monotonic())
        self._page.publish(state=state_page.STOPPED, wake_at=state_page.NEVER)

    def _all_have_all(self) -> bool:
        return all(
            one.acknowledged is None or one.acknowledged >= self._log.end
            for one in self._connections.values()
        )

    def _poll(self) -> Events:
        """Sleeps, unless there is something to do at once."""
        sleep_s = 0.0
        if not any(one.has_more(self._log) for one in self._connections.values()):
            # Who waits at the end of the log says so in the page, then looks once more.
            waits = bool(self._connections)
            self._page.publish(wake_at=self._log.end + 1 if waits else state_page.NEVER)
            if not self._log.has_grown:
                quiet_s = time.monotonic() - self._grew_at
                sleep_s = wakeup.quiet_sleep_s(quiet_s, LOOK_S_MIN) if waits else wakeup.SLEEP_S_MAX
        found = dict(self._epoll.poll(sleep_s))
        self._page.publish(wake_at=state_page.NEVER)
        return found

    def _turn(self, events: Events) -> None:
        now = time.monotonic()
        if self._wakeup.watched in events:
            self._wakeup.rings()
        if self._listener.fileno() in events and now >= self._accept_at:
            self._accept(now)
        if self._newcomers is not None:
            for known in self._newcomers.turn(events, now):
                self._begin_known(known, now)
        self._look(now)
        is_due = now - self._heartbeat_at >= HEARTBEAT_S
        if is_due and self._rule is not None:
            self._rule.look()
        self._serve(events, now)
        self._publish()
        if is_due:
            self._heartbeat_at = now
            self._keep_house(now)
        if now >= self._show_at:
            self._show_at = now + SHOW_S
            self._show(now)

    def _serve(self, events: Events, now: float) -> None:
        for fd, connection in list(self._connections.items()):
            try:
                if events.get(fd, 0) & ~select.EPOLLOUT:
                    connection.receive(now)
                connection.serve(self._log, now)
            except FollowerGone as gone:
                self._end(connection, gone)
            else:
                self._watch(connection)

    def _keep_house(self, now: float) -> None:
        check_held()
        self._page.beat(process.now_ms())
        process.met_damage.turn(now)
        self._log.look_for_page()
        if self._tls is not None:
            self._tls.look(now)
        self._look_who_may(now)

    def _look_who_may(self, now: float) -> None:
        """Ends the connections of those who were allowed to follow, and may be no more. A
        certificate is looked at when its owner connects: all of those have to come again."""
        trust_changes = 0 if self._tls is None else self._tls.trust_changes
        if trust_changes != self._trust_changes:
            self._trust_changes = trust_changes
            if self._newcomers is not None:
                self._newcomers.close()  # a handshake under way is by what was trusted before
            why = "other certificates are trusted now; with one of these it may come again"
            for fd in list(self._certified):
                self._end(self._connections[fd], FollowerGone(Gone.NOT_ALLOWED, why))
        if self._peers.look(now):
            for fd, connection in list(self._connections.items()):
                host = connection.host.strip("[]")
                if fd not in self._certified and not self._peers.allow(host):
                    why = f"ha_allowed_peers names {connection.host} no more"
                    self._end(connection, FollowerGone(Gone.NOT_ALLOWED, why))

    def _look(self, now: float) -> None:
        """Takes in how far the log is; after a new epoch nobody may have what was cut."""
        before, flushed = self._log.end, self._log
        flushed.look()
        if flushed.end != before:
            self._grew_at = now
        self._book.note_end(flushed.appended, now)
        if flushed.epoch == self._epoch:
            return
        self._epoch = flushed.epoch
        for connection in list(self._connections.values()):
            try:
                connection.forget_above(flushed.cut_at)
            except FollowerGone as gone:
                self._end(connection, gone)
        self._ahead.cut(flushed.cut_at)
        self._acknowledged = -1

    def _accept(self, now: float) -> None:
        try:
            connected, (host, port, *_) = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Of the connection, or no descriptor is free.
            self._accept_at = now + SHORTAGE_S
            log.warning("a connection was not taken", extra=fields(why=error))
            return
        if "." in host:
            host = host.removeprefix("::ffff:")  # IPv4, at a socket for both kinds
        peer = Peer(host, port)
        if self._newcomers is None:
            why = "" if self._peers.allow(host) else f"ha_allowed_peers does not name {host}"
            self._begin(connected, peer, now, why)
        elif (ended := self._newcomers.come(connected, peer, now)) is not None:
            self._begin_known(ended, now)

    def _begin_known(self, known: "Known", now: float) -> None:
        """With TLS, once it is known how a connection speaks."""
        from keelog.replication.followers.newcomers import refusal

        assert self._tls is not None
        if known.connected.fileno() < 0:
            log.info("a follower went at once", extra=fields(follower=known.peer, why=known.why))
            return
        is_named = self._peers.allow(known.peer.host)
        why = refusal(known, self._tls.mode, self._allowed_text, is_named)
        fd = known.connected.fileno()
        self._begin(known.connected, known.peer, now, why, known.is_encrypted)
        if known.is_certified and fd in self._connections:
            self._certified.add(fd)

    def _begin(
        self,
        connected: socket.socket,
        peer: Peer,
        now: float,
        why_not: str,
        is_encrypted: bool = False,
    ) -> None:
        """Serves a connection, or ends it at once, with the reason."""
        wire = connections.PlainWire()
        if self._rule is not None:
            epochs = partial(load_master_epochs, self._root)
            wire = connections.SwitchWire(epochs, lambda: max(0, self._acknowledged))
        admit = self._admit if self._rule is None else None
        connection = FollowerConnection(
            connected, str(peer), self._pace, now, process.now_ms(), wire, is_encrypted, admit
        )
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        log.info("a follower connected", extra=fields(follower=peer, tls=is_encrypted))
        if why_not:
            self._end(connection, FollowerGone(Gone.NOT_ALLOWED, why_not))
        elif len(self._connections) > FOLLOWERS_MAX:
            self._end(connection, FollowerGone(Gone.CROWD, f"{FOLLOWERS_MAX} are connected"))

    def _admit(self, connection: FollowerConnection, report: int) -> None:
        """Raises FollowerGone for a first report of somebody who was ahead before."""
        host, end = connection.host, self._log.appended
        if report > end:
            self._ahead.note(host, report, end)
            return
        others = (one for one in self._connections.values() if one.host == host)
        self._ahead.check(host, report, max(one.sent for one in others))

    def _watch(self, connection: FollowerConnection) -> None:
        """Hears when a blocked connection can be written to, and only then."""
        fd = connection.fd
        if connection.is_blocked == (fd in self._blocked):
            return
        if connection.is_blocked:
            self._blocked.add(fd)
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._blocked.discard(fd)
            self._epoll.modify(fd, select.EPOLLIN)

    def _end(self, connection: FollowerConnection, gone: FollowerGone) -> None:
        del self._connections[connection.fd]
        self._blocked.discard(connection.fd)
        self._certified.discard(connection.fd)
        self._epoll.unregister(connection.fd)
        self._book.went(connection, gone, time.monotonic())
        if connection.sent and self._rule is None:
            self._ahead.served(connection.host, connection.sent)
        connection.close()

    def _publish(self) -> None:
        """Shows what is acknowledged, then rings the writer if a request waits for that."""
        acknowledged = self._book.acknowledged(self._connections.values())
        count = sum(one.acknowledged is not None for one in self._connections.values())
        if (acknowledged, count) != (self._acknowledged, self._count):
            self._acknowledged, self._count = acknowledged, count
            numbers = {"dispatched": acknowledged, "saved": acknowledged, "held": count}
            self._page.begin_epoch(self._epoch, **numbers)
        wanted = self._log.wants_acknowledged
        if 0 < wanted <= acknowledged and wanted != self._rung_for:
            self._rung_for = wanted
            self._writer.ring()

    def _show(self, now: float) -> None:
        state = self._book.state(self._connections.values(), self._log.appended, now)
        if state != self._shown:
            self._shown = state
            with disk.if_room():
                run_files.write_followers(self._root, state)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        if self._newcomers is not None:
            self._newcomers.close()
        self._epoll.close()
        self._wakeup.close()
        self._writer.close()
        self._log.close()
        self._listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Opens the port for followers. Raises ServiceNotAvailable."""
    listener = open_port(host, port, BACKLOG)
    listener.setblocking(False)
    os.set_inheritable(listener.fileno(), False)
    return listener


def followers_tls(settings: Settings) -> "ServerTls | None":
    """The context of the port for followers: who comes by TLS shows a certificate, where somebody
    is named who signs these, whatever RocketMQ's clients are asked for. Raises TlsRefused and
    BadRequest."""
    has_trust = bool(load_tls(settings).settings.tls_server_trust_cert_path)
    return server_tls(settings, ClientAuth.REQUIRE if has_trust else ClientAuth.NONE)


def main(arguments: list[str] | None = None) -> int:
    """Serves the followers of a store until SIGTERM."""
    parser = process.child_parser("keelog.replication.followers.loop", __doc__)
    parser.add_argument(
        "--bind", default=f"127.0.0.1:{addresses.REPLICATION_PORT}", metavar="HOST:PORT"
    )
    child = process.ChildProcess(
        slot="followers",
        title="keelog-follow",
        what="the process for the followers of {} ended",
        options=parser.parse_args(arguments),
        oom_points=process.OOM_READER,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    root = child.root
    host, port = parse_listen(child.options.bind, addresses.REPLICATION_PORT)
    with process.take_place(root, wakeup.FOLLOWERS_SLOT) as page:
        tls = followers_tls(settings)
        listener = listen(host, port)
        server = FollowerServer(root, settings, listener, page, tls)
        try:
            child.report_ready(f"tcp://{host}:{listener.getsockname()[1]}")
            server.run(stop)
        finally:
            server.close()


if __name__ == "__main__":
    process.leave(main())
