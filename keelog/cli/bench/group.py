"""`keelog bench …`: load tests; the scripts `load_…` and `bench_store` are the same code."""

from typing import Any

import click

from keelog.cli.bench.compare import compare
from keelog.cli.bench.options import (
    load_options,
    output_and_limit_options,
    reading_options,
    sending_options,
)
from keelog.cli.bench.run import run_load
from keelog.cli.options import CliGroup, settings_options


@click.group(cls=CliGroup)
def bench() -> None:
    """Measures a node under load: a line each second, then figures, as JSON or a page too.

    Without --node each command starts a node of its own on a temporary folder.

    Example: keelog bench send --duration 10s

    Example: keelog bench compare before.json after.json
    """


@bench.command("send")
@sending_options
@load_options
def send(**options: Any) -> int:
    """Sends messages: by default 64 producers, one at a time, 128 bytes each.

    Example: keelog bench send --callers batches --batch 100 --html send.html

    Example: keelog bench send --rate 5K --max-p99 5ms
    """
    return run_load("send", options)


@bench.command("consume")
@reading_options
@click.option("--stored", metavar="N", help="Messages to read, stored before; default 1M.")
@click.option(
    "--as", "read_as", type=click.Choice(("objects", "raw")), help="What is made of each."
)
@load_options
def consume(**options: Any) -> int:
    """Stores messages, then reads them from end to end, again and again; with --count, once.

    Example: keelog bench consume --count 5M --as raw
    """
    return run_load("consume", options)


@bench.command("e2e")
@sending_options
@reading_options
@load_options
def e2e(**options: Any) -> int:
    """From the send to a consumer that waits in long pulls: 1,000 a second by default.

    Producers and consumers are processes of their own; bodies carry the time of the send.

    Example: keelog bench e2e --rate 1000 --max-p99 5ms
    """
    options["rate"] = options["rate"] or "1000"
    options["producers"] = options["producers"] or options["processes"] or 1
    return run_load("e2e", options)


@bench.command("mixed")
@click.option("--kill-every", metavar="TIME", help="SIGKILL to one worker or reader after another.")
@click.option(
    "--percent-of-full",
    type=float,
    metavar="N",
    help="The rate, as a part of full speed, which is measured first; default 70.",
)
@click.option("--finds", metavar="N", help="Look-ups by key a second; default 100.")
@sending_options
@reading_options
@load_options
def mixed(**options: Any) -> int:
    """Producers, consumers, look-ups and kills at once; afterwards every message is checked.

    Consumers check that nothing is lost, twice or out of order. Then each acknowledged message is
    pulled again, the node is stopped, and its store verified as by `store verify --deep`.

    Example: keelog bench mixed --duration 10m --kill-every 30s --html mixed.html

    Example: keelog bench mixed --rate 5K --duration 1m
    """
    if options["rate"] is None and options["percent_of_full"] is None:
        options["percent_of_full"] = 70.0
    return run_load("mixed", {**options, "callers": "inflight"})


@bench.command("store")
@click.option("--body", default="128,1KiB", metavar="SIZES", help="One after the other.")
@click.option("--batch", type=int, metavar="N", help="Messages of a batch.")
@click.option("--duration", default="2s", metavar="TIME", help="Of each measurement.")
@click.option("--count", metavar="N", help="So many messages each instead, as 1M.")
@click.option("--warm-up", default="1s", metavar="TIME", help="Left out of the steady figures.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where the stores are made and removed: a folder of the disk that is meant.",
)
@settings_options
@output_and_limit_options
def store(**options: Any) -> int:
    """The store in this process, without sockets: single puts, batches, a walk of the log.

    Puts go the writer's own way: encode, check, stamp, write. --min-rate and --max-p99 hold for
    the first stream.

    Example: keelog bench store --body 128 --duration 5s
    """
    return run_load("store", options)


bench.add_command(compare)
