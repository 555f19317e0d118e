"""Request and result of a pull, with RocketMQ's statuses and limits."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.query.sql_filter import SqlFilter
from node.store.query.tag_filter import TagFilter
from node.store.query.verified_read import Payload
from node.store.queues.files import Units

TOTAL_BYTES_MAX = 128 << 20
FILTERED_BYTES_MAX = 4 << 20
"""Records that one pull reads for a filter in SQL92, but always one record."""


class PullStatus(StrEnum):
    """RocketMQ's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"


class TransferLimits(NamedTuple):
    """The limits of one pull's result (maxTransfer…OnMessageInMemory and …InDisk).

    A record counts as cold when it lies more than `memory_bytes` below the log's end; None: never.
    """

    count_max: int = 32
    bytes_max: int = 262_144
    cold_count_max: int = 8
    cold_bytes_max: int = 65_536
    memory_bytes: int | None = None


IN_MEMORY = TransferLimits()
"""RocketMQ's defaults, for a store that is in memory."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The messages that a pull takes, and its limits.

    `exact`: compares the text of tags too; a broker compares hashes and leaves the text to its
    client. An SqlFilter needs `exact`.
    `filter_bytes_max`: the bytes of units that one pull scans.
    """

    max_messages: int = 32
    total_bytes_max: int = TOTAL_BYTES_MAX
    limits: TransferLimits = IN_MEMORY
    tags: TagFilter | SqlFilter | None = None
    exact: bool = False
    filter_bytes_max: int = 16_000
    files_max: int = 1


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """The result of a pull: the unit of each record taken, and the queue offset of it.

    `payload`: the records back to back, as stored, each of them verified.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    units: Units
    queue_offsets: NDArray[np.int64]
    payload: Payload

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.units)

    @property
    def physical_offsets(self) -> NDArray[np.int64]:
        """The log offset of each record."""
        return self.units["physical_offset"].astype(np.int64)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each record."""
        return self.units["size"].astype(np.int64)

    def packed_sizes(self) -> bytes:
        """The bytes of each record, four bytes each with the lowest first."""
        return self.units["size"].astype("<u4").tobytes()
