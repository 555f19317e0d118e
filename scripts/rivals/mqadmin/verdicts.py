"""Equal, differs or refused: what a node's answer to a tool is, beside a broker's."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scripts.rivals.mqadmin.cases import AdminCase

EQUAL, DIFFERS, REFUSED = "equal", "differs", "refused"
_REFUSAL = re.compile(r"CODE: (\d+) DESC: (.*?)(?:\s+(?:For more|See https:).*|BROKER:.*)?$")
OTHER_HOST = (
    "the line of groups: the tool compares the broker's address with that in the message, and the"
    " broker of this test has written the message at another one"
)
DIFFERENCES: Mapping[str, str] = {
    "getBrokerConfig -b {broker}": "which settings there are: those of a node",
    "getBrokerConfig -c {cluster}": "which settings there are: those of a node",
    "exportConfigs -c {cluster} -f {folder}": "which settings there are: those of a node",
    "queryMsgById -t {topic} -i {offset_id}": OTHER_HOST,
    "queryMsgByUniqueKey -t {topic} -i {unique_key}": OTHER_HOST,
    "queryMsgByOffset -t {topic} -b {name} -i 1 -o 2": OTHER_HOST,
    "updateTopic -t Fresh4 -c {cluster} -a +cleanup.policy=COMPACTION": (
        "that it is refused: a node would keep the messages by age and size"
    ),
    "updateBrokerConfig -b {broker} -k flushDiskType -v SYNC_FLUSH": (
        "that it is refused: the setting counts from the node's start"
    ),
    "consumerStatus -g {live} -i {client_id}": (
        "the client's offset in its empty retry queue: -1 until its first pull there ends, then 0"
    ),
    "statsAll": "what was counted in the last minute",
    "statsAll -t {topic}": "what was counted in the last minute",
    "updateBrokerConfig -b {broker} -k brokerConfigPath -v /x": "the text of the refusal",
    "setConsumeMode -b {broker} -t {topic} -g {group} -m POP -q 1": (
        "that it is refused: POP is not offered"
    ),
    "remappingStaticTopic -t Fixed -c {cluster}": (
        "that there is no such topic: static topics are not offered"
    ),
}
"""By label: what a known difference is, for people."""


class AdminVerdict(NamedTuple):
    """`text` is a cell of the table."""

    kind: str
    text: str


def verdict(case: AdminCase, theirs: Sequence[str], ours: Sequence[str]) -> AdminVerdict:
    """Of one run of a command."""
    return judged(theirs, ours, DIFFERENCES.get(case.label, ""))


def judged(theirs: Sequence[str], ours: Sequence[str], known: str) -> AdminVerdict:
    """Compares the masked lines of a broker and of a node. The order of lines does not count:
    tools print sets. `known` is what a known difference is."""
    refused = _refusal(ours)
    if sorted(theirs) == sorted(ours):
        return AdminVerdict(EQUAL, f"equal: both refuse it with {refused}" if refused else EQUAL)
    if known:
        return AdminVerdict(DIFFERS, f"differs in {known}")
    if refused and (refused.startswith("3,") or not _refusal(theirs)):
        return AdminVerdict(REFUSED, f"refused: {refused}")
    return AdminVerdict(DIFFERS, f"differs in {_differing(theirs, ours)}")


def _refusal(lines: Sequence[str]) -> str:
    for line in lines:
        found = _REFUSAL.search(line)
        if found:
            return f"{found[1]}, {found[2].strip()[:200]}"
    return ""


def _differing(theirs: Sequence[str], ours: Sequence[str]) -> str:
    missing = [line for line in theirs if line not in ours]
    more = [line for line in ours if line not in theirs]
    first = (missing or more)[0][:100].replace("|", "\\|")
    return f"{len(missing)} lines of the broker and {len(more)} of the node, first `{first}`"
