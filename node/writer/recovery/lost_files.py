"""A warning for each file that a start finds missing, or stop that was none: the store goes on
with less, and nobody else would say so."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.state_page import LogPage
from node.store.checkpoints import FLOOR_FILE, own_dir
from node.store.config.topics_file import TopicsFile
from node.writer.recovery.recovery import Recovery
from protocol.names import ABORT_FILE, TOPICS_FILE

log = logging.getLogger("keelog.writer")


def warn_of_lost(found: Recovery) -> None:
    """Call it after `examine`, before anything is written."""
    for event, details in _losses(found):
        log.warning(event, extra=fields(**details))


def replace_lost_table(found: Recovery) -> None:
    """Writes a table of topics where it is lost, so that no later start warns of it again.

    Its topics come back as they are used. It is later than each removal of a topic: else a start
    would take the topic of now for the removed one.
    """
    if _lacks_table(found):
        removals = [topic.table_version for topic in found.removed.topics.values()]
        with disk.if_room():
            TopicsFile(found.root).begin(max(removals, default=0), now_ms())


def _lacks_table(found: Recovery) -> bool:
    topics = found.root / TOPICS_FILE
    return bool(found.tails) and not (topics.exists() or disk.backup_of(topics).exists())


def _losses(found: Recovery) -> Iterator[tuple[str, Mapping[str, Any]]]:
    root = found.root
    if not found.epochs:
        if found.end:
            what = "the store was another owner's, or they are lost"
            yield "the notes about this log are missing", {"folder": own_dir(root), "why": what}
    elif not found.was_clean:
        where = {"mark": root / ABORT_FILE, "walked_from": found.tails_at, "end": found.end}
        yield "the node did not stop in order: the end of the log was looked for", where
    if found.epochs and not (own_dir(root) / FLOOR_FILE).exists():
        path = own_dir(root) / FLOOR_FILE
        yield "the note of what is durable is lost", {"file": path, "known": found.floor}
    if _lacks_table(found):
        count, path = len({queue.topic for queue in found.tails}), root / TOPICS_FILE
        what = "topics without messages are gone, all others have the default settings"
        yield "the table of topics is lost", {"file": path, "topics": count, "why": what}
    begin = _begin_at_stop(found)
    if begin is not None and begin < found.min_offset:
        what = "segments were removed while no node ran"
        yield "the log begins later", {"before": begin, "now": found.min_offset, "why": what}


def _begin_at_stop(found: Recovery) -> int | None:
    """Where the log began when the last writer stopped; None after a start of the machine."""
    try:
        with LogPage.open(found.root) as page:
            state = page.read()
    except FileNotFoundError:
        return None
    return state.min_offset if state.epoch else None
