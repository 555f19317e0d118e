"""Connections to a master, made by a thread: the loop of a replica waits for nobody."""

import socket
from pathlib import Path
from typing import NamedTuple

from keelog.replication.replica.master_facts import MasterFacts, ask_facts
from node.runtime.addresses import MasterSource, remoting_beside, split_place
from node.runtime.run_files import read_master_place
from node.writer.log.flush import JobThread

CONNECT_S = 5.0
"""How long a connection may take."""


class MasterAddress(NamedTuple):
    """Where a master is: its replication, and its port for requests, which may be guessed."""

    ha: str = ""
    remoting: str = ""


class Connected(NamedTuple):
    """The outcome of a try: a socket, or why there is none."""

    address: MasterAddress
    facts: MasterFacts | None
    socket: "socket.socket | None"
    why: str


class MasterFinder:
    """Where the master is now. `remoting` is the setting `follow_remoting`."""

    def __init__(self, root: Path, source: MasterSource, remoting: str) -> None:
        self._root = root
        self._source = source
        self._remoting = remoting

    def find(self) -> MasterAddress:
        """An empty address where no name server has said it yet."""
        if self._source.ha:
            return MasterAddress(
                self._source.ha, self._remoting or remoting_beside(self._source.ha)
            )
        found = read_master_place(self._root)
        return MasterAddress(found.ha, self._remoting or found.remoting)


class ConnectJob:
    """Asks for the facts, then connects."""

    def __init__(self, address: MasterAddress) -> None:
        self._address = address
        self.outcome: Connected | None = None

    def run(self) -> None:
        """Never raises: a master may be away."""
        address = self._address
        facts = ask_facts(address.remoting) if address.remoting else None
        made, why = None, ""
        try:
            made = socket.create_connection(split_place(address.ha), CONNECT_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
        except OSError as error:
            why = f"cannot connect to {address.ha}: {error.strerror or error}"
        self.outcome = Connected(address, facts, made, why)


class Connector:
    """One try at a time. All methods are for the thread of the loop."""

    def __init__(self) -> None:
        self._thread: JobThread[ConnectJob] = JobThread("connect", may_be_left=True)

    @property
    def fd(self) -> int:
        """Readable when `collect` has an outcome."""
        return self._thread.fd

    @property
    def is_busy(self) -> bool:
        """Whether a try is under way."""
        return self._thread.is_busy

    def begin(self, address: MasterAddress) -> None:
        """Starts a try."""
        self._thread.start(ConnectJob(address))

    def collect(self) -> Connected | None:
        """The outcome of a try that has ended, once."""
        job = self._thread.collect()
        return None if job is None else job.outcome

    def close(self) -> None:
        """Ends the thread; a socket that nobody collected is closed. A try that is under way, at a
        master that says nothing, is left to the end of the process."""
        outcome = self.collect()
        if outcome is not None and outcome.socket is not None:
            outcome.socket.close()
        if not self._thread.is_busy:
            self._thread.close()
