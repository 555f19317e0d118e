"""Which mqadmin command is which of ours, and what to use for those that are none."""

import difflib
import re
from collections.abc import Sequence

from keelog.cli.mqadmin.words import Alias, Words, read_words
from protocol.errors import BadRequest

SEND = "sendMessage"
_CLUSTER = {"-c": "--clusterName"}
_TOPIC = {"-t": "--topic"}
_TIMES = {"-b": "--beginTimestamp", "-e": "--endTimestamp"}
_PRINTED = {**_TOPIC, "-s": "--subExpression", **_TIMES, "-d": "--printBody"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d)(?::(\d{3}))?")
_CONSUME_MESSAGES = "128"
_CQ_UNITS = 10

_NO_GROUPS = "there are no consumer groups: keelog consume TOPIC -o FROM:TO reads from any place"
_BY_ITSELF = "the node deletes by itself, by file_reserved_time and the disk: keelog config show"
INSTEAD: dict[str, str] = {
    "topicClusterList": "one node has no clusters: keelog topic ls",
    "consumerProgress": _NO_GROUPS,
    "consumerStatus": _NO_GROUPS,
    "consumerConnection": _NO_GROUPS,
    "producerConnection": "keelog status",
    "resetOffsetByTime": _NO_GROUPS,
    "skipAccumulatedMessage": _NO_GROUPS,
    "cloneGroupOffset": _NO_GROUPS,
    "updateSubGroup": _NO_GROUPS,
    "deleteSubGroup": _NO_GROUPS,
    "cleanExpiredCQ": _BY_ITSELF,
    "cleanUnusedTopic": "keelog topic rm TOPIC",
    "deleteExpiredCommitLog": _BY_ITSELF,
    "setCommitLogReadAheadMode": "the page cache is left to the system; there is nothing to set",
    "exportMetrics": "keelog status --json",
    "exportMetadata": "keelog topic ls --json",
    "exportConfigs": "keelog config show --json",
    "getBrokerConfig": "keelog config show --origin",
    "updateBrokerConfig": "change the file of keelog serve --config, and start it again",
    "checkMsgSendRT": "keelog bench send --node URL",
    "sendMsgStatus": "keelog bench send --node URL",
    "queryMsgTraceById": "there is no message trace: keelog msg get ID",
    "updateNamesrvConfig": "there are no name servers",
    "getNamesrvConfig": "there are no name servers",
    "dumpCompactionLog": "compacted topics are not read: keelog store dump DIR",
}


def translate(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """The words after `keelog` that do the same. Raises BadRequest where nothing does."""
    alias = ALIASES.get(name)
    if alias is None:
        instead = INSTEAD.get(name)
        if instead is not None:
            raise BadRequest(f"{name} has no counterpart here", instead)
        near = difflib.get_close_matches(name, [*ALIASES, *INSTEAD], 1)
        hint = f"did you mean {near[0]}?" if near else "keelog mqadmin --help"
        raise BadRequest(f"mqadmin {name[:80]!a} is not known here", hint)
    said = read_words(name, alias, words)
    node = () if said.node is None else ("--node", said.node)
    return (*alias.ours(said), *node)


def _status(_said: Words) -> tuple[str, ...]:
    return ("status",)


def _update_topic(said: Words) -> tuple[str, ...]:
    reads, writes = said.get("-r"), said.get("-w")
    if reads is not None and writes is not None and reads != writes:
        raise BadRequest(
            f"-r {reads} and -w {writes} differ: a topic has as many queues to read as to write",
            f"-r {writes} -w {writes}",
        )
    number = writes or reads
    queues = () if number is None else ("--queues", number)
    return ("topic", "create", said["-t"], *queues, *_option(said, "-p", "--perm"))


def _by_unique_key(said: Words) -> tuple[str, ...]:
    if "-a" in said:
        return ("msg", "find", "--topic", said["-t"], "--key", said["-i"], "--unique")
    return ("msg", "get", "--topic", said["-t"], "--unique-key", said["-i"])


def _by_key(said: Words) -> tuple[str, ...]:
    return (
        *("msg", "find", "--topic", said["-t"], "--key", said["-k"]),
        *(("--since", _time(said["-b"])) if "-b" in said else ()),
        *(("--until", _time(said["-e"])) if "-e" in said else ()),
        *_option(said, "-m", "--limit"),
    )


def _by_offset(said: Words) -> tuple[str, ...]:
    place = ("--queue", said["-i"], "--offset", said["-o"])
    return ("msg", "get", "--topic", said["-t"], *place)


def _print(said: Words) -> tuple[str, ...]:
    return (
        *("consume", said["-t"], *_span(said, "-b", "-e"), "-e"),
        *_option(said, "-i", "--queue"),
        *_option(said, "-s", "--tags"),
        *(("--no-body",) if said.get("-d") == "false" else ()),
    )


def _consume(said: Words) -> tuple[str, ...]:
    span = ("-o", said["-o"]) if "-o" in said else _span(said, "-s", "-e")
    count = said.get("-c", _CONSUME_MESSAGES)
    return ("consume", said["-t"], *span, "-e", "-n", count, *_option(said, "-i", "--queue"))


def _units(said: Words) -> tuple[str, ...]:
    first, count = said["-i"], said.get("-c", str(_CQ_UNITS))
    if not (first.isdecimal() and count.isdecimal()):
        raise BadRequest(f"queryCq -i {first} -c {count} are no numbers", "-i 0 -c 10")
    span = f"{first}:{int(first) + int(count)}"
    return ("consume", said["-t"], "--queue", said["-q"], "-o", span, "-e", "--no-body")


def _produce(said: Words) -> tuple[str, ...]:
    return (
        *("produce", said["-t"], *_option(said, "-i", "--queue")),
        *(*_option(said, "-c", "--tags"), *_option(said, "-k", "--key")),
    )


def _option(said: Words, flag: str, ours: str) -> tuple[str, ...]:
    return (ours, said[flag]) if flag in said else ()


def _span(said: Words, first: str, last: str) -> tuple[str, ...]:
    """`-o @FROM:@TO` of two times, where there are any."""
    if first not in said and last not in said:
        return ()
    begin = f"@{_time(said[first])}" if first in said else "start"
    end = f":@{_time(said[last])}" if last in said else ""
    return ("-o", begin + end)


def _time(text: str) -> str:
    """mqadmin's `2026-11-20#10:00:00:000` as ISO; ms since 1970 as they are."""
    found = _TIME.fullmatch(text)
    if found is not None:
        return f"{found[1]}T{found[2]}" + (f".{found[3]}" if found[3] else "")
    if text.isdecimal():
        return text
    raise BadRequest(
        f"{text[:80]!a} is not a time", "write 2026-11-20#10:00:00:000, or ms since 1970"
    )


ALIASES: dict[str, Alias] = {
    "topicList": Alias(lambda _said: ("topic", "ls"), switches={"-c": "--clusterModel"}),
    "topicStatus": Alias(
        lambda said: ("topic", "describe", said["-t"]), _TOPIC, ("-t",), ignored=_CLUSTER
    ),
    "updateTopic": Alias(
        _update_topic,
        {**_TOPIC, "-r": "--readQueueNums", "-w": "--writeQueueNums", "-p": "--perm"},
        ("-t",),
        ignored={**_CLUSTER, "-o": "--order", "-u": "--unit", "-s": "--hasUnitSub"},
    ),
    "deleteTopic": Alias(
        lambda said: ("topic", "rm", said["-t"], "--yes"), _TOPIC, ("-t",), ignored=_CLUSTER
    ),
    "topicRoute": Alias(_status, _TOPIC, switches={"-l": "--list"}),
    "clusterList": Alias(
        _status, switches={"-m": "--moreStats"}, ignored={**_CLUSTER, "-i": "--interval"}
    ),
    "brokerStatus": Alias(_status, ignored=_CLUSTER),
    "statsAll": Alias(
        lambda _said: ("top", "--once"), switches={"-a": "--activeTopic"}, ignored=_TOPIC
    ),
    "queryMsgById": Alias(
        lambda said: ("msg", "get", said["-i"]),
        {"-i": "--msgId"},
        ("-i",),
        ignored={**_TOPIC, **_CLUSTER, "-f": "--bodyFormat"},
    ),
    "queryMsgByKey": Alias(
        _by_key,
        {**_TOPIC, "-k": "--msgKey", **_TIMES, "-m": "--maxNum"},
        ("-t", "-k"),
        ignored=_CLUSTER,
        b_is_node=False,
    ),
    "queryMsgByUniqueKey": Alias(
        _by_unique_key,
        {**_TOPIC, "-i": "--msgId"},
        ("-t", "-i"),
        switches={"-a": "--showAll"},
        ignored=_CLUSTER,
    ),
    "queryMsgByOffset": Alias(
        _by_offset,
        {**_TOPIC, "-i": "--queueId", "-o": "--offset"},
        ("-t", "-i", "-o"),
        ignored={"-b": "--brokerName", "-f": "--bodyFormat"},
        b_is_node=False,
    ),
    "printMsg": Alias(_print, _PRINTED, ("-t",), ignored={"-c": "--charsetName"}, b_is_node=False),
    "printMsgByQueue": Alias(
        _print,
        {**_PRINTED, "-i": "--queueId"},
        ("-t", "-i"),
        ignored={"-a": "--brokerName", "-c": "--charsetName", "-p": "--printMsg"},
        b_is_node=False,
    ),
    "consumeMessage": Alias(
        _consume,
        {
            **_TOPIC,
            "-i": "--queueId",
            "-o": "--offset",
            "-s": "--beginTimestamp",
            "-e": "--endTimestamp",
            "-c": "--MessageNumber",
        },
        ("-t",),
        ignored={"-b": "--brokerName", "-g": "--consumerGroup"},
        b_is_node=False,
    ),
    "queryCq": Alias(
        _units,
        {**_TOPIC, "-q": "--queue", "-i": "--index", "-c": "--count"},
        ("-t", "-q", "-i"),
        ignored={"-g": "--consumerGroup"},
    ),
    SEND: Alias(
        _produce,
        {**_TOPIC, "-p": "--body", "-k": "--keys", "-c": "--tags", "-i": "--qid"},
        ("-t", "-p"),
        ignored={"-b": "--broker", "-m": "--msgTraceEnable"},
        b_is_node=False,
    ),
}
