"""RocketMQ's broker.conf, a Java properties file: what of it holds here, and why not the rest."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from keelog.cli.settings.given import BROKER, STORE, kind_of
from node.runtime.settings import changed, snake_case
from protocol.errors import BadRequest, MqError

OLD_NAMES = {
    "mapedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mapedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "accessMessageInMemorymaxRatio": "access_message_in_memory_max_ratio",
}
"""As releases before 5 write them."""

_HA = "use keelog serve --ha HOST:PORT (docs/replication.md)"
_NO_COPIES = "a node has no such rule for its copies (docs/replication.md)"
_NO_SERVERS = "name servers are those of namesrvAddr; a node registers every 30 s"
_GROUPS = "a node with --remoting runs groups in its own way (docs/rocketmq-clients.md)"
_TRANSACTIONS = "a node with --remoting has other settings for them (docs/settings.md)"
_NO_USERS = "there are no users and no TLS; bind to loopback or a network you trust"
_THREADS = "processes take the place of thread pools: keelog serve --readers, --queue-workers"
_WHERE = "the directory is the argument of keelog serve"
_BIND = "use keelog serve --remoting HOST:PORT; --bind is for clients of Keelog"
_TIMERS = "a node with --remoting delivers delayed messages and timer messages in its own way"

REASONS: tuple[tuple[str, str], ...] = (
    (r"storePath.*|commitLogDir|.*StorePath.*", _WHERE),
    (r"listenPort|bindAddress|fastListenPort", _BIND),
    (r"brokerIP[12]", "use keelog serve --advertise HOST"),
    (r"haListenPort", _HA),
    (r"brokerRole|ha[A-Z].*|slave.*|.*Slave.*|.*InSync.*|.*Replica.*", _NO_COPIES),
    (r"enableDLegerCommitLog|dLeger.*|duplicationEnable|.*[cC]ontroller.*", _NO_COPIES),
    (r"namesrv.*|.*NameServer.*|.*Namesrv.*|registerBroker.*|fetchNamesrv.*", _NO_SERVERS),
    (r"brokerPermission", "permissions are those of each topic"),
    (r".*[tT]ransaction.*", _TRANSACTIONS),
    (r".*(Subscription|[cC]onsumer|Group|[pP]op|[rR]ebalance).*", _GROUPS),
    (r"acl.*|.*[aA]uth.*|.*[tT]ls.*", _NO_USERS),
    (r".*(ThreadPoolNums?|ThreadNums?)|server.*Threads?", _THREADS),
    (r".*(Timer|timer|Schedule|schedule).*", _TIMERS),
    (r".*(RocksDB|rocksdb|rocksDb).*|storeType|.*BatchCQ.*|.*Compaction.*",
     "queues are RocketMQ's plain files"),
    (r".*([mM]etrics|[tT]race).*", "the node counts without a setting: keelog status --json"),
    (r"longPollingEnable", "a pull says itself how long it waits"),
    (r".*([wW]arm|[tT]ransientStorePool.*Lock|mlock|[cC]oldData).*",
     "the page cache is left to the system"),
)  # fmt: skip
_OTHERWISE = "nothing here does what it says"
_LINE = re.compile(r"((?:\\.|[^\\:=\s])*)\s*[:=]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SIGNS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadBrokerConf(MqError):
    """A broker.conf with a value that is none."""


class Imported(NamedTuple):
    """The settings of a broker.conf, by our names, and why each other property is left out."""

    settings: dict[str, object]
    """Of a store."""
    broker: dict[str, object]
    """What it is called, and where it registers."""
    left_out: dict[str, str]


def properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name and value of each property, by the rules of java.util.Properties."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1] + next(lines, (0, ""))[1].lstrip()
        found = _LINE.fullmatch(logical)
        assert found is not None, "any text matches"
        yield number, _unescaped(found[1]), _unescaped(found[2])


def import_conf(text: str) -> Imported:
    """The settings of a broker.conf that hold here. Raises BadBrokerConf for a bad value."""
    imported = Imported({}, {}, {})
    tables = {STORE: imported.settings, BROKER: imported.broker}
    for number, name, value in properties(text):
        ours = OLD_NAMES.get(name) or snake_case(name)
        table = next((one for one in tables if ours in kind_of(one).__dataclass_fields__), None)
        if table is None or (name, value) == ("brokerRole", "SLAVE"):
            imported.left_out[name] = reason(name)
            continue
        try:
            settings = changed(kind_of(table)(), [f"{ours}={value}"], table)
        except BadRequest as error:
            raise BadBrokerConf(f"line {number}: {name}: {error.reason}", error.hint) from None
        tables[table][ours] = getattr(settings, ours)
    return imported


def reason(name: str) -> str:
    """Why a property of RocketMQ has no counterpart here."""
    return next((why for what, why in REASONS if re.fullmatch(what, name)), _OTHERWISE)


def _unescaped(text: str) -> str:
    def sign(match: re.Match[str]) -> str:
        name = match[1]
        return chr(int(name[1:], 16)) if len(name) == 5 else _SIGNS.get(name, name)

    return _ESCAPE.sub(sign, text)
