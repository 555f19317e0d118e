"""What RocketMQ's slaves and tools ask of a master beside its log.

That is what a slave copies beside the log (SlaveSynchronize), and who follows the node. Topics
(21), groups (201) and request modes (402) are asked by tools too, and answered elsewhere. A node
whose master a controller elects says where it is followed, and its epochs.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keelog.gateway.commits import GroupOffsets
from keelog.gateway.connection import Reply, Request, json_reply, system_error
from keelog.gateway.settings import BrokerName
from node.runtime.run_files import FollowersState, read_followers
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.store.identity.roles import load_master_epochs
from protocol.derived.file_layouts import TIMER_CHECK_BYTES, TIMER_CHECK_FILE_BYTES
from protocol.ha import epoch_at
from protocol.names import DELAY_OFFSETS_FILE, TIMER_CHECK_FILE
from protocol.remoting.bodies import DataVersion

NO_DELAYS = b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{}}'
_NO_CLIENT = {"activated": False} | dict.fromkeys(
    (
        *("lastReadTimestamp", "lastWriteTimestamp", "masterFlushOffset", "maxOffset"),
        "transferredByteInSecond",
    ),
    0,
)
"""Of 907: a slave's connection to its master, of which a master shows zeros."""
_LAST_END = 2**63 - 1
"""The end of the last epoch: Java's largest long."""


@dataclass(slots=True, eq=False)
class SlaveHandlers:
    """One for each gateway, in the thread of its loop. `_end` returns where the log ends now;
    `_broker_id` is as a controller gave it, 0 without one."""

    _root: Path
    _name: BrokerName
    _offsets: GroupOffsets
    _end: Callable[[], int]
    _broker_id: int
    _version: int = 0

    async def group_offsets(self, _: Request) -> Reply:
        """43: how far all groups are. Raises what the writer refuses."""
        known = await self._offsets.all()
        table = {
            f"{topic}@{group}": {str(queue): offset for queue, offset in sorted(places.items())}
            for group, topics in sorted(known.items())
            for topic, places in sorted(topics.items())
        }
        # A slave copies the version and compares nothing with it.
        self._version += 1
        version = DataVersion(counter=self._version)
        return json_reply({"dataVersion": version, "offsetTable": table})

    def delay_offsets(self, _: Request) -> Reply:
        """45: how far delay levels are delivered, as the file has it."""
        try:
            text = read_bounded(self._root / DELAY_OFFSETS_FILE, OFFSETS_FILE_BYTES_MAX)
            json.loads(text)
        except (OSError, ValueError):
            return Reply(body=NO_DELAYS)
        return Reply(body=text)

    def timer_check(self, _: Request) -> Reply:
        """60: how far timer messages are, in the form that the file begins with
        (TimerCheckpoint#encode): zeros without one."""
        found = b""
        with suppress(OSError):
            found = read_bounded(self._root / TIMER_CHECK_FILE, TIMER_CHECK_FILE_BYTES)[
                :TIMER_CHECK_BYTES
            ]
        return Reply(body=found.ljust(TIMER_CHECK_BYTES, b"\0"))

    def timer_metrics(self, _: Request) -> Reply:
        """61: how many timer messages wait by topic: a node counts none of them so."""
        return json_reply({"dataVersion": DataVersion(), "timingCount": {}})

    def connections(self, _: Request) -> Reply:
        """907: who follows the node; as up to a second ago."""
        # Without the process that writes it the file is that of an earlier node.
        state = read_followers(self._root) if self._name.ha else FollowersState()
        end = self._end()
        rows = [
            {
                "addr": row.address,
                "diff": max(0, end - row.acknowledged),
                "inSync": row.in_sync,
                "slaveAckOffset": row.acknowledged,
                "transferFromWhere": row.sent,
                "transferredByteInSecond": row.bytes_per_s,
            }
            for row in state.followers
        ]
        return json_reply(
            {
                "haClientRuntimeInfo": _NO_CLIENT,
                "haConnectionInfo": rows,
                "inSyncSlaveNums": state.in_sync,
                "master": True,
                "masterCommitLogMaxOffset": end,
            }
        )

    # Where a controller elects the master

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
        """1007, as a broker that has no controller replies without one. Raises StoreDamaged."""
        if not self._broker_id:
            return system_error("this request only for controllerMode ")
        known = load_master_epochs(self._root)
        ends = [epoch_at(known, one.start)[1] for one in known]
        rows = [
            {"epoch": one.number, "startOffset": one.start, "endOffset": end or _LAST_END}
            for one, end in zip(known, ends, strict=True)
        ]
        body = {
            "brokerId": self._broker_id,
            "brokerName": self._name.broker,
            "clusterName": self._name.cluster,
            "epochList": rows,
            "maxOffset": self._end(),
        }
        return json_reply(body)
