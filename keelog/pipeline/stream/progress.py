"""The lag of a streaming query, from the progress that Spark reports of it.

For `query.lastProgress`, for the event of a `StreamingQueryListener`, and for the JSON of either.
"""

import json
from collections.abc import Mapping
from typing import Any

from keelog.pipeline.bounds import QueueAt
from keelog.pipeline.errors import BadCheckpoint
from keelog.pipeline.plan.offsets import StreamPosition, parse_position


def lag_by_queue(progress: Any) -> dict[QueueAt, int]:
    """Messages that each queue had after the batch when the batch was planned.

    `progress` is a StreamingQueryProgress, its JSON, or that as a dict; None, which a query has
    before its first batch, is no queue. Sources of other formats are left out.
    """
    if isinstance(progress, str):
        progress = json.loads(progress)
    answer: dict[QueueAt, int] = {}
    for source in _get(progress, "sources") or ():
        end, latest = _position(source, "endOffset"), _position(source, "latestOffset")
        if end is None or latest is None:
            continue
        for queue, offset in latest.offsets.items():
            lag = max(offset - end.offsets.get(queue, 0), 0)
            answer[queue] = max(lag, answer.get(queue, 0))
    return answer


def lag(progress: Any) -> int:
    """The sum over all queues."""
    return sum(lag_by_queue(progress).values())


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _position(source: Any, name: str) -> StreamPosition | None:
    found = _get(source, name)
    try:
        return parse_position(json.loads(found) if isinstance(found, str) else found)
    except (BadCheckpoint, json.JSONDecodeError):
        return None
