"""Random cases for the decision about access, and what RocketMQ's own class decides about them.

`python -m tests.interop.access_cases` writes the golden file anew: 5,000 cases, each a line of JSON
with the access list, the need, the address, and the outcome of AclAuthorizationHandler of 5.5.0.
The cases follow from the seed alone. Many names, prefixes and addresses are alike, so that several
entries match, and the order among them counts.
"""

import gzip
import json
import random
import subprocess
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "access_decisions.jsonl.gz"
JAVA = Path(__file__).parent / "access"
COUNT = 5_000
SEED = 48
JAVA_S_MAX = 300
KINDS = ("Topic", "Topic", "Topic", "Group", "Group", "Cluster")
NAMES = ("o", "or", "ord", "orders", "orders-eu", "Orders", "a*b", "%RETRY%g", "billing")
PREFIXES = ("", "o", "or", "ord", "orders", "orders-", "O", "a", "a*", "%RETRY%")
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.1.2.3", "192.168.1.7", "fd00::1", "127.0.0.1")
SOURCES = (
    *ADDRESSES, "10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/30", "10.1.2.3/32", "0.0.0.0/0",
    "192.168.0.0/16", "fd00::/16",
)  # fmt: skip
Case = dict[str, Any]


def cases() -> list[Case]:
    """All of them, without outcomes."""
    dice = random.Random(SEED)
    return [_case(dice) for _ in range(COUNT)]


def _case(dice: random.Random) -> Case:
    return {
        "custom": [_entry(dice) for _ in range(dice.choice((0, 1, 2, 3, 5, 8)))],
        "default": [_entry(dice) for _ in range(dice.choice((0, 0, 1, 2)))],
        "kind": dice.choice(KINDS),
        "name": dice.choice(NAMES),
        "actions": dice.sample(ACTIONS, dice.choice((1, 1, 1, 2, 3))),
        "source": dice.choice(ADDRESSES),
    }


def _entry(dice: random.Random) -> dict[str, Any]:
    name = dice.choice(
        (dice.choice(NAMES), f"{dice.choice(PREFIXES)}*", f"{dice.choice(PREFIXES)}*")
    )
    resource = "*" if dice.random() < 0.1 else f"{dice.choice(KINDS)}:{name}"
    actions = ["All"] if dice.random() < 0.3 else dice.sample(ACTIONS, dice.choice((1, 2, 3)))
    sources = dice.sample(SOURCES, dice.choice((1, 2))) if dice.random() < 0.3 else None
    entry = {"resource": resource, "actions": actions, "decision": dice.choice(("Allow", "Deny"))}
    return entry if sources is None else {**entry, "sourceIps": sources}


def ask_java(wanted: list[Case]) -> list[str]:
    """What RocketMQ's class decides: `Allow`, `Deny`, or `Nothing` where no entry matches."""
    from scripts.rivals.rocketmq import class_path  # what it needs is not needed to read the file

    lines = "".join(f"{json.dumps(case)}\n" for case in wanted)
    command = ["java", "-Xmx256m", "-cp", class_path(JAVA), "AccessDecisions"]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=JAVA_S_MAX, check=True
    )
    return done.stdout.splitlines()


def golden() -> list[Case]:
    """The cases of the golden file, each with its `outcome`."""
    return [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


def main() -> None:
    """Writes the golden file."""
    wanted = cases()
    outcomes = ask_java(wanted)
    rows = [{**case, "outcome": one} for case, one in zip(wanted, outcomes, strict=True)]
    text = "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows)
    GOLDEN.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
