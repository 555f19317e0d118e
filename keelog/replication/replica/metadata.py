"""A master's tables for its replica: topics, groups, and how far consumers, delay levels and timers
are.

RocketMQ's SlaveSynchronize: each part is fetched by a request of its own, and fails alone. Topics
are asked for at the port VIP_DISTANCE below, as a Java slave does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from keelog.replication.replica.remoting_asker import MasterAnswer, RemotingAsker
from node.runtime.addresses import split_place
from protocol.addresses import VIP_DISTANCE
from protocol.derived.file_layouts import TIMER_CHECK_BYTES
from protocol.errors import MqError
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json

TOPICS, GROUPS, OFFSETS, DELAYS, TIMERS = "topics", "groups", "offsets", "delays", "timers"
PARTS = (TOPICS, GROUPS, OFFSETS, DELAYS, TIMERS)
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


class MasterTable(NamedTuple):
    """One part: its document, or why there is none."""

    document: dict[str, Any]
    why: str = ""


class MasterSays(Exception):
    """The master refused a request, or its answer is none."""


def fetch_tables(remoting: str, parts: Iterable[str] = PARTS) -> dict[str, MasterTable]:
    """Parts, from the master at HOST:PORT. Never raises for what it says or does not say."""
    fetches: dict[str, Callable[[str], dict[str, Any]]] = {
        TOPICS: _topics,
        GROUPS: _groups,
        OFFSETS: lambda place: _one(place, RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable"),
        DELAYS: lambda place: _one(place, RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable"),
        TIMERS: _timers,
    }
    found = {}
    for part in parts:
        try:
            found[part] = MasterTable(fetches[part](remoting))
        except (OSError, MqError, MasterSays) as error:
            found[part] = MasterTable({}, str(error) or "no answer")
    return found


def _topics(place: str) -> dict[str, Any]:
    host, port = split_place(place)
    code, asked = RequestCode.GET_ALL_TOPIC_CONFIG, _Paged("topic", "Topic", "topicConfigTable")
    try:
        return _paged(f"{host}:{port - VIP_DISTANCE}", code, asked)
    except OSError:
        return _paged(place, code, asked)


def _groups(place: str) -> dict[str, Any]:
    asked = _Paged("group", "Group", "subscriptionGroupTable")
    return _paged(place, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, asked)


class _Paged(NamedTuple):
    """The words in the names of fields of a request for a page, and the table of its answer."""

    small: str
    large: str
    table: str


def _paged(place: str, code: int, asked: _Paged) -> dict[str, Any]:
    """All pages as one document."""
    document: dict[str, Any] = {}
    table: dict[str, Any] = {}
    with RemotingAsker(place, ANSWER_S) as asker:
        for _ in range(PAGES_MAX):
            ext = {f"{asked.small}Seq": str(len(table)), f"max{asked.large}Num": str(PAGE_ENTRIES)}
            answer = asker.ask(code, ext)
            page = _document(answer, asked.table)
            document = {**page, **document}
            before = len(table)
            table.update(page[asked.table])
            total = answer.ext.get(f"total{asked.large}Num")
            if total is None or len(table) >= int(total) or len(table) == before:
                break
    kept = (_DATA_VERSION, "forbiddenTable")
    return {
        **{name: document[name] for name in kept if document.get(name) is not None},
        asked.table: table,
    }


def _one(place: str, code: int, table: str) -> dict[str, Any]:
    with RemotingAsker(place, ANSWER_S) as asker:
        return _document(asker.ask(code), table)


def _timers(place: str) -> dict[str, Any]:
    with RemotingAsker(place, ANSWER_S) as asker:
        answer = asker.ask(RequestCode.GET_TIMER_CHECK_POINT)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or _NO_WHEEL in answer.remark:
        return {}  # a broker before 5.0, or one that delivers no timer messages
    if answer.code != ResponseCode.SUCCESS:
        raise MasterSays(f"its reply is code {answer.code}: {answer.remark[:200]}")
    if len(answer.body) < TIMER_CHECK_BYTES:
        raise MasterSays(f"its reply has {len(answer.body)} bytes")
    return {TIMER_CHECK: answer.body[:TIMER_CHECK_BYTES]}


def _document(answer: MasterAnswer, table: str) -> dict[str, Any]:
    """Raises MasterSays for anything but such a table."""
    if answer.code != ResponseCode.SUCCESS:
        raise MasterSays(f"its reply is code {answer.code}: {answer.remark[:200]}")
    try:
        found = parse_java_json(answer.body.decode("utf-8", "replace")) if answer.body else {}
    except (ValueError, RecursionError) as error:
        raise MasterSays(f"its reply is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get(table, {}), dict):
        raise MasterSays(f"its reply has no {table}")
    if not all(isinstance(entry, Mapping | int) for entry in found.get(table, {}).values()):
        raise MasterSays(f"its reply has other entries in {table}")
    return {**found, table: found.get(table, {})}
