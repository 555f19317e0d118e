"""What differs between two runs of the same command in any case: times, sizes, addresses."""

import re
from collections.abc import Mapping

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
