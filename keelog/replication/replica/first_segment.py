"""Makes the first segment of an empty replica: where the master's log begins, and as long."""

import logging
import os
from pathlib import Path

from keelog.replication.replica.master_facts import MasterFacts
from node.runtime import disk
from node.runtime.event_log import fields
from node.store.log.segments import list_folder
from node.writer.log.commit_log import make_segment
from node.writer.log.tail import LogEnd, has_bytes_behind
from protocol.names import COMMIT_LOG_DIR

log = logging.getLogger("keelog.replica")


def has_log(root: Path) -> bool:
    """Whether any byte of a log was ever written here."""
    listing = list_folder(root / COMMIT_LOG_DIR)
    if not listing.files:
        return bool(listing.problems)
    end = LogEnd(root, listing.files[0][0], listing.file_bytes)
    return bool(listing.problems) or has_bytes_behind(end)


def begin_as_master(root: Path, facts: MasterFacts, usual_bytes: int) -> None:
    """Replaces the unused segments of an empty log by one that suits the master's.

    `usual_bytes`: the length of segments where the master does not say it. The caller holds the
    store's lock, and has looked that the log is empty. Raises ServiceNotAvailable, OSError.
    """
    wanted = facts.segment_bytes or usual_bytes
    listing = list_folder(root / COMMIT_LOG_DIR)
    if listing.files and (listing.files[0][0], listing.file_bytes) == (facts.begin, wanted):
        return
    for _, path in reversed(listing.files):
        disk.unlink(path)
    disk.sync_dir(root / COMMIT_LOG_DIR)
    os.close(make_segment(root, facts.begin, wanted).descriptor)
    log.info("log begun as the master's", extra=fields(offset=facts.begin, segment_bytes=wanted))
