"""The controllers of a group: questions to the one that leads, and heart-beats to all."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from keelog.replication.replica.remoting_asker import MasterAnswer, RemotingAsker
from node.runtime.event_log import fields
from protocol.errors import ServiceNotAvailable
from protocol.remoting.controller import ControllerCode, ControllerReply

log = logging.getLogger("keelog.keeper")

ANSWER_S = 3.0
"""How long a connection or an answer may take."""
BEAT_EVERY_S = 1.0
"""As RocketMQ's brokers (brokerHeartbeatInterval)."""
Ext = Mapping[str, str]


class ControllersAway(ServiceNotAvailable):
    """No controller replies, or none leads."""


class Controllers:
    """Asks the leader. For one thread, which waits meanwhile."""

    def __init__(self, places: Sequence[str]) -> None:
        """`places` are HOST:PORT each."""
        self._places = tuple(places)
        self._asker: RemotingAsker | None = None
        self.leader = ""
        """Where it is; empty while none is known."""

    def ask(self, code: int, ext: Ext, body: bytes = b"") -> MasterAnswer:
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
                with RemotingAsker(place, ANSWER_S) as asker:
                    said = asker.ask(ControllerCode.GET_METADATA_INFO)
            except OSError as error:
                whys.append(f"{place}: {error}")
                continue
            leader = said.ext.get("controllerLeaderAddress") or ""
            if leader:
                self.leader = leader
                return RemotingAsker(leader, ANSWER_S)
            whys.append(f"{place}: it knows no leader")
        raise ControllersAway("; ".join(whys), "are the controllers' processes running?")

    def close(self) -> None:
        """Ends the connection."""
        if self._asker is not None:
            self._asker.close()
            self._asker = None
        self.leader = ""


class HeartBeats:
    """A thread for each controller, so that one that hangs delays no other.

    A controller takes a node for dead when its connection ends.
    """

    def __init__(self, places: Sequence[str], values: Callable[[], Ext | None]) -> None:
        """`values` returns the fields of a heart-beat; None: none is to be sent now."""
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
                with RemotingAsker(place, ANSWER_S) as asker:
                    self._beat(asker, place)
            except OSError as error:
                if self._taken[place]:
                    log.warning(
                        "a controller takes no heart-beats", extra=fields(at=place, why=error)
                    )
                self._taken[place] = False
            self._over.wait(BEAT_EVERY_S)

    def _beat(self, asker: RemotingAsker, place: str) -> None:
        """Raises OSError."""
        while not self._over.is_set():
            values = self._values()
            if values is not None:
                asker.ask(ControllerCode.BROKER_HEARTBEAT, values)
                self._taken[place] = True
            self._over.wait(BEAT_EVERY_S)

    def stop(self) -> None:
        """Ends the connections: the controllers then take the node for dead."""
        self._over.set()
        for thread in self._threads:
            with suppress(RuntimeError):
                thread.join(ANSWER_S + BEAT_EVERY_S)
