"""What a starting writer lets others read before it has recovered the log."""

from node.runtime.state_page import LogPage
from node.writer.recovery.recovery import Recovery


def show_durable(page: LogPage, found: Recovery) -> None:
    """Publishes what is sure to stay, under the last epoch, so that readers need not wait.

    A recovery may be long, or may have to wait for room on the disk. It never cuts below the
    durable floor, and what its predecessor published in the same epoch is true up to where the
    log was found to end.
    """
    if not found.epochs:
        return
    known, last = page.read(), found.epochs[-1]
    if known.epoch == last.epoch:
        if known.readable > found.end:
            page.publish(readable=found.end, appended=found.end, committed=found.end)
        return
    page.begin_epoch(
        last.epoch,
        epoch_start=last.start,
        min_offset=found.min_offset,
        appended=found.floor,
        committed=found.floor,
        flushed=found.floor,
        readable=found.floor,
        segment_bytes=found.segment_bytes,
    )
