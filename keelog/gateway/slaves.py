"""What RocketMQ's slaves and tools ask of a master beside its log.

That is what a slave copies beside the log (SlaveSynchronize), and who follows the node. Topics
(21), groups (201) and request modes (402) are asked by tools too, and answered elsewhere. A node
whose master a controller elects says where it is followed, and its epochs (`ElectedDesk`).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from keelog.gateway.connection import Reply, Request
from keelog.gateway.settings import BrokerName
from node.runtime.run_files import FollowerRow, FollowersState, read_followers
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.store.identity.roles import load_master_epochs
from protocol.derived.file_layouts import TIMER_CHECK_BYTES, TIMER_CHECK_FILE_BYTES
from protocol.ha import epoch_at
from protocol.names import DELAY_OFFSETS_FILE, TIMER_CHECK_FILE
from protocol.remoting.bodies import DataVersion, HAConnectionInfo, HARuntimeInfo
from protocol.remoting.java_json import write_body

OffsetsOfAll = Callable[[], Awaitable[Mapping[str, Mapping[str, Mapping[int, int]]]]]
"""Returns the next offsets by group, topic and queue."""
NO_DELAYS = b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{}}'
_LAST_END = 2**63 - 1
"""The end of the last epoch: Java's largest long."""


class SlaveDesk:
    """One for each gateway, in the thread of its loop."""

    def __init__(
        self, root: Path, name: BrokerName, offsets: OffsetsOfAll, end: Callable[[], int]
    ) -> None:
        """`end` returns where the log ends now."""
        self._root = root
        self._may_be_followed = bool(name.ha)
        self._offsets = offsets
        self._end = end
        self._version = 0

    async def group_offsets(self, _: Request) -> Reply:
        """43: how far all groups are. Raises what the writer refuses."""
        known = await self._offsets()
        table = {
            f"{topic}@{group}": {str(queue): offset for queue, offset in sorted(places.items())}
            for group, topics in sorted(known.items())
            for topic, places in sorted(topics.items())
        }
        # A slave copies the version and compares nothing with it.
        self._version += 1
        version = DataVersion(counter=self._version)
        body = {"dataVersion": version, "offsetTable": table}
        return Reply(body=write_body(body, standard=True))

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
        body = {"dataVersion": DataVersion(), "timingCount": {}}
        return Reply(body=write_body(body, standard=True))

    def connections(self, _: Request) -> Reply:
        """907: who follows the node; as up to a second ago."""
        # Without the process that writes it the file is that of an earlier node.
        state = read_followers(self._root) if self._may_be_followed else FollowersState()
        end = self._end()
        rows = tuple(_follower_shown(row, end) for row in state.followers)
        found = HARuntimeInfo(True, end, state.in_sync, rows)
        return Reply(body=write_body(found, standard=True))


def _follower_shown(row: FollowerRow, end: int) -> HAConnectionInfo:
    return HAConnectionInfo(
        row.address,
        slave_ack_offset=row.acknowledged,
        diff=max(0, end - row.acknowledged),
        in_sync=row.in_sync,
        transferred_byte_in_second=row.bytes_per_s,
        transfer_from_where=row.sent,
    )


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
