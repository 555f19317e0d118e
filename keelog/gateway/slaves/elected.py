"""The replies of a node whose master a controller elects: where it is followed, and its epochs."""

from collections.abc import Callable
from pathlib import Path

from keelog.gateway.connection import Reply, Request
from keelog.gateway.names import BrokerName
from node.store.identity.roles import load_master_epochs
from protocol.ha import epoch_at
from protocol.remoting.java_json import write_body

_LAST_END = 2**63 - 1
"""The end of the last epoch: Java's largest long."""


class ElectedDesk:
    """One for each gateway, in the thread of its loop."""

    def __init__(
        self, root: Path, name: BrokerName, broker_id: int, end: Callable[[], int]
    ) -> None:
        """`broker_id`: as the controller gave it. `end` returns where the log ends now."""
        self._root = root
        self._name = name
        self._broker_id = broker_id
        self._end = end

    def place(self, _: Request) -> Reply:
        """906: where the master is followed; nothing of a node that follows."""
        if self._name.broker_id or not self._name.ha:
            return Reply()
        return Reply(
            ext={
                "masterAddress": self._name.announced,
                "masterHaAddress": self._name.ha,
                "masterFlushOffset": str(self._end()),
            }
        )

    def epochs(self, _: Request) -> Reply:
        """1007. Raises StoreDamaged."""
        known = load_master_epochs(self._root)
        rows = []
        for one in known:
            end = epoch_at(known, one.start)[1]
            rows.append(
                {
                    "epoch": one.number,
                    "startOffset": one.start,
                    "endOffset": _LAST_END if end is None else end,
                }
            )
        body = {
            "brokerId": self._broker_id,
            "brokerName": self._name.broker,
            "clusterName": self._name.cluster,
            "epochList": rows,
            "maxOffset": self._end(),
        }
        return Reply(body=write_body(body, standard=True))

    def role_changed(self, _: Request) -> Reply:
        """1008: the keeper asks the controller by itself, twice a second."""
        return Reply()
