"""Units in queues that a record names besides its own: RocketMQ's multi-dispatch (LMQ).

A broker with enableLmq and enableMultiDispatch writes INNER_MULTI_DISPATCH, names of queues, and
INNER_MULTI_QUEUE_OFFSET, the record's offset in each, into a record. Each name that begins with
%LMQ% is a topic of one queue, 0 (RocketMQ: ConsumeQueue#multiDispatchLmqQueue).
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.queue_build import UnitBatch
from protocol.ids import Queue
from protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX, is_folder_name
from protocol.record.properties import decode_properties

LMQ_PREFIX = "%LMQ%"
LMQ_QUEUE_ID = 0
NAMES = "INNER_MULTI_DISPATCH"
OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
_SEPARATOR = ","
_OFFSET = re.compile(r"[0-9]{1,18}")
_NEEDLE = OFFSETS.encode()


def is_lmq(topic: str) -> bool:
    """Whether a topic is a light queue, whose units name records of other topics."""
    return topic.startswith(LMQ_PREFIX)


def lmq_offsets(topic: str, properties: Mapping[str, str]) -> dict[str, int]:
    """The light queues that a record of `topic` is in, and its queue offset in each.

    Empty where a broker gives none: for topics of the system and of retries, for properties that
    do not agree, and for names that cannot be folders (RocketMQ: MultiDispatchUtils).
    """
    if topic == SCHEDULE_TOPIC or topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)):
        return {}
    names, offsets = _split(properties.get(NAMES, "")), _split(properties.get(OFFSETS, ""))
    if len(names) != len(offsets):
        return {}
    return {
        name: int(offset)
        for name, offset in zip(names, offsets, strict=True)
        if is_lmq(name) and is_folder_name(name) and _OFFSET.fullmatch(offset)
    }


def _split(text: str) -> list[str]:
    """As Java's String#split: without the empty parts at the end."""
    return text.rstrip(_SEPARATOR).split(_SEPARATOR)


def lmq_batches(requests: DispatchRequests) -> Iterator[tuple[Queue, UnitBatch]]:
    """The units of light queues that a window's records call for, in log order of each queue."""
    columns = requests.columns
    if columns.data.tobytes().find(_NEEDLE) < 0:
        return
    found: dict[Queue, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(requests.is_queued).tolist():
        raw = columns.piece(columns.properties_start, columns.properties_length, row)
        if _NEEDLE not in raw:
            continue
        topic = requests.topics[int(requests.topic_id[row])]
        for name, offset in lmq_offsets(topic, decode_properties(raw)).items():
            found.setdefault(Queue(name, LMQ_QUEUE_ID), []).append((row, offset))
    for queue, places in found.items():
        rows, offsets = np.array(places, np.int64).T
        yield queue, UnitBatch(requests.units(rows), offsets)
