"""Kills a node in part and as a whole under RocketMQ's Java client, and a real broker beside it.

Java's producers send numbered messages, some with a delay level; two push consumers of one group
fail some of them once, so that they are tried again. Gateway, writer, reader, tasks and the whole
node are killed with SIGKILL in turn. No acknowledged message may be lost, each is consumed at least
once, and below a committed offset everything was given to a consumer. RocketMQ's own broker is then
killed in the same way, and the counts of repeats stand beside each other.

    python -m tests.soak.clients.kills --kills 100 --broker-kills 15 --seed 1

Exit codes: 0 nothing was lost, 1 something was, 2 usage. It needs Java and Maven.
"""

import argparse
import json
import random
import sys
from pathlib import Path

from scripts.rivals.rocketmq import missing
from tests.soak.clients.history import Figures, History, shown
from tests.soak.clients.servers import KilledBroker, KilledKeelog, KilledServer
from tests.soak.command import folder_of, leave, phases, shape, soak_parser


def run(options: argparse.Namespace, folder: Path) -> dict[str, Figures]:
    """The node first, then the broker; the figures of each by its name."""
    found = {}
    for name, kills in (("Keelog", options.kills), ("RocketMQ", options.broker_kills)):
        if not kills:
            continue
        rnd = random.Random(options.seed)
        home = folder / name
        home.mkdir()
        server: KilledServer
        if name == KilledKeelog.name:
            server = KilledKeelog(home, rnd, options.tell)
        else:
            server = KilledBroker(home, options.tell)
        found[name] = History(server, home, kills, options.minutes * 60, rnd, options.tell).run()
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=100, help="of the node, in turn (default 100)")
    add("--broker-kills", type=int, default=15, help="of RocketMQ's broker (default 15, 0: none)")
    add("--minutes", type=float, default=30.0, help="of each: no kill begins later (default 30)")
    options = parser.parse_args()
    if options.kills < 0 or options.broker_kills < 0:
        parser.error("a count of kills is 0 or more")
    if reason := missing():
        parser.error(reason)
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    folder = folder_of(options.store, "clients")
    with phases(options.json) as options.tell:
        found = run(options, folder)
    if options.json:
        print(json.dumps(found, default=shape))
    else:
        print(*(shown(name, figures) for name, figures in found.items()), sep="\n")
    # What a broker of RocketMQ does is shown, and not judged.
    return leave(folder, options.store, bool(found.get("Keelog", Figures()).faults))


if __name__ == "__main__":
    sys.exit(main())
