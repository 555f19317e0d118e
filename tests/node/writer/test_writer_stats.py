"""What a writer counts of its turns, its answers and its refusals."""

from pathlib import Path

from node.runtime.stats import Histogram, SlotStats, read_stats
from node.runtime.stats_series import (
    APPEND,
    DURATION,
    FLUSH_DISK_TIMEOUT,
    IN_FLIGHT,
    LOG_APPEND,
    LOG_BATCH,
    LOG_FLUSH,
    OK,
    OTHER,
    REJECTED,
    REQUESTS,
    STAGE,
    STAGES,
    Family,
    series,
)
from node.writer.appender import AppendRequest
from node.writer.requests import PendingRequest, Turn
from node.writer.stats import WriterStats
from protocol.errors import (
    BadRequest,
    MessageTooLarge,
    MqError,
    NodeBusy,
    ServiceNotAvailable,
    UnknownTopic,
)


def shown(stats: WriterStats, root: Path, waiting: int = 0) -> SlotStats:
    stats.publish(waiting, repeats=0)
    (slot,) = read_stats(root)
    return slot


def of(slot: SlotStats, family: Family, **labels: str) -> Histogram:
    return slot.histograms[series(family, **labels)]


def sums(slot: SlotStats) -> list[tuple[int, int]]:
    """Values and their sum, of each stage and of the whole."""
    found = [of(slot, STAGE, op=APPEND, stage=stage) for stage in STAGES]
    return [(one.total, one.value_sum) for one in (*found, of(slot, DURATION, op=APPEND))]


def waited(turn: Turn) -> PendingRequest:
    return PendingRequest(b"peer", 1, AppendRequest(b"", 1), None, is_send=False, turn=turn)


def test_each_request_of_a_group_has_its_stages_and_the_log_has_one_write(tmp_path: Path) -> None:
    stats = WriterStats(tmp_path, is_sync_flush=False)
    stats.turn((100, 130, 190), replied=200, requests=3, records=12)
    stats.turn((300, 310, 330), replied=340, requests=1, records=13)
    slot = shown(stats, tmp_path, waiting=5)
    assert sums(slot) == [(4, 100), (4, 200), (0, 0), (4, 40), (4, 340)]
    assert slot.values[series(REQUESTS, op=APPEND, code=OK)] == 4
    assert slot.values[series(IN_FLIGHT, op=APPEND)] == 5
    writes, batches = of(slot, LOG_APPEND), of(slot, LOG_BATCH)
    assert (writes.total, writes.value_sum) == (2, 80)
    assert (batches.total, batches.value_sum) == (2, 13)
    stats.close(0)
    assert read_stats(tmp_path)[0].values[series(IN_FLIGHT, op=APPEND)] == 0


def test_who_waits_for_the_disk_is_counted_when_it_is_answered(tmp_path: Path) -> None:
    stats = WriterStats(tmp_path, is_sync_flush=True)
    first, second = (100, 110, 120), (200, 210, 220)
    stats.turn(first, replied=125, requests=0, records=2)
    assert sums(shown(stats, tmp_path))[-1] == (0, 0)
    stats.waited([waited(first), waited(first), waited(second)], 500, 510, "PUT_OK")
    stats.waited([waited(second)], 500, 510, FLUSH_DISK_TIMEOUT)
    stats.flushed(70)
    slot = shown(stats, tmp_path)
    assert sums(slot) == [(4, 40), (4, 40), (4, 2 * 380 + 2 * 280), (4, 40), (4, 2 * 410 + 2 * 310)]
    answered = [slot.values[series(REQUESTS, op=APPEND, code=c)] for c in (OK, FLUSH_DISK_TIMEOUT)]
    assert answered == [3, 1]
    assert of(slot, LOG_APPEND).total == 1
    assert [of(slot, LOG_FLUSH, mode=mode).total for mode in ("sync", "async")] == [1, 0]


def test_a_group_of_which_all_is_refused_wrote_nothing(tmp_path: Path) -> None:
    stats = WriterStats(tmp_path, is_sync_flush=False)
    stats.turn((100, 110, 120), replied=130, requests=0, records=0)
    slot = shown(stats, tmp_path)
    assert not any(one.total for one in slot.histograms.values())


def test_refusals_have_their_code_and_those_of_appends_a_reason(tmp_path: Path) -> None:
    stats = WriterStats(tmp_path, is_sync_flush=False)
    full = ServiceNotAvailable("disk_full: no room")
    errors: list[tuple[MqError, str, str]] = [
        (full, "SERVICE_NOT_AVAILABLE", "full"),
        (ServiceNotAvailable("the node is stopping"), "SERVICE_NOT_AVAILABLE", "not_ready"),
        (NodeBusy("9 requests wait"), "SYSTEM_BUSY", "flow"),
        (MessageTooLarge("large"), "MESSAGE_ILLEGAL", "too_large"),
        (UnknownTopic("t"), "TOPIC_NOT_EXIST", "no_topic"),
        (BadRequest("b"), "INVALID_PARAMETER", "bad"),
    ]
    for error, _, _ in errors:
        stats.refused(True, error)
    stats.refused(False, BadRequest("b"))
    slot = shown(stats, tmp_path)
    for _, code, reason in errors:
        expected = sum(1 for _, other, _ in errors if other == code)
        assert slot.values[series(REQUESTS, op=APPEND, code=code)] == expected
        assert slot.values[series(REJECTED, reason=reason)] == 1
    assert slot.values[series(REQUESTS, op=OTHER, code="INVALID_PARAMETER")] == 1
