"""The keeper: registers a store at RocketMQ's controllers, and has its node do what they say.

It runs above the node, so that heart-beats go on while the node changes its role: for that it is
stopped, and started again as what it is to be. The node is a process, `keelog serve` in the role
that it is to have.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from keelog.replication.keeper import controllers
from keelog.replication.keeper.sync_set import SyncSet
from keelog.replication.replica.comparison import LogsPart, ask_greeting
from keelog.replication.replica.master_link import NotLetIn, RemotingAsker, refusal_of
from keelog.replication.roles import follow, lead
from node.access.own_credentials import OwnLogin
from node.runtime import disk, process, run_files, state_page
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.store.identity import places, roles
from protocol.errors import BadRequest, ServiceNotAvailable, StoreLocked
from protocol.ha import last_number
from protocol.remoting import codes, controller

log = logging.getLogger("keelog.keeper")

STOP_WAIT_S = 90.0
"""After so long a node that was asked to stop is killed; its own limits are shorter."""

LOOK_EVERY_S = 0.5
"""How often the controller is asked who is master (RocketMQ's brokers: 5 s, and after a notice)."""
ELECT_EVERY_S = 1.0
"""How often a master is asked for while there is none."""
JOIN_WAIT_S = 10.0
"""A master that has not begun its epoch is awaited for so long. One of RocketMQ never notes an
epoch in which it wrote nothing."""
AGAIN_S = 5.0
"""Between two starts of a replica whose log was found to part from the master's after all, and
between two failed logins at a master, which counts them."""
GREETING_S = 3.0
SILENT_S = 10.0
"""Without a sign of life of the writer for so long no heart-beat is sent: another node is to be the
master."""
START_S = 60.0
"""For so long after its start a node need not have given one."""


class KeeperOptions(NamedTuple):
    """`command` starts the node, without what a role adds. It runs in `folder`."""

    root: Path
    settings: Settings
    member: controllers.NodeOfGroup
    controllers: tuple[str, ...]
    command: Sequence[str]
    env: Mapping[str, str]
    folder: str


def keep(options: KeeperOptions, stop: process.StopFlag) -> int:
    """Runs a node in the role that controllers give it, until SIGTERM; returns its exit code.
    Raises MqError for a store that cannot have that role, and OSError."""
    places.create_store(options.root)
    return Keeper(options).run(stop)


class Keeper:
    """One for each store; all but the heart-beats is in one thread."""

    def __init__(self, options: KeeperOptions) -> None:
        self._options = options
        self._root = options.root
        self._settings = options.settings
        self._own = OwnLogin.of(options.settings)
        self._controllers = controllers.Controllers(options.controllers, *self._own)
        self._beats: controllers.HeartBeats | None = None
        self._node = NodeProcess(options.command, options.env, options.folder)
        self._started_at = 0.0
        self._id = 0
        self._values: Mapping[str, str] | None = None
        self._log_end = 0
        self._shown = run_files.ElectedState(controllers_all=len(options.controllers))
        self._sync: SyncSet | None = None
        self._written: object = None
        self._elect_at = self._join_until = self._knock_at = 0.0
        self._why = ""
        run_files.write_elected(self._root, self._shown)

    def run(self, stop: process.StopFlag) -> int:
        """Runs until the flag is set, or the node ends by itself; returns the exit code. Raises
        MqError for a store that cannot be what the controller says."""
        try:
            while not stop.is_set:
                code = self._node.ended()
                if code is not None:
                    # Without heart-beats another node becomes the master.
                    log.error("the node ended by itself", extra=fields(exit_code=code))
                    return code or 1
                process.reap_adopted(self._node.pids)
                self._turn(time.monotonic())
                time.sleep(LOOK_EVERY_S)
            return self._node.stop()
        finally:
            self._node.stop()
            if self._beats is not None:
                self._beats.stop()
            self._controllers.close()

    # -- one look ------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        view, why = None, ""
        try:
            if not self._id:
                self._id = controllers.register(self._root, self._controllers, self._options.member)
                self._look_at_log(now)
                them = self._options.controllers
                self._beats = controllers.HeartBeats(them, lambda: self._values, *self._own)
            self._look_at_log(now)
            view = self._ask_group()
            self._obey(view, now)
        except (ServiceNotAvailable, StoreLocked, OSError) as error:
            why = str(error)
        if why != self._why and why:
            log.warning("waits", extra=fields(why=why))
        self._why = why
        self._show(view, why)

    def _ask_group(self) -> controller.GroupView:
        ext = {"brokerName": self._options.member.broker}
        answer = self._controllers.ask(controller.ControllerCode.GET_REPLICA_INFO, ext)
        if answer.code == controller.ControllerReply.BROKER_METADATA_NOT_EXIST:
            self._id = controllers.register(self._root, self._controllers, self._options.member)
        if answer.code != codes.ResponseCode.SUCCESS:
            raise ServiceNotAvailable(f"who is master: code {answer.code}: {answer.remark[:200]}")
        try:
            return controller.parse_group(answer.ext, answer.body)
        except BadRequest as error:
            raise ServiceNotAvailable(error.reason) from None

    def _obey(self, view: controller.GroupView, now: float) -> None:
        shown = self._shown
        if not view.master_id:
            self._elect(now)
        elif view.master_epoch < shown.epoch:
            raise ServiceNotAvailable(
                f"a controller says epoch {view.master_epoch}, epoch {shown.epoch} was heard before"
            )
        elif view.master_id == self._id:
            if (shown.role, shown.epoch) == (run_files.LEADS, view.master_epoch):
                self._keep_in_sync(view, now)
            else:
                self._lead(view)
        elif self._has_to_follow(view, now):
            self._follow(view, now)

    def _has_to_follow(self, view: controller.GroupView, now: float) -> bool:
        shown = self._shown
        wanted = run_files.FOLLOWS, view.master_epoch, view.master
        if (shown.role, shown.epoch, shown.master) != wanted:
            return True
        has_parted = run_files.read_follow_state(self._root).kind == LogsPart.__name__
        return has_parted and now - self._started_at > AGAIN_S

    def _elect(self, now: float) -> None:
        """1002: asks for a master, whoever it be."""
        if now < self._elect_at:
            return
        self._elect_at = now + ELECT_EVERY_S
        member = self._options.member
        ext = {
            "clusterName": member.cluster,
            "brokerName": member.broker,
            "brokerId": str(self._id),
            "designateElect": "false",
            "invokeTime": str(process.now_ms()),
        }
        answer = self._controllers.ask(controller.ControllerCode.ELECT_MASTER, ext)
        settled = codes.ResponseCode.SUCCESS, controller.ControllerReply.MASTER_STILL_EXIST
        if answer.code not in settled:
            raise ServiceNotAvailable(f"no master is known: {answer.remark[:200]}")

    # -- roles ---------------------------------------------------------------------------------

    def _lead(self, view: controller.GroupView) -> None:
        """Stops the node, begins the epoch, starts it as the master."""
        began = time.monotonic()
        self._stop_node()
        end = lead(self._root, self._settings, view.master_epoch)
        late_s = self._settings.ha_max_time_slave_not_catchup / 1000
        self._sync = SyncSet(self._id, view.in_sync, process.now_ms(), late_s)
        self._write_sync_state()
        self._start_node(["--broker-id", "0"])
        self._note_role(run_files.LEADS, view)
        took = round(time.monotonic() - began, 3)
        log.info("leads", extra=fields(epoch=view.master_epoch, end=end, took_s=took))

    def _follow(self, view: controller.GroupView, now: float) -> None:
        """Once the master is there: stops the node, cuts what the master does not have, starts it
        as its replica. Until then the node goes on as what it is."""
        if now < self._knock_at:
            raise ServiceNotAvailable(self._why)
        try:
            ha = _replication_of(view.master, self._own)
        except KeptOut:
            self._knock_at = now + AGAIN_S
            raise
        greeting = ask_greeting(ha, self._id, GREETING_S, self._own.tls)
        if last_number(greeting.epochs) < view.master_epoch:
            self._join_until = self._join_until or now + JOIN_WAIT_S
            if now < self._join_until:
                raise ServiceNotAvailable(f"{view.master} is not yet the master that it is to be")
        self._join_until = 0.0
        self._stop_node()
        joined = follow(self._root, self._settings, ha, greeting)
        # What an earlier replica has found counts no more, but for which topics it knew.
        topics_end = min(run_files.read_follow_state(self._root).topics_end, joined.end)
        run_files.write_follow_state(self._root, run_files.FollowState(topics_end=topics_end))
        role = ["--broker-id", str(self._id), "--follow", ha]
        self._start_node([*role, "-X", f"store.follow_remoting={view.master}"])
        self._note_role(run_files.FOLLOWS, view)
        extra = fields(master=view.master, epoch=view.master_epoch, **joined._asdict())
        log.info("follows", extra=extra)

    def _stop_node(self) -> None:
        self._node.stop()
        self._sync = self._written = None
        self._shown = self._shown._replace(role=run_files.WAITS)
        run_files.forget_sync_state(self._root)

    def _start_node(self, role: Sequence[str]) -> None:
        self._node.start([*role, "-X", f"store.controller_id={self._id}"])
        self._started_at = time.monotonic()

    def _note_role(self, role: str, view: controller.GroupView) -> None:
        self._shown = self._shown._replace(role=role, epoch=view.master_epoch, master=view.master)

    # -- as the master -------------------------------------------------------------------------

    def _keep_in_sync(self, view: controller.GroupView, now: float) -> None:
        sync = self._sync
        assert sync is not None
        sync.adopt(view.in_sync)
        self._write_sync_state()
        wanted = sync.turn(now, run_files.read_followers(self._root), self._log().appended)
        self._write_sync_state()
        if wanted is None:
            return
        try:
            found = self._alter(wanted, sync.found.epoch)
        except controllers.ControllersAway:
            sync.unanswered()
            raise
        if found is None:
            sync.drop_wish()
        else:
            sync.adopt(found)
            ids = " ".join(map(str, sorted(found.members)))
            log.info("in sync", extra=fields(ids=ids, epoch=found.epoch))
        self._write_sync_state()

    def _alter(self, wanted: frozenset[int], epoch: int) -> controller.SyncStateSet | None:
        """1001. None: the controller makes no such change. Raises ControllersAway."""
        ext = {
            "brokerName": self._options.member.broker,
            "masterBrokerId": str(self._id),
            "masterEpoch": str(self._shown.epoch),
            "invokeTime": str(process.now_ms()),
        }
        body = controller.encode_sync_state_set(controller.SyncStateSet(wanted, epoch))
        answer = self._controllers.ask(controller.ControllerCode.ALTER_SYNC_STATE_SET, ext, body)
        if answer.code == codes.ResponseCode.SUCCESS:
            try:
                return controller.parse_sync_state_set(answer.body)
            except BadRequest as error:
                raise controllers.ControllersAway(error.reason) from None
        log.warning("those in sync stay", extra=fields(code=answer.code, why=answer.remark))
        return None

    def _write_sync_state(self) -> None:
        if self._sync is not None and self._sync.state != self._written:
            run_files.write_sync_state(self._root, self._sync.state)
            self._written = self._sync.state

    # -- what others see -----------------------------------------------------------------------

    def _look_at_log(self, now: float) -> None:
        """Makes the fields of the next heart-beats."""
        state, member = self._log(), self._options.member
        if state.epoch:
            self._log_end = state.flushed
        silent_s = (process.now_ms() - state.heartbeat_ms) / 1000 if state.epoch else 0.0
        runs = self._node.is_there and now - self._started_at > START_S
        if runs and (silent_s > SILENT_S or not state.epoch):
            self._values = None
            return
        self._values = {
            "clusterName": member.cluster,
            "brokerName": member.broker,
            "brokerAddr": member.place,
            "brokerId": str(self._id),
            "epoch": str(last_number(roles.load_master_epochs(self._root))),
            "maxOffset": str(self._log_end),
            "confirmOffset": str(self._log_end),
            "heartbeatTimeoutMills": str(self._settings.controller_heart_beat_timeout),
            "electionPriority": str(2**31 - 1),
        }

    def _log(self) -> state_page.LogState:
        with suppress(OSError), state_page.LogPage.open(self._root) as page:
            return page.read()
        return state_page.LogState(*(0 for _ in state_page.LogState._fields))

    def _show(self, view: controller.GroupView | None, why: str) -> None:
        shown = self._shown._replace(
            broker_id=self._id,
            leader=self._controllers.leader,
            controllers=0 if self._beats is None else self._beats.taken,
            why=why,
        )
        if view is not None:
            shown = shown._replace(
                master_id=view.master_id,
                in_sync=tuple(sorted(view.in_sync.members)),
                in_sync_epoch=view.in_sync.epoch,
                heard_ms=process.now_ms(),
            )
        with suppress(FileNotFoundError), disk.if_room():
            run_files.write_elected(self._root, shown)
        self._shown = shown


def _replication_of(master: str, own: OwnLogin) -> str:
    """906: where the master is followed. Raises OSError, ServiceNotAvailable."""
    with RemotingAsker(master, GREETING_S, *own) as asker:
        answer = asker.ask(codes.RequestCode.EXCHANGE_BROKER_HA_INFO)
    place = answer.ext.get("masterHaAddress", "")
    if not place:
        refusal = refusal_of(answer)
        kind = KeptOut if isinstance(refusal, NotLetIn) else ServiceNotAvailable
        raise kind(f"{master} does not say where it is followed: {refusal}")
    return place


class KeptOut(ServiceNotAvailable):
    """The master does not let this node log in."""


class NodeProcess:
    """One node at a time. It stops by itself when the keeper ends."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: str) -> None:
        """`command` without what a role adds; it runs in `folder`."""
        self._command = [*command, "--while-pid", str(os.getpid())]
        self._env, self._folder = dict(env), folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_there(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    @property
    def pids(self) -> list[int]:
        """Of the node; empty where none runs."""
        return [] if self._process is None else [self._process.pid]

    def start(self, role: Sequence[str]) -> None:
        """Starts it with the options of a role. Raises OSError."""
        # A process group of its own: Ctrl-C reaches the keeper alone, which stops the node.
        self._process = subprocess.Popen(
            [*self._command, *role],
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            env=self._env,
            process_group=0,
        )

    def ended(self) -> int | None:
        """The exit code of a node that ended by itself; None while it runs, or none was started."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """Stops it in order; returns its exit code, 0 where none runs."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            extra = fields(process_pid=process.pid)
            log.error("the node does not stop and is killed", extra=extra)  # noqa: TRY400
            process.kill()
            return process.wait()
        # By the signal: it did not handle it yet, and has done nothing.
        return 0 if code == -signal.SIGTERM else code
