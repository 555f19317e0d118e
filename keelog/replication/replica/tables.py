"""A master's tables for its replica: fetched now and then, in a thread, and put into our files.

They are topics, groups, and how far consumers, delay levels and timers are. As in RocketMQ's
SlaveSynchronize each part is fetched by a request of its own, and fails alone. Topics are asked for
at the port VIP_DISTANCE below, as a Java slave does.

The loop's thread writes the files: topics and consumer offsets through the tables that the writer
has too, groups and delay offsets as the master sent them.

Progress counts once the log is here up to where the master's ended when it was asked. All that is
noted as delivered is in the log then, so that a promotion repeats deliveries and loses none.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keelog.client.consumer.remoting_exchange import RemotingAnswer
from keelog.replication.replica.master_link import (
    MasterFacts,
    MasterRefuses,
    MasterSays,
    NotLetIn,
    RemotingAsker,
    ask_facts,
    refusal_of,
)
from keelog.replication.replica.master_users import fetch_users
from node.access.answers import UserDesk
from node.runtime import disk, run_files
from node.runtime.addresses import split_place
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.store.config.consumer_offsets import ConsumerOffsets
from node.writer.log.flush import JobThread
from node.writer.topic_table import TopicTable
from protocol import names
from protocol.addresses import VIP_DISTANCE
from protocol.derived.file_layouts import TIMER_CHECK_BYTES, TIMER_CHECK_FILE_BYTES, TimerCheck
from protocol.errors import MqError
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json

if TYPE_CHECKING:
    from node.access.own_credentials import OwnCredentials
    from node.access.tls import ClientTls

log = logging.getLogger("keelog.replica")

TOPICS, GROUPS, OFFSETS, DELAYS, TIMERS = "topics", "groups", "offsets", "delays", "timers"
PARTS = (TOPICS, GROUPS, OFFSETS, DELAYS, TIMERS)
USERS = "users"
"""One more part, where the replica has the users of its master (auth_follow_master)."""
TIMER_CHECK = "check"
"""In the document of the timers: their check point, as bytes; absent where the master has none."""
ANSWER_S = 5.0
"""How long a connection may take, or a part of an answer."""
PAGE_ENTRIES = 2_000
"""Topics or groups of one answer (maxTopicNum)."""
PAGES_MAX = 100
_DATA_VERSION = "dataVersion"
_NO_WHEEL = "checkpoint is null"
"""What a broker with timerWheelEnable=false says (AdminBrokerProcessor#getTimerCheckPoint)."""

FETCH_EVERY_S = 10.0
"""As where a controller elects the master (ReplicasManager#handleSlaveSynchronize); other slaves of
RocketMQ ask each 60 s."""
REFUSED_S = 30.0
"""After a round in which the master did not let this node in: each try counts as a failed login of
this address, and what is wrong is for people to mend."""
RETRY_S = 5.0
"""After a round of which no part came: the master may have been starting."""
LOOK_EVERY_S = 2.0
"""How often the master is asked how far its deliveries are, where its log ends, and for its users,
as a right that is taken away there counts here until then. A slave of RocketMQ asks for the check
point of timers each 3 s."""
OFTEN = (DELAYS, TIMERS)
PROGRESS = (OFFSETS, *OFTEN)
_NOT_ASKED = "not asked yet"
Connect = Callable[[str], RemotingAsker]
"""To the master's port for requests."""


@dataclass(eq=False)
class TablesJob:
    """One round of questions, for `parts`, then for the end of the log. `known_end`: a log offset
    below which the master's log was before."""

    _remoting: str
    parts: tuple[str, ...]
    known_end: int
    _tls: "ClientTls | None" = None
    _credentials: "OwnCredentials | None" = None
    began_ms: int = field(default_factory=now_ms)
    facts: MasterFacts | None = None
    tables: dict[str, dict[str, Any] | str] = field(default_factory=dict)
    """As `fetch_tables`."""
    is_refused: bool = False

    def run(self) -> None:
        """Never raises: a master may be away."""
        own = self._tls, self._credentials
        self.tables, self.is_refused = fetch_tables(self._remoting, self.parts, *own)
        if self.is_refused:
            return
        said = ask_facts(self._remoting, False, *own)
        self.facts = None if isinstance(said, MasterRefuses) else said


class MasterTables:
    """All methods are for the thread of the loop."""

    def __init__(
        self,
        root: Path,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        now: float,
        tls: "ClientTls | None" = None,
        credentials: "OwnCredentials | None" = None,
        users: UserDesk | None = None,
    ) -> None:
        """`users`: those of the node, which are to be the master's; None: they are its own."""
        self._root = root
        self._tls = tls
        self._credentials = credentials
        self._users = users
        more = () if users is None else (USERS,)
        self._parts, self._often = (*PARTS, *more), (*OFTEN, *more)
        self._topics = topics
        self._offsets = offsets
        self._thread: JobThread[TablesJob] = JobThread("master-tables", may_be_left=True)
        self._fetch_at = self._look_at = now
        self.why = dict.fromkeys(self._parts, _NOT_ASKED)
        """By part: empty when the last try succeeded, else why it failed."""
        self.fetched_ms = 0
        self.facts: MasterFacts | None = None
        self.topics_end = run_files.read_follow_state(root).topics_end
        """A topic with messages below this log offset was in the table, or was removed."""
        self._coming: dict[str, tuple[dict[str, Any], int, int]] = {}
        """Progress, by part: its document counts once the log is here up to an offset; it was asked
        at a time, in ms."""
        self._asked_ms = dict.fromkeys(OFTEN, 0)

    @property
    def fd(self) -> int:
        """Readable when a round has ended."""
        return self._thread.fd

    @property
    def progress_ms(self) -> int:
        """What the master had delivered then is taken over, in ms since 1970; 0: nothing is."""
        return min(self._asked_ms.values())

    def turn(self, now: float, remoting: str, flushed: int) -> None:
        """Takes what a round has brought, and begins the next one when it is due. The log is
        `flushed` here up to that offset."""
        job = self._thread.collect()
        if job is not None:
            self.facts = job.facts
            self._take(job, now)
        for part in [part for part, (_, end, _) in self._coming.items() if end <= flushed]:
            document, _, asked_ms = self._coming.pop(part)
            self._put(part, document)
            if part in OFTEN and not self.why[part]:
                self._asked_ms[part] = asked_ms
        if remoting and not self._thread.is_busy and now >= min(self._look_at, self._fetch_at):
            self._look_at = now + LOOK_EVERY_S
            parts = self._parts if now >= self._fetch_at else self._often
            known_end = 0 if self.facts is None else self.facts.end
            job = TablesJob(remoting, parts, known_end, self._tls, self._credentials)
            self._thread.start(job)

    def _take(self, job: TablesJob, now: float) -> None:
        for part, table in job.tables.items():
            if isinstance(table, str):
                self._note(part, table)
            elif part not in PROGRESS:
                self._put(part, table)
                if part == TOPICS and not self.why[part]:
                    # The first round after a start knows of no end.
                    self.topics_end = max(self.topics_end, job.known_end)
            elif job.facts is None:
                self._note(part, "the master does not say where its log ends")
            else:
                # An older one counts earlier, unless the master lost its end since.
                if part not in self._coming or job.facts.end < self._coming[part][1]:
                    self._coming[part] = table, job.facts.end, job.began_ms
        if job.parts == self._parts:
            came = any(isinstance(table, dict) for table in job.tables.values())
            self._fetch_at = now + (FETCH_EVERY_S if came else RETRY_S)
        if job.is_refused:
            self._look_at = self._fetch_at = now + REFUSED_S

    def _put(self, part: str, document: dict[str, Any]) -> None:
        why = ""
        try:
            self._replace_by(part, document)
        except (MqError, OSError) as error:
            why = str(error)
        self._note(part, why)

    def _note(self, part: str, why: str) -> None:
        """Why a part was not taken; empty: it was."""
        # A reason that all parts share, as where the node does not log in, is logged once.
        if why and why not in self.why.values():
            log.warning("a table of the master was not taken", extra=fields(table=part, why=why))
        self.why[part] = why
        if not any(self.why.values()):
            self.fetched_ms = now_ms()

    def _replace_by(self, part: str, document: dict[str, Any]) -> None:
        """Raises MqError, OSError."""
        if part == TOPICS:
            if self._topics.adopt(document):
                count = len(document["topicConfigTable"])
                log.info("topics of the master taken over", extra=fields(topics=count))
        elif part == OFFSETS:
            self._offsets.adopt(document["offsetTable"])
        elif part == GROUPS:
            self._replace(self._root / names.SUBSCRIPTION_GROUPS_FILE, document)
        elif part == DELAYS and document["offsetTable"]:
            self._replace(self._root / names.DELAY_OFFSETS_FILE, document)
        elif part == USERS:
            assert self._users is not None
            self._users.follow(document[USERS], now_ms())
        elif part == TIMERS:
            self._take_timers(TimerCheck.parse(document.get(TIMER_CHECK, b"")))

    def _take_timers(self, check: TimerCheck) -> None:
        """The units of timer messages are made anew of their queue when this node delivers them:
        those that it has are of the time when it was the master itself."""
        path = self._root / names.TIMER_CHECK_FILE
        known = TimerCheck()
        with suppress(FileNotFoundError):
            known = TimerCheck.parse(read_bounded(path, TIMER_CHECK_FILE_BYTES))
        if check in (TimerCheck(), known):
            return  # a master that has delivered none has no check point
        units = self._root / names.TIMER_LOG_DIR
        if units.exists():
            disk.remove_tree(units)
            disk.sync_dir(self._root)
        disk.make_durable_dir(path.parent)
        disk.write_atomically(path, check.file())

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


def fetch_tables(
    remoting: str,
    parts: Iterable[str] = PARTS,
    tls: "ClientTls | None" = None,
    credentials: "OwnCredentials | None" = None,
) -> tuple[dict[str, dict[str, Any] | str], bool]:
    """By part its document from the master at HOST:PORT, or why there is none; and whether the
    master does not let this node in, for then the rest is not asked for. Never raises for what the
    master says or does not say."""
    connect = partial(RemotingAsker, timeout_s=ANSWER_S, tls=tls, credentials=credentials)
    fetches: dict[str, Callable[[str], dict[str, Any]]] = {
        TOPICS: partial(_topics, connect),
        GROUPS: lambda place: _paged(
            connect,
            place,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            "group",
            "subscriptionGroupTable",
        ),
        OFFSETS: lambda place: _one(
            connect, place, RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable"
        ),
        DELAYS: lambda place: _one(connect, place, RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable"),
        TIMERS: partial(_timers, connect),
        USERS: lambda place: {USERS: fetch_users(place, ANSWER_S, tls, credentials)},
    }
    found: dict[str, dict[str, Any] | str] = {}
    for part in parts:
        try:
            found[part] = fetches[part](remoting)
        except NotLetIn as error:
            if part == USERS:  # they need more rights than the rest
                found[part] = str(error)
                continue
            return {one: found.get(one, str(error)) for one in parts}, True
        except (OSError, MqError, MasterSays) as error:
            found[part] = str(error) or "no answer"
    return found, False


def _topics(connect: Connect, place: str) -> dict[str, Any]:
    host, port = split_place(place)
    asked = RequestCode.GET_ALL_TOPIC_CONFIG, "topic", "topicConfigTable"
    try:
        return _paged(connect, f"{host}:{port - VIP_DISTANCE}", *asked)
    except OSError:
        return _paged(connect, place, *asked)


def _paged(connect: Connect, place: str, code: int, kind: str, name: str) -> dict[str, Any]:
    """All pages as one document, whose table has this name. `kind`: the word in the names of the
    request's fields."""
    large = kind.capitalize()
    document: dict[str, Any] = {}
    table: dict[str, Any] = {}
    with connect(place) as asker:
        for _ in range(PAGES_MAX):
            ext = {f"{kind}Seq": str(len(table)), f"max{large}Num": str(PAGE_ENTRIES)}
            answer = asker.ask(code, ext)
            page = _document(answer, name)
            document = {**page, **document}
            before = len(table)
            table.update(page[name])
            total = answer.ext.get(f"total{large}Num")
            if total is None or len(table) >= int(total) or len(table) == before:
                break
    kept = (_DATA_VERSION, "forbiddenTable")
    return {**{key: document[key] for key in kept if document.get(key) is not None}, name: table}


def _one(connect: Connect, place: str, code: int, table: str) -> dict[str, Any]:
    with connect(place) as asker:
        return _document(asker.ask(code), table)


def _timers(connect: Connect, place: str) -> dict[str, Any]:
    with connect(place) as asker:
        answer = asker.ask(RequestCode.GET_TIMER_CHECK_POINT)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or _NO_WHEEL in answer.remark:
        return {}  # a broker before 5.0, or one that delivers no timer messages
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    if len(answer.body) < TIMER_CHECK_BYTES:
        raise MasterSays(f"its reply has {len(answer.body)} bytes")
    return {TIMER_CHECK: answer.body[:TIMER_CHECK_BYTES]}


def _document(answer: RemotingAnswer, table: str) -> dict[str, Any]:
    """Raises MasterSays for anything but such a table."""
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    try:
        found = parse_java_json(answer.body.decode("utf-8", "replace")) if answer.body else {}
    except (ValueError, RecursionError) as error:
        raise MasterSays(f"its reply is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get(table, {}), dict):
        raise MasterSays(f"its reply has no {table}")
    if not all(isinstance(entry, Mapping | int) for entry in found.get(table, {}).values()):
        raise MasterSays(f"its reply has other entries in {table}")
    return {**found, table: found.get(table, {})}
