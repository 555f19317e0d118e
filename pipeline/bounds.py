"""Where the rows of each queue begin and end: offsets, a time, or all there is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pipeline.errors import BadOption, DataLoss, OffsetOutOfRange, UnknownTopic

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1


class QueueAt(NamedTuple):
    """A queue of a store; `node` is empty where JSON leaves it out."""

    topic: str
    node: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}" + (f" of {self.node}" if self.node else "")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end: `earliest`, `latest`, `offsets` for each queue, or the first row at `time_ms`.

    A queue offset is the next row to read, so as an end it is exclusive.
    """

    kind: Literal["earliest", "latest", "offsets", "time"]
    offsets: Mapping[QueueAt, int] = field(default_factory=dict)
    time_ms: int = 0


EARLIEST = Bound("earliest")
LATEST = Bound("latest")


class Extent(NamedTuple):
    """What a queue has: offsets [`low`, `high`)."""

    queue: QueueAt
    low: int
    high: int


def parse_offsets(name: str, value: Mapping[str, Any]) -> Bound:
    """`{"topic": {"0": 23}}`, or with several stores `{"topic": {"node": {"0": 23}}}`.

    -2 stands for the earliest and -1 for the latest offset, as in Kafka's. Raises BadOption.
    """
    form = '{"topic": {"0": 23}}, with several stores {"topic": {"node": {"0": 23}}}'
    forbidden = LATEST_OFFSET if name.startswith("starting") else EARLIEST_OFFSET
    offsets: dict[QueueAt, int] = {}
    for queue, offset in _leaves(value):
        if queue is None or type(offset) is not int or offset < EARLIEST_OFFSET:
            raise BadOption(f"{name} has another form", form)
        if offset == forbidden:
            raise BadOption(f"{name} has {offset} for {queue}: there would be no row", form)
        offsets[queue] = offset
    return Bound("offsets", offsets)


def _leaves(value: Mapping[str, Any]) -> Iterable[tuple[QueueAt | None, Any]]:
    for topic, inner in value.items():
        if not isinstance(inner, dict):
            yield None, inner
            continue
        for key, leaf in inner.items():
            if isinstance(leaf, dict):
                yield from ((_queue_at(topic, key, number), at) for number, at in leaf.items())
            else:
                yield _queue_at(topic, "", key), leaf


def _queue_at(topic: str, node: str, number: str) -> QueueAt | None:
    is_number = number.isascii() and number.isdigit()
    return QueueAt(topic, node, int(number)) if is_number else None


def offsets_for(bound: Bound, name: str, extents: list[Extent], stores: int) -> dict[QueueAt, int]:
    """The offset that `bound`, of kind `offsets`, says for each queue; -2 and -1 are replaced.

    It must name each queue that is read, and no other. Raises UnknownTopic, BadOption.
    """
    given = dict(bound.offsets)
    answer: dict[QueueAt, int] = {}
    missing: list[str] = []
    for extent in extents:
        short = extent.queue._replace(node="")
        offset = given.pop(extent.queue, None)
        if offset is None and stores == 1:
            offset = given.pop(short, None)
        if offset is None:
            missing.append(str(extent.queue))
            continue
        ends = {EARLIEST_OFFSET: extent.low, LATEST_OFFSET: extent.high}
        answer[extent.queue] = ends.get(offset, offset)
    if given:
        raise UnknownTopic(
            f"{name} names {_few(str(queue) for queue in given)}, which is not read",
            f"these are: {_few(str(extent.queue) for extent in extents)}",
        )
    if missing:
        raise BadOption(
            f"{name} does not say where {_few(missing)} begins or ends",
            "-2 for the earliest and -1 for the latest offset, or fewer queues by assign",
        )
    return answer


def check_offsets(
    extent: Extent, start: int, end: int, fail_on_data_loss: bool
) -> tuple[int, int, str]:
    """[start, end) as it can be read, and what is lost of it, as text, empty for nothing.

    Raises OffsetOutOfRange, DataLoss.
    """
    queue, low, high = extent
    for what, offset in (("starting", start), ("ending", end)):
        if offset > high:
            raise OffsetOutOfRange(
                f"the {what} offset {offset} of {queue} is beyond its end, {high}",
                f"an offset from {low} to {high}",
            )
    if start > end:
        raise OffsetOutOfRange(
            f"{queue} would begin at {start} and end before that, at {end}", "them in order"
        )
    lost = min(low, end) - start
    if lost <= 0:
        return start, end, ""
    text = f"{queue}: {lost} messages, {start} to {min(low, end) - 1}, it begins at {low} now"
    if fail_on_data_loss:
        raise DataLoss(text, "failOnDataLoss=false, which begins with what is left")
    return min(low, end), end, text


def _few(texts: Iterable[str]) -> str:
    listed = list(texts)
    rest = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return ", ".join(listed[:10]) + rest
