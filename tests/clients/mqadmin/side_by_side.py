"""The same requests at a broker and at a node, and the table of what differs.

The tables of mqadmin's commands and of the Dashboard's addresses are made here. What differs
between two runs of the same command in any case is masked: times, sizes, addresses. What a node's
answer is beside a broker's, the verdict says: equal, differs or refused.
"""

import argparse
import difflib
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, Protocol, TypeVar

from tests.clients.mqadmin.cases import AdminCase

_STACK = re.compile(r"^(\s+at |\s*\.\.\. \d+ more)")
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[ ,#T]\d\d:\d\d:\d\d([,.:]\d{3})?"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<day>"),
    (re.compile(r"\b1[6-9]\d{11}\b"), "<ms>"),
    (re.compile(r"listenPort = ?\d+|listenPort=\d+"), "listenPort=<port>"),
    (re.compile(r"\b1[6-9]\d{15}\b"), "<ns>"),
    (re.compile(r"/?\d+\.\d+\.\d+\.\d+:\d+"), "<address>"),
    (re.compile(r"\b\d+\.\d+\.\d+\.\d+@[\w.-]+(#\d+)?"), "<client>"),
    (re.compile(r"\b[0-9A-F]{32,56}\b"), "<id>"),
    (re.compile(r"@[0-9a-f]{6,8}\b|\$\$Lambda\$\d+/0x[0-9a-f]+"), "<object>"),
    (re.compile(r"\b20\d{12}\b|\b20\d{15}\b"), "<time>"),
    (re.compile(r"\bopaque=\d+"), "opaque=<n>"),
    (re.compile(r"\bspentTimeMills=\d+"), "spentTimeMills=<ms>"),
    (re.compile(r"\b\d+\s?ms\b"), "<ms>ms"),
    (re.compile(r"-?\b\d+\.\d+(E-?\d+)?\b"), "<decimal>"),
)
_NUMBER = re.compile(r"\d+")
_RATE = re.compile(r"\b\d+ (-?\d+)$")
LOAD_KEYS = re.compile(
    r"^(boot|commitLog(Dir|Disk)|consumeQueueDisk|earliest|get|put(?!Message(Failed|Average|Size"
    r"|Times))|putMessage|msg(Get|Put)|dispatch|pageCache|remain|runtime|startAccept|timer"
    r"|.*ThreadPoolQueue|EndTransaction)"
)
"""Lines of brokerStatus whose value is a time, a size or a load: their names alone count."""
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
    "createUser -b {broker} -u short -p 1234567": (
        "that it is refused: a password has 8 characters or more"
    ),
    "createAcl -b {broker} -s User:joe -r Topic -a Pub -d Allow": (
        "that it is refused: a topic without a name is none"
    ),
    "createAcl -b {broker} -s User:joe -r Topic:a -a Pub,Fly -d Allow": (
        "that it is refused: a broker drops words that are no actions"
    ),
    "remappingStaticTopic -t Fixed -c {cluster}": (
        "that there is no such topic: static topics are not offered"
    ),
}
"""By label: what a known difference is, for people."""
S = TypeVar("S")


def masked(text: str, names: Mapping[str, str]) -> list[str]:
    """The lines of a text without what a run or a place gives it; `names` are of the side."""
    for name, value in sorted(names.items(), key=lambda item: -len(item[1])):
        if value and name in ("folder", "home", "tools", "client_id"):
            text = text.replace(value, f"<{name}>")
    lines = []
    for line in text.splitlines():
        if _STACK.match(line):
            continue
        line = masked_text(line)
        if line:
            lines.append(line)
    return lines


def masked_text(text: str) -> str:
    """A text without times, addresses, ids and decimals, with single spaces."""
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def without_numbers(lines: list[str]) -> list[str]:
    """For commands whose numbers are of the process: how fast it is, how long it runs."""
    return [_NUMBER.sub("<n>", line) for line in lines]


def without_rates(lines: list[str]) -> list[str]:
    """For consumerProgress of all groups: the last column but one is messages a second."""
    return [_RATE.sub(r"<tps> \1", line) for line in lines]


def without_loads(lines: list[str]) -> list[str]:
    """For brokerStatus: lines `name : value`."""
    found = []
    for line in lines:
        name, colon, _ = line.partition(" : ")
        found.append(f"{name} : <load>" if colon and LOAD_KEYS.match(name) else line)
    return found


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


class SideCase(Protocol):
    """One request. `subject`: what a row of the table is about, a command or a path."""

    @property
    def label(self) -> str:
        """As people write it, without network addresses."""

    @property
    def subject(self) -> str:
        """What it is asked of."""

    @property
    def after_s(self) -> float:
        """The pause before it."""


C = TypeVar("C", bound=SideCase)


class CasePair(NamedTuple, Generic[C]):
    """One case, and what both sides said: the broker's and the node's masked lines."""

    case: C
    theirs: list[str]
    ours: list[str]
    verdict: AdminVerdict


def run_cases(
    sides: Sequence[S],
    cases: Iterable[C],
    lines: Callable[[S, C], list[str]],
    judge: Callable[[C, Sequence[str], Sequence[str]], AdminVerdict],
) -> list[CasePair[C]]:
    """Runs each case at both sides, the broker's and the node's, at the same time.

    `lines` asks one side and masks what it says.
    """
    runs = []
    with ThreadPoolExecutor(2) as pool:
        for case in cases:
            print(case.label, file=sys.stderr, flush=True)
            time.sleep(case.after_s)
            theirs, ours = pool.map(lambda side, one=case: lines(side, one), sides)
            runs.append(CasePair(case, theirs, ours, judge(case, theirs, ours)))
    return runs


def table(runs: Sequence[CasePair[C]], subject: str, total: str) -> str:
    """The table in Markdown, a row for each run, with a count of verdicts at its end.

    `subject` heads the first column; `total` says of what there are so many, as "runs of {} ..."
    """
    rows = [f"| {subject} | at a node |", "|---|---|"]
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.verdict.kind] = counts.get(run.verdict.kind, 0) + 1
        rows.append(f"| `{run.case.label}` | {run.verdict.text} |")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    of = total.format(len({run.case.subject for run in runs}))
    return "\n".join([*rows, "", f"{len(runs)} {of}: {kinds}."])


def difference(run: CasePair[C]) -> str:
    """The lines that differ, as `diff` shows them."""
    found = difflib.unified_diff(run.theirs, run.ours, "broker", "node", lineterm="", n=1)
    return "\n".join(found)


def unexpected(
    runs: Sequence[CasePair[C]], known: Iterable[str], allowed: Sequence[str] = (EQUAL,)
) -> str:
    """The differences that are not known ones, for a test's message; empty when there is none."""
    labels = set(known)
    return "\n".join(
        f"== {run.case.label}\n{difference(run)}"
        for run in runs
        if run.verdict.kind not in allowed and run.case.label not in labels
    )


def arguments(doc: str, cases: Sequence[C], subjects: str) -> tuple[list[C], bool]:
    """The command line: the cases that are wanted, and whether to print what differs."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(subjects, nargs="*", help="these alone")
    parser.add_argument("--show", action="store_true", help="print the lines that differ")
    options = parser.parse_args()
    wanted = set(getattr(options, subjects))
    if unknown := wanted - {case.subject for case in cases}:
        parser.error(f"no case has {', '.join(sorted(unknown))}: see {subjects} in the cases' file")
    return [case for case in cases if not wanted or case.subject in wanted], options.show


def print_differences(runs: Sequence[CasePair[C]]) -> None:
    """The lines that differ, of all runs that are not equal."""
    for run in runs:
        if run.verdict.kind != EQUAL:
            print(f"== {run.case.label}\n{difference(run)}\n")
