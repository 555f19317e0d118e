"""Fetches a master's tables now and then, in a thread, and puts them into our files.

The loop's thread writes the files: topics and consumer offsets through the tables that the writer
has too, groups and delay offsets as the master sent them.
"""

import json
import logging
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.regular_file import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.store.config.consumer_offsets import ConsumerOffsets
from node.writer.log.flush import JobThread
from node.writer.topic_table import TopicTable
from protocol.errors import MqError
from protocol.names import DELAY_OFFSETS_FILE, SUBSCRIPTION_GROUPS_FILE
from protocol.remoting.java_json import parse_java_json
from replication.replica.master_facts import MasterFacts, ask_facts
from replication.replica.metadata import (
    DELAYS,
    GROUPS,
    OFFSETS,
    PARTS,
    TOPICS,
    MasterTable,
    fetch_tables,
)

log = logging.getLogger("keelog.replica")

FETCH_EVERY_S = 60.0
"""As a Java slave (BrokerController: syncBrokerMemberGroup apart)."""
FETCH_ELECTED_EVERY_S = 10.0
"""Where a controller may make this node the master (ReplicasManager#handleSlaveSynchronize)."""
RETRY_S = 5.0
"""After a round of which no part came: the master may have been starting."""
LOOK_EVERY_S = 2.0
"""How often the master is asked for the end of its log."""
_NOT_ASKED = "not asked yet"


class TablesJob:
    """One round of questions. `with_tables`: else only for the end of the log."""

    def __init__(self, remoting: str, with_tables: bool) -> None:
        self.with_tables = with_tables
        self._remoting = remoting
        self.facts: MasterFacts | None = None
        self.tables: dict[str, MasterTable] = {}

    def run(self) -> None:
        """Never raises: a master may be away."""
        self.facts = ask_facts(self._remoting, with_segments=False)
        if self.with_tables:
            self.tables = fetch_tables(self._remoting)


class MasterTables:
    """All methods are for the thread of the loop."""

    def __init__(
        self,
        root: Path,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        now: float,
        every_s: float = FETCH_EVERY_S,
    ) -> None:
        self._every_s = every_s
        self._root = root
        self._topics = topics
        self._offsets = offsets
        self._thread: JobThread[TablesJob] = JobThread("master-tables", may_be_left=True)
        self._fetch_at = self._look_at = now
        self.why = dict.fromkeys(PARTS, _NOT_ASKED)
        """By part: empty when the last try succeeded, else why it failed."""
        self.fetched_ms = 0
        self.facts: MasterFacts | None = None

    @property
    def fd(self) -> int:
        """Readable when a round has ended."""
        return self._thread.fd

    def turn(self, now: float, remoting: str) -> None:
        """Takes what a round has brought, and begins the next one when it is due."""
        job = self._thread.collect()
        if job is not None:
            self.facts = job.facts
            if job.with_tables:
                self._take(job.tables, now)
        if remoting and not self._thread.is_busy and now >= min(self._look_at, self._fetch_at):
            self._look_at = now + LOOK_EVERY_S
            self._thread.start(TablesJob(remoting, now >= self._fetch_at))

    def fetch_soon(self, now: float) -> None:
        """Has the tables fetched with the next round."""
        self._fetch_at = min(self._fetch_at, now)

    def _take(self, tables: dict[str, MasterTable], now: float) -> None:
        for part, table in tables.items():
            why = table.why
            if not why:
                try:
                    self._put(part, table.document)
                except (MqError, OSError) as error:
                    why = str(error)
            if why != self.why[part] and why:
                log.warning(
                    "a table of the master was not taken", extra=fields(table=part, why=why)
                )
            self.why[part] = why
        came = [part for part in PARTS if not self.why[part]]
        if len(came) == len(PARTS):
            self.fetched_ms = now_ms()
        self._fetch_at = now + (self._every_s if came else RETRY_S)

    def _put(self, part: str, document: dict[str, Any]) -> None:
        """Raises MqError, OSError."""
        if part == TOPICS:
            if self._topics.adopt(document):
                count = len(document["topicConfigTable"])
                log.info("topics of the master taken over", extra=fields(topics=count))
        elif part == OFFSETS:
            self._offsets.adopt(document["offsetTable"])
        elif part == GROUPS:
            self._replace(self._root / SUBSCRIPTION_GROUPS_FILE, document)
        elif part == DELAYS:
            self._replace(self._root / DELAY_OFFSETS_FILE, document)

    def _replace(self, path: Path, document: dict[str, Any]) -> None:
        try:
            text = read_bounded(path, OFFSETS_FILE_BYTES_MAX).decode("utf-8", "replace")
            if parse_java_json(text) == document:
                return
        except (FileNotFoundError, ValueError, RecursionError, MqError):
            pass
        new = json.dumps(document, indent="\t", sort_keys=True, ensure_ascii=False)
        disk.write_with_backup(path, new.encode())

    def close(self) -> None:
        """Ends the thread; a question that is under way is left to the end of the process."""
        self._thread.collect()
        if not self._thread.is_busy:
            self._thread.close()
