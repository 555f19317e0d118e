"""One connection to a master's replication: frames in, reports out, without waiting."""

import select
import socket

from protocol.errors import BadRequest
from protocol.ha.stream import HEARTBEAT_S, SILENCE_S, LogFrame, LogFrameReader, encode_report

READS_AT_ONCE = 16
"""Reads of one turn: then the loop looks at other things."""


class LinkLost(Exception):
    """The connection has ended, or is of no use any more; a new one may do better."""


class MasterLink:
    """A connected socket, which this object owns and never blocks on."""

    def __init__(self, connected: socket.socket, now: float) -> None:
        self._socket = connected
        self._frames = LogFrameReader()
        self._heard_at = now
        self._reported_at = now
        self._unsent = b""

    @property
    def fd(self) -> int:
        """To wait for: readable when `receive` has something."""
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def report(self, end: int, now: float) -> None:
        """Tells the master that our log is durable below `end`. Raises LinkLost."""
        self._reported_at = now
        # Of reports that wait for room only the last says anything; one that is half sent stays.
        begun = len(self._unsent) % len(encode_report(0))
        self._unsent = self._unsent[:begun] + encode_report(end)
        self._send()

    def is_report_due(self, now: float) -> bool:
        """Whether a report is due though nothing is new: the master closes what is silent."""
        return now - self._reported_at >= HEARTBEAT_S

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkLost(f"the connection was lost: {error.strerror or error}") from None

    def receive(self, now: float) -> list[LogFrame]:
        """The frames of one read, whose bodies are valid until the next; none when nothing is
        there. Raises LinkLost, also when the master is silent for too long."""
        if self._unsent:
            self._send()
        try:
            count = self._socket.recv_into(self._frames.room())
        except BlockingIOError:
            if now - self._heard_at > SILENCE_S:
                raise LinkLost(f"the master said nothing for {SILENCE_S:.0f} s") from None
            return []
        except OSError as error:
            raise LinkLost(f"the connection was lost: {error.strerror or error}") from None
        if not count:
            raise LinkLost("the master closed the connection")
        self._heard_at = now
        try:
            return list(self._frames.take(count))
        except BadRequest as error:
            raise LinkLost(error.reason) from None

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()
