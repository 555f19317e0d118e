"""What a keeper says to the controllers of its group: questions, heart-beats, its registration.

Questions go to the controller that leads, heart-beats to all. The registration gets a store the id
by which controllers know it, and says where its node is.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from keelog.client.consumer.remoting_exchange import RemotingAnswer
from keelog.replication.replica.master_link import ANSWER_S, RemotingAsker
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.store.identity import roles
from protocol.errors import RefusedError, ServiceNotAvailable
from protocol.remoting.codes import ResponseCode
from protocol.remoting.controller import ControllerCode, ControllerReply

if TYPE_CHECKING:
    from node.access.own_credentials import OwnCredentials
    from node.access.tls import ClientTls

log = logging.getLogger("keelog.keeper")

BEAT_EVERY_S = 1.0
"""As RocketMQ's brokers (brokerHeartbeatInterval)."""
Ext = Mapping[str, str]


class ControllersAway(ServiceNotAvailable):
    """No controller replies, or none leads."""


class Controllers:
    """Asks the leader. For one thread, which waits meanwhile."""

    def __init__(
        self,
        places: Sequence[str],
        tls: "ClientTls | None" = None,
        credentials: "OwnCredentials | None" = None,
    ) -> None:
        """`places` are HOST:PORT each."""
        self._places = tuple(places)
        self._own = tls, credentials
        self._asker: RemotingAsker | None = None
        self.leader = ""
        """Where it is; empty while none is known."""

    def ask(self, code: int, ext: Ext, body: bytes = b"") -> RemotingAnswer:
        """The leader's answer. Raises ControllersAway; nobody knows then what became of it."""
        try:
            if self._asker is None:
                self._asker = self._find()
            answer = self._asker.ask(code, ext, body)
        except OSError as error:
            self.close()
            raise ControllersAway(f"the controller that leads went away: {error}") from None
        if answer.code == ControllerReply.NOT_LEADER:
            self.close()
            raise ControllersAway(f"a controller leads no more: {answer.remark[:200]}")
        return answer

    def _find(self) -> RemotingAsker:
        """Raises ControllersAway, OSError."""
        whys = []
        for place in self._places:
            try:
                with RemotingAsker(place, ANSWER_S, *self._own) as asker:
                    said = asker.ask(ControllerCode.GET_METADATA_INFO)
            except OSError as error:
                whys.append(f"{place}: {error}")
                continue
            leader = said.ext.get("controllerLeaderAddress") or ""
            if leader:
                self.leader = leader
                return RemotingAsker(leader, ANSWER_S, *self._own)
            whys.append(f"{place}: it knows no leader")
        raise ControllersAway("; ".join(whys), "are the controllers' processes running?")

    def close(self) -> None:
        if self._asker is not None:
            self._asker.close()
            self._asker = None
        self.leader = ""


class HeartBeats:
    """A thread for each controller, so that one that hangs delays no other. A controller takes a
    node for dead when its connection ends."""

    def __init__(
        self,
        places: Sequence[str],
        values: Callable[[], Ext | None],
        tls: "ClientTls | None" = None,
        credentials: "OwnCredentials | None" = None,
    ) -> None:
        """`values` returns the fields of a heart-beat; None: none is to be sent now."""
        self._own = tls, credentials
        self._values = values
        self._over = threading.Event()
        self._taken = dict.fromkeys(places, False)
        self._threads = [
            threading.Thread(target=self._run, args=(place,), name=f"beats-{place}", daemon=True)
            for place in places
        ]
        for thread in self._threads:
            thread.start()

    @property
    def taken(self) -> int:
        """How many controllers took the last one."""
        return sum(self._taken.values())

    def _run(self, place: str) -> None:
        while not self._over.is_set():
            try:
                with RemotingAsker(place, ANSWER_S, *self._own) as asker:
                    while not self._over.is_set():
                        if (values := self._values()) is not None:
                            asker.ask(ControllerCode.BROKER_HEARTBEAT, values)
                            self._taken[place] = True
                        self._over.wait(BEAT_EVERY_S)
            except OSError as error:
                if self._taken[place]:
                    log.warning(
                        "a controller takes no heart-beats", extra=fields(at=place, why=error)
                    )
                self._taken[place] = False
            self._over.wait(BEAT_EVERY_S)

    def stop(self) -> None:
        """Ends the connections: the controllers then take the node for dead."""
        self._over.set()
        for thread in self._threads:
            with suppress(RuntimeError):
                thread.join(ANSWER_S + BEAT_EVERY_S)


class NodeOfGroup(NamedTuple):
    """A node of a group. `place`: where it takes requests, as others reach it."""

    cluster: str
    broker: str
    place: str


class OtherIdentity(RefusedError):
    """The store's id is one of another group, or the controllers do not know it."""


def register(root: Path, controllers: Controllers, member: NodeOfGroup) -> int:
    """Returns the id of the store, a new one if it has none yet. Raises OtherIdentity,
    StoreDamaged; ControllersAway and ServiceNotAvailable where a later try may do better."""
    identity = roles.load_identity(root)
    if identity is None:
        identity = _apply(root, controllers, member)
    _check_group(root, identity, member)
    ext = {
        "clusterName": member.cluster,
        "brokerName": member.broker,
        "brokerId": str(identity.broker_id),
        "brokerAddress": member.place,
        "invokeTime": str(now_ms()),
    }
    answer = controllers.ask(ControllerCode.REGISTER_BROKER, ext)
    if answer.code == ControllerReply.BROKER_NEED_TO_BE_REGISTERED:
        raise OtherIdentity(
            f"the controllers know no node {identity.broker_id} of {member.broker}, which is the"
            f" id of this store: {answer.remark[:200]}",
            "did they lose their data? then move brokerIdentity out of the folder: the store gets"
            " a new id",
        )
    if answer.code != ResponseCode.SUCCESS:
        raise ServiceNotAvailable(f"registration: code {answer.code}: {answer.remark[:200]}")
    extra = fields(
        id=identity.broker_id, cluster=member.cluster, broker=member.broker, at=member.place
    )
    log.info("registered at the controllers", extra=extra)
    return identity.broker_id


def _apply(root: Path, controllers: Controllers, member: NodeOfGroup) -> roles.BrokerIdentity:
    asked = roles.load_asked_identity(root)
    group = {"clusterName": member.cluster, "brokerName": member.broker}
    if asked is None:
        answer = controllers.ask(ControllerCode.GET_NEXT_BROKER_ID, group)
        text = answer.ext.get("nextBrokerId", "")
        if answer.code != ResponseCode.SUCCESS or not text.isdigit():
            raise ServiceNotAvailable(f"no id was given: code {answer.code}: {answer.remark[:200]}")
        code = f"{member.place};{now_ms()}"
        asked = roles.BrokerIdentity(member.cluster, member.broker, int(text), code)
        roles.save_asked_identity(root, asked)
    _check_group(root, asked, member)
    ext = {**group, "appliedBrokerId": str(asked.broker_id), "registerCheckCode": asked.check_code}
    answer = controllers.ask(ControllerCode.APPLY_BROKER_ID, ext)
    if answer.code != ResponseCode.SUCCESS:
        if answer.code == ControllerReply.BROKER_ID_INVALID:
            roles.forget_asked_identity(root)  # another node was faster
        raise ServiceNotAvailable(f"id {asked.broker_id} was not given: {answer.remark[:200]}")
    roles.save_identity(root, asked)
    return asked


def _check_group(root: Path, identity: roles.BrokerIdentity, member: NodeOfGroup) -> None:
    if (identity.cluster, identity.broker) != (member.cluster, member.broker):
        raise OtherIdentity(
            f"the store {root} is node {identity.broker_id} of {identity.cluster}/"
            f"{identity.broker}, not of {member.cluster}/{member.broker}",
            "name its group with --cluster and --broker-name",
        )
